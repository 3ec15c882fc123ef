"""Connections to an object store: the usual AWS settings, time limits, retries with back-off."""

from __future__ import annotations

import functools
import os
import random
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pipeline.storage.retries import count_retry

CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
"""Without a byte; a store may think for long about the last part of a large object."""
ATTEMPTS = 8
"""Of a request: about 45 s of back-off in all. AWS_MAX_ATTEMPTS and `max_attempts` win."""
_FORBIDDEN = 403
_DENIED_ATTEMPTS = 3
_DENIED_PAUSE_SECONDS = 1.0
_CONNECTIONS = 32
_AWS_HOSTS = (".amazonaws.com", ".amazonaws.com.cn")


@dataclass(frozen=True)
class Connection:
    """A session of boto3, its S3 client, and what other clients of the same store must know."""

    session: Any
    client: Any
    attempts: int
    """Of a request, the first included."""
    certificates: str | None
    """File of the authorities to trust (AWS_CA_BUNDLE, `ca_bundle`), None for the usual."""

    @property
    def endpoint(self) -> str:
        """URL of the store."""
        return str(self.client.meta.endpoint_url)

    @property
    def region(self) -> str:
        """Region that requests are signed for."""
        name = str(self.client.meta.region_name)
        return "us-east-1" if name == "aws-global" else name

    @property
    def bucket_in_host(self) -> bool:
        """Whether a bucket's name goes into the host (AWS) or the path (other stores).

        `addressing_style` of the config file's `s3` section decides, if there.
        """
        style = (self.client.meta.config.s3 or {}).get("addressing_style", "auto")
        aws = str(urlsplit(self.endpoint).hostname).endswith(_AWS_HOSTS)
        return bool(style == "virtual" or (style != "path" and aws))


def connect() -> Connection:
    """Return this process's connection by the usual AWS variables and files.

    Raises botocore's errors for settings that make no client: a profile that is not there, say.
    """
    # Kept while the settings stay: making a client takes a tenth of a second.
    settings = tuple(sorted(one for one in os.environ.items() if one[0].startswith("AWS_")))
    return _connect(settings, os.getpid(), (CONNECT_SECONDS, READ_SECONDS, ATTEMPTS))


@functools.lru_cache(maxsize=8)
def _connect(
    settings: tuple[tuple[str, str], ...], process: int, limits: tuple[float, float, int]
) -> Connection:
    import boto3  # half a second that local runs need not pay
    import botocore.session
    from botocore.config import Config

    connect_seconds, read_seconds, attempts = limits
    core = botocore.session.Session()
    attempts = core.get_config_variable("max_attempts") or attempts
    # A session of its own: the shared one keeps the first credentials it saw, and making
    # clients of it is not safe in threads.
    # AWS_REGION is the other SDKs' name for what boto3 takes from AWS_DEFAULT_REGION.
    region = os.environ.get("AWS_REGION") or None
    session = boto3.session.Session(botocore_session=core, region_name=region)
    client = session.client(
        "s3",
        config=Config(
            connect_timeout=connect_seconds,
            read_timeout=read_seconds,
            max_pool_connections=_CONNECTIONS,
            # Exponential back-off with jitter. Adaptive mode held every worker at two requests a
            # second where a fifth of them was told to slow down: four times as long in all.
            retries={"mode": "standard", "total_max_attempts": attempts},
        ),
    )
    client.meta.events.register("needs-retry.s3", _after_attempt)
    return Connection(session, client, attempts, core.get_config_variable("ca_bundle"))


def _after_attempt(attempts: int, response: Any = None, **_: object) -> float | None:
    """Count what is repeated; return after how many seconds a refusal is to be repeated."""
    if attempts > 1:  # the end of a second attempt tells that a first one failed
        count_retry()
    # boto3 takes every 403 for final, and stores give some to keys that are right: while rights
    # spread, or in place of a time-out. A wrong key costs a second or two by this.
    if response is None or response[0].status_code != _FORBIDDEN or attempts >= _DENIED_ATTEMPTS:
        return None
    return random.uniform(0.0, _DENIED_PAUSE_SECONDS)
