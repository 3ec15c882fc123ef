"""What tests of every folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.s3_server import s3_server

# A first example may compile; a slow one is no fault.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """AWS variables of a real S3 server that runs until the session's end."""
    with s3_server(tmp_path_factory.mktemp("s3")) as variables:
        yield variables
