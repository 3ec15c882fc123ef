"""The usual AWS variables and files hold for boto3 and for pyarrow alike."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pipeline.corpus.s3_file import S3File
from pipeline.storage import open_storage
from pipeline.storage.s3_client import Connection, connect
from tests.s3_server import BUCKET

# boto3's own sockets are left to the collector.
SOCKETS = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config file that is all there is of AWS settings; returns it."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return tmp_path / "config"


@SOCKETS
@pytest.mark.s3
@pytest.mark.parametrize("place", ["profile", "services"])
def test_a_profile_gives_endpoint_region_and_credentials_to_both(
    s3: dict[str, str], settings: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    endpoint = f"endpoint_url = {s3['AWS_ENDPOINT_URL_S3']}"
    services = f"services = here\n[services here]\ns3 =\n  {endpoint}"
    settings.write_text(
        "[profile ours]\nregion = eu-central-1\ns3 =\n  addressing_style = path\n"
        f"{endpoint if place == 'profile' else services}\n"
    )
    settings.with_name("credentials").write_text(
        f"[ours]\naws_access_key_id = {s3['AWS_ACCESS_KEY_ID']}\n"
        f"aws_secret_access_key = {s3['AWS_SECRET_ACCESS_KEY']}\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "ours")
    assert connect().region == "eu-central-1"
    storage = open_storage(f"s3://{BUCKET}/profile-{place}")
    storage.create("x", b"0123456789")
    assert storage.read("x") == b"0123456789"
    file = S3File(f"{storage.uri}/x")
    file.seek(-4, os.SEEK_END)
    assert (file.size, file.read(2), file.read()) == (10, b"67", b"89")
    file.close()


class InterceptedError(Exception):
    """Instead of a request: its address."""


def host_of_a_request(connection: Connection) -> str:
    """Where boto3 itself would send one."""

    def stop(request: Any, **_: object) -> None:
        raise InterceptedError(request.url)

    connection.client.meta.events.register("before-send.s3", stop)
    with pytest.raises(InterceptedError) as caught:
        connection.client.head_object(Bucket="bucket", Key="key")
    return str(urlsplit(str(caught.value)).hostname)


@pytest.mark.parametrize("style", ["", "path", "virtual", "auto"])
@pytest.mark.parametrize("endpoint", ["", "https://objects.example.com"])
def test_pyarrow_puts_the_bucket_where_boto3_puts_it(
    settings: Path, monkeypatch: pytest.MonkeyPatch, style: str, endpoint: str
) -> None:
    section = f"[default]\nregion = eu-west-1\n{f'endpoint_url = {endpoint}' if endpoint else ''}\n"
    settings.write_text(section + (f"s3 =\n  addressing_style = {style}\n" if style else ""))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "something")
    connection = connect()
    host = host_of_a_request(connection)
    assert connection.bucket_in_host == host.startswith("bucket.")
    assert host.removeprefix("bucket.") == urlsplit(connection.endpoint).hostname
    assert host.endswith("objects.example.com" if endpoint else ".eu-west-1.amazonaws.com")


def test_the_region_has_two_variables(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert connect().region == "us-east-1"
    settings.write_text("[default]\nregion = eu-west-1\n")
    for name, region in (("AWS_DEFAULT_REGION", "eu-west-2"), ("AWS_REGION", "eu-west-3")):
        monkeypatch.setenv(name, region)
        assert connect().region == region


def test_the_number_of_attempts_may_be_set(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert connect().attempts == 8
    settings.write_text("[default]\nmax_attempts = 3\n")
    monkeypatch.setenv("AWS_PROFILE", "default")
    assert connect().attempts == 3
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "5")
    assert connect().attempts == 5
