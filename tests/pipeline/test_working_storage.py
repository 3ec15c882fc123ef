"""Where what does not fit memory goes, and how a place that takes nothing is refused."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.__main__ import main
from pipeline.config import PipelineConfig
from pipeline.corpus import ReadReport, list_files, plan_splits, read_split
from pipeline.errors import ConfigError, InputError, StorageError
from pipeline.working_storage import prepare, unpacked
from tests.pipeline.corpus.reading import source_of

CHECKOUT = Path(__file__).parents[2]


def run_python(code: str, *arguments: str) -> str:
    """Run code in a process of its own; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_file_lies_in_the_directory_and_leaves_no_name(tmp_path: Path) -> None:
    directory = tmp_path / "made/for/it"
    with unpacked([b"one ", b"two"], str(directory)) as file:
        assert Path(f"/proc/self/fd/{file.fileno()}").readlink().parent == directory
        assert file.read() == b"one two"
        assert list(directory.iterdir()) == []


def test_errors_of_what_is_read_are_not_taken_for_the_directorys(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"one"
        raise InputError("the other file")

    with pytest.raises(InputError, match="the other file"):
        unpacked(chunks(), str(tmp_path))


def test_a_directory_that_cannot_be_written_is_refused_before_the_root_is_made(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    message = f"working_storage = {tmp_path}/file/x: cannot write there: Not a directory; name a"
    with pytest.raises(StorageError, match=message):
        main(["run", "--root", f"{tmp_path}/root", "--working_storage", f"{tmp_path}/file/x"])
    assert not (tmp_path / "root").exists()
    with pytest.raises(ConfigError, match=r'working_storage = "s3://b/x": name a local directory'):
        PipelineConfig(working_storage="s3://b/x")
    prepare("")


def test_a_full_disk_is_explained(tmp_path: Path) -> None:
    code = """
        import resource, signal, sys
        from pipeline.errors import StorageError
        from pipeline.working_storage import unpacked
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            unpacked([bytes(1 << 19)] * 4, sys.argv[1])
        except StorageError as error:
            print(error)
    """
    printed = run_python(code, str(tmp_path))
    assert f"working_storage = {tmp_path}: cannot write there: File too large" in printed


def test_compressed_tables_are_unpacked_there(tmp_path: Path) -> None:
    table = io.BytesIO()
    pq.write_table(pa.table({"text": ["one", "two"]}), table)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/a.parquet.gz").write_bytes(gzip.compress(table.getvalue()))
    (tmp_path / "file").write_text("")
    source = source_of(tmp_path / "corpus", "parquet")
    (split,) = plan_splits(source, list_files(source, 0), 1 << 40)
    texts = [one.text for one in read_split(source, split, ReadReport(), str(tmp_path / "w"))]
    assert texts == ["one", "two"]
    with pytest.raises(StorageError, match=f"working_storage = {tmp_path}/file: cannot write"):
        list(read_split(source, split, ReadReport(), str(tmp_path / "file")))


@pytest.mark.ray
def test_a_local_ray_spills_there(tmp_path: Path) -> None:
    code = """
        import sys
        from pathlib import Path
        import numpy as np
        import ray
        from pipeline.ray_session import ray_session
        limits = {"cpus": 1, "object_store_bytes": 80_000_000, "working_storage": sys.argv[1]}
        with ray_session(ray, "local", **limits):
            kept = [ray.put(np.full(30_000_000, number, np.uint8)) for number in range(4)]
            found = [path for path in Path(sys.argv[1]).rglob("*") if path.is_file()]
            assert all(ray.get(one)[0] == number for number, one in enumerate(kept))
            print(sum(path.stat().st_size for path in found))
    """
    assert int(run_python(code, str(tmp_path))) >= 30_000_000
