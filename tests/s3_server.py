"""A real S3 server (SeaweedFS) on loopback, for as long as a test session needs it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import boto3
import psutil
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.ports import free_port

BUCKET = "clozeline"
_DEADLINE_SECONDS = 120.0
_ACCESS, _SECRET = "writer", "a-secret-of-the-writer"
READER = {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "a-secret-of-the-reader"}


def _identity(name: str, secret: str, actions: list[str]) -> dict[str, object]:
    credentials = [{"accessKey": name, "secretKey": secret}]
    return {"name": name, "credentials": credentials, "actions": actions}


@contextmanager
def s3_server(folder: Path) -> Iterator[dict[str, str]]:
    """Run the server; yields the AWS variables of a user who may do everything."""
    everything = ["Admin", "Read", "Write", "List", "Tagging"]
    identities = [
        _identity(_ACCESS, _SECRET, everything),
        _identity(READER["AWS_ACCESS_KEY_ID"], READER["AWS_SECRET_ACCESS_KEY"], ["Read", "List"]),
    ]
    settings = folder / "s3.json"
    settings.write_text(json.dumps({"identities": identities}))
    (folder / "data").mkdir()
    names = ("master.port", "volume.port", "filer.port", "s3.port")
    ports = {name: free_port() for name in (*names, *(f"{name}.grpc" for name in names))}
    server = subprocess.Popen(
        [
            *(
                Path(sys.executable).with_name("weed"),
                "server",
                "-s3",
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
            ),
            *(f"-{name}={port}" for name, port in ports.items()),
            *("-master.telemetry=false", "-s3.autoCreateBucket=false"),
            *(f"-s3.config={settings}", f"-dir={folder / 'data'}"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    variables = {
        "AWS_ACCESS_KEY_ID": _ACCESS,
        "AWS_SECRET_ACCESS_KEY": _SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{ports['s3.port']}",
    }
    try:
        _wait_until_ready(server, variables)
        yield variables
    finally:
        for process in (*psutil.Process(server.pid).children(recursive=True), server):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        server.wait()


def _wait_until_ready(server: subprocess.Popen[bytes], variables: dict[str, str]) -> None:
    """Make the bucket: a port that listens is not a store that takes writes."""
    client = boto3.client(
        "s3",
        aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
        region_name=variables["AWS_DEFAULT_REGION"],
        endpoint_url=variables["AWS_ENDPOINT_URL_S3"],
        config=Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=10),
    )
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while True:
        assert server.poll() is None, "the S3 server ended by itself"
        try:
            if BUCKET not in [one["Name"] for one in client.list_buckets()["Buckets"]]:
                client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="ready", Body=b"yes")
            return
        except (BotoCoreError, ClientError):
            assert time.monotonic() < deadline, "the S3 server takes no writes"
            time.sleep(0.2)
