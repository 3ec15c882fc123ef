"""A real S3 server (SeaweedFS) on loopback: for a test session, or by `make s3` for people."""

from __future__ import annotations

import json
import signal
import socket
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
_STARTS = 3
_USUAL_PORT = 8333
_ACCESS, _SECRET = "writer", "a-secret-of-the-writer"
READER = {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "a-secret-of-the-reader"}


def _identity(name: str, secret: str, actions: list[str]) -> dict[str, object]:
    credentials = [{"accessKey": name, "secretKey": secret}]
    return {"name": name, "credentials": credentials, "actions": actions}


@contextmanager
def s3_server(folder: Path, port: int = 0) -> Iterator[dict[str, str]]:
    """Run the server with its data below `folder`, on a free port unless one is given.

    Yields the AWS variables of a user who may do everything. What lay there is there again.
    """
    everything = ["Admin", "Read", "Write", "List", "Tagging"]
    identities = [
        _identity(_ACCESS, _SECRET, everything),
        _identity(READER["AWS_ACCESS_KEY_ID"], READER["AWS_SECRET_ACCESS_KEY"], ["Read", "List"]),
    ]
    (folder / "data").mkdir(parents=True, exist_ok=True)
    (folder / "s3.json").write_text(json.dumps({"identities": identities}))
    for _ in range(_STARTS):
        server, endpoint = _start(folder, port)
        variables = {
            "AWS_ACCESS_KEY_ID": _ACCESS,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_S3": endpoint,
        }
        try:
            # It may end by itself: a port that was free a moment ago is another's by now.
            if _becomes_ready(server, variables):
                yield variables
                return
        finally:
            _stop(server)
    raise RuntimeError(f"the S3 server does not start: see {folder}/server.log")


def _start(folder: Path, port: int) -> tuple[subprocess.Popen[bytes], str]:
    names = ("master.port", "volume.port", "filer.port", "s3.port")
    ports = {name: free_port() for name in (*names, *(f"{name}.grpc" for name in names))}
    ports["s3.port"] = port or ports["s3.port"]
    command = [
        *(str(Path(sys.executable).with_name("weed")), "server", "-s3"),
        *("-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
        *(f"-{name}={number}" for name, number in ports.items()),
        *("-master.telemetry=false", "-s3.autoCreateBucket=false"),
        # Two catalogues that nobody here asks, each on a port of its own.
        *("-s3.port.iceberg=0", "-s3.port.lance=0"),
        *(f"-s3.config={folder / 's3.json'}", f"-dir={folder / 'data'}"),
    ]
    with (folder / "server.log").open("ab") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    return server, f"http://127.0.0.1:{ports['s3.port']}"


def _stop(server: subprocess.Popen[bytes]) -> None:
    with suppress(psutil.NoSuchProcess):
        for process in (*psutil.Process(server.pid).children(recursive=True), server):
            with suppress(psutil.NoSuchProcess):
                process.kill()
    server.wait()


def _becomes_ready(server: subprocess.Popen[bytes], variables: dict[str, str]) -> bool:
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
    while server.poll() is None and time.monotonic() < deadline:
        try:
            if BUCKET not in [one["Name"] for one in client.list_buckets()["Buckets"]]:
                client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="ready", Body=b"yes")
            return True
        except (BotoCoreError, ClientError):
            time.sleep(0.2)
    return False


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def main() -> None:
    """Run a server for people below runs/s3, with a bucket, until Ctrl-C."""
    # SeaweedFS's usual port, so that what was exported holds for the next server too.
    port = _USUAL_PORT if _is_free(_USUAL_PORT) else 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with suppress(KeyboardInterrupt), s3_server(Path("runs/s3"), port) as variables:
        for name, value in variables.items():
            print(f"export {name}={value}")
        print(f"# bucket: s3://{BUCKET}; Ctrl-C stops the server, runs/s3 keeps what it holds")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    main()
