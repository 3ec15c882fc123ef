"""pyarrow's S3 file system with the settings, credentials and limits of our boto3 client."""

from __future__ import annotations

import functools
import os
from typing import Any
from urllib.parse import urlsplit

from pipeline.storage import s3_client
from pipeline.storage.s3_client import Connection


def s3_filesystem(connection: Connection) -> Any:
    """Return the pyarrow.fs.S3FileSystem that means the same store as `connection`.

    Raises botocore's errors where no credentials are found.
    """
    from botocore.exceptions import NoCredentialsError

    credentials = connection.session.get_credentials()
    if credentials is None:
        raise NoCredentialsError
    # boto3 renews those that expire (a role's, a login's): another key, another file system.
    keys = tuple(credentials.get_frozen_credentials())[:3]
    limits = (s3_client.CONNECT_SECONDS, s3_client.READ_SECONDS)
    return _filesystem(connection, keys, limits, os.getpid())


@functools.lru_cache(maxsize=4)
def _filesystem(
    connection: Connection,
    keys: tuple[str, str, str | None],
    limits: tuple[float, float],
    process: int,
) -> Any:
    from pyarrow import fs  # local runs need no AWS library

    endpoint = urlsplit(connection.endpoint)
    access_key, secret_key, session_token = keys
    connect_seconds, read_seconds = limits
    return fs.S3FileSystem(
        access_key=access_key,
        secret_key=secret_key,
        session_token=session_token,
        region=connection.region,
        scheme=endpoint.scheme,
        endpoint_override=endpoint.netloc,
        force_virtual_addressing=connection.bucket_in_host,
        tls_ca_file_path=connection.certificates,
        connect_timeout=connect_seconds,
        request_timeout=read_seconds,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=connection.attempts),
    )
