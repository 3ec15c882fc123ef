"""The look at a config's sources from the command line."""

from __future__ import annotations

import gzip
import json
import lzma
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


def preview(config: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-m", "pipeline.corpus", str(config)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_preview_shows_first_documents_and_counts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n\nthree\n\nfour\n")
    (tmp_path / "b.tmp").write_text("not yet")
    config = tmp_path / "run.toml"
    config.write_text(f'[[documents.sources]]\nname = "s"\npath = "{tmp_path}/[ab].t*"\n')
    done = preview(config)
    assert done.returncode == 0, done.stderr
    *shown, counts = done.stdout.splitlines()
    assert shown == ['s/a.txt#0: "one"', 's/a.txt#5: "two"', 's/a.txt#10: "three"']
    found = json.loads(counts)["s"]
    assert (found["files"], found["splits"], found["characters"]) == (1, 1, 16)
    assert found["counts"] == {"documents": 4, "temporary_left_out": 1}


def test_a_preview_of_what_cannot_be_read_fails_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9\n")
    config = tmp_path / "run.toml"
    config.write_text(f'[[documents.sources]]\nname = "s"\npath = "{tmp_path}/a.txt"\n')
    done = preview(config)
    assert done.returncode == 1
    assert f"error: {tmp_path}/a.txt: byte offset 3: not UTF-8" in done.stderr


def test_an_output_that_is_closed_ends_a_preview_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    source = f'[[documents.sources]]\nname = "s%d"\npath = "{tmp_path}/a.txt"\n'
    config = tmp_path / "run.toml"
    config.write_text("".join(source % number for number in range(400)))
    command = f"{shlex.quote(sys.executable)} -m pipeline.corpus {config} | head -1"
    done = subprocess.run(
        command,
        shell=True,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ('s0/a.txt#0: "one"\n', "")


@pytest.mark.parametrize(
    "line",
    [
        'path = "~nosuchuser/x.txt"',
        f'path = "/tmp/{"a" * 5000}"',
        'path = "a\\u0000b"',
        'path = "a.txt"\nencoding = "idna"',
    ],
)
def test_what_a_preview_cannot_do_is_one_message(tmp_path: Path, line: str) -> None:
    config = tmp_path / "run.toml"
    config.write_text(f'[[documents.sources]]\nname = "s"\n{line}\n')
    done = preview(config)
    assert done.returncode in (1, 2) and done.stdout == ""
    assert done.stderr.startswith("error: ") and "documents.sources[s]." in done.stderr
    assert "Traceback" not in done.stderr and "not foreseen" not in done.stderr


def test_a_preview_of_every_format_prints_no_warning(tmp_path: Path) -> None:
    sentence = "This is a sentence of the article, long enough to be taken for running text. "
    page = f"<html><body><p>{sentence * 4}</p></body></html>"
    http = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n{page}"
    empty = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"
    records = [
        f"WARC/1.0\r\nWARC-Type: response\r\nContent-Type: application/http\r\n"
        f"Content-Length: {len(block)}\r\n\r\n{block}\r\n\r\n"
        for block in (http, empty)
    ]
    files = {
        "a.txt": b"one\n",
        "b.jsonl": b'{"text": "two"}\n',
        "c.warc": "".join(records).encode(),
        "d.xml": b"<mediawiki><page><ns>0</ns><text>[[x]] '''y'''</text></page></mediawiki>",
    }
    table = pa.table({"text": ["three"]})
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    pq.write_table(table, tmp_path / "e.parquet")
    with pa.ipc.new_stream(str(tmp_path / "f.arrows"), table.schema) as writer:
        writer.write_table(table)
    for path in list(tmp_path.iterdir()):
        for suffix, pack in ((".gz", gzip.compress), (".xz", lzma.compress), (".zst", zstd)):
            target = tmp_path / f"{path.stem}{suffix[1:]}{path.suffix}{suffix}"
            target.write_bytes(pack(path.read_bytes()))
    config = tmp_path / "run.cfg"
    config.write_text(f'[[documents.sources]]\nname = "s"\npath = "{tmp_path}/[a-f]*"\n')
    # Python shows all warnings, unclosed files among them, that it hides by itself.
    done = preview(config, "-W", "default")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout.splitlines()[-1])["s"]["counts"]["documents"] == 24
