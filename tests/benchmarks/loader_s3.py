"""The loader from a real S3 server beside the disk: `python -m tests.benchmarks.loader_s3`.

An epoch of 64 million tokens as in tests.benchmarks.loader. The loader has one core, the server
the others.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tests.benchmarks.harness import Case, run
from tests.benchmarks.loader import TOKENS, on_one_core, ours, write
from tests.s3_server import BUCKET, s3_server


def case(folder: Path, tokens: int) -> Case:
    return Case(
        case=f"{tokens} tokens a row, 64 lanes, from S3",
        unit="tokens/s",
        amount=TOKENS,
        ours=ours(write(f"s3://{BUCKET}/{tokens}", tokens), 64, threads=8),
        peer="the same from the disk",
        theirs=ours(write(folder / str(tokens), tokens), 64),
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name, s3_server(Path(name)) as variables:
        os.environ.update(variables)
        on_one_core()
        run("loader_s3", [case(Path(name), tokens) for tokens in (128, 512)])
