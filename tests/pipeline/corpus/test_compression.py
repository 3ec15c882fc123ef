"""Compressed files: all of them read, and damage named."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from backports import zstd as zstd_module

from pipeline import corpus
from pipeline.corpus import list_files
from pipeline.corpus.compression import DecompressedStream
from tests.pipeline.corpus.reading import failure, read_all, read_reported, source_of


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [(".gz", gzip.compress), (".bz2", bz2.compress), (".zst", zstd), (".xz", lzma.compress)],
)
def test_compressed_files_read_like_plain_ones(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    data = b"".join(b'{"text": "document %d"}\n' % number for number in range(50))
    (tmp_path / "articles.jsonl").write_bytes(data)
    plain = source_of(tmp_path / "articles.jsonl", "jsonl")
    folder = tmp_path / "packed"
    folder.mkdir()
    # Two streams in one file are one text (as pigz and bzip2 -c a b write them).
    half = data.index(b"\n", len(data) // 2) + 1
    path = folder / f"articles.jsonl{suffix}"
    path.write_bytes(compress(data[:half]) + compress(data[half:]))
    assert read_all(source_of(path, "jsonl")) == read_all(plain)
    # A compressed file cannot be entered in the middle: it is one range however small splits are.
    assert read_all(source_of(path, "jsonl"), 1) == read_all(plain)


@pytest.mark.parametrize(
    ("suffix", "data"),
    [
        (".gz", gzip.compress(b"text\n" * 1000)[:-12]),
        (".gz", b"this is no gzip\n"),
        (".bz2", b"this is no bzip2\n"),
        (".zst", zstd(b"text\n" * 1000)[:-3]),
        (".zst", b"this is no zstd\n"),
        (".xz", lzma.compress(b"text\n" * 1000)[:-5]),
        (".gz", gzip.compress(b"text\n") + b"rubbish"),
    ],
)
def test_a_damaged_archive_is_named(tmp_path: Path, suffix: str, data: bytes) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(data)
    message = failure(source_of(path))
    assert f"{path}: cannot read it as {corpus.COMPRESSION_SUFFIXES[suffix]}" in message
    assert "repair or remove the file" in message


def test_empty_files_among_others_stop_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "x"}\n{"text": "y"}\n'))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "c.jsonl").write_bytes(b"")
    (tmp_path / "d.jsonl.gz").write_bytes(b"")
    source = source_of(tmp_path, "jsonl")
    assert len(list_files(source, 0)) == 4
    assert read_all(source) == [("a.jsonl", 0, "x"), ("a.jsonl", 14, "y")]


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst", ".xz"])
def test_damage_is_named_with_the_place_that_was_reached(tmp_path: Path, suffix: str) -> None:
    data = random.Random(0).randbytes(3_000_000).replace(b"\n", b" ")
    packed = {".gz": gzip.compress, ".bz2": bz2.compress, ".zst": zstd, ".xz": lzma.compress}
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(packed[suffix](data)[:-1_000_000])
    found = re.search(
        r"after byte offset ([0-9]+) of the uncompressed data", failure(source_of(path))
    )
    assert found is not None
    # What is lost is the last third; bzip2 gives whole blocks of 900,000 bytes.
    assert 1_000_000 < int(found[1]) <= 2_100_000


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst", ".xz"])
def test_empty_streams_between_others_are_read_over(tmp_path: Path, suffix: str) -> None:
    packed = {".gz": gzip.compress, ".bz2": bz2.compress, ".zst": zstd, ".xz": lzma.compress}
    pack = packed[suffix]
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(pack(b"") + pack(b"one\n\nt") + pack(b"") + pack(b"wo") + pack(b""))
    assert read_all(source_of(path)) == [("a.txt", 0, "one"), ("a.txt", 5, "two")]


def test_skippable_zstd_frames_are_passed_over(tmp_path: Path) -> None:
    frame = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"pzst"
    path = tmp_path / "a.txt.zst"
    path.write_bytes(frame + zstd(b"one\n") + frame + zstd(b"\ntwo"))
    assert [text for _, _, text in read_all(source_of(path))] == ["one", "two"]


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_zero_padding_ends_a_stream(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(pack(b"one\n") + bytes(512) + pack(b"two\n") + bytes(1024))
    assert [text for _, _, text in read_all(source_of(path, "lines"))] == ["one", "two"]


def test_the_magic_bytes_decide_between_compressions(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(bz2.compress(b"of bzip2"))
    (tmp_path / "b.txt").write_bytes(gzip.compress(b"of gzip"))
    # Text that begins as bzip2 does is text.
    (tmp_path / "c.txt").write_bytes(b"BZh9 is how it begins")
    found = read_all(source_of(tmp_path), 1)
    assert found == [
        ("a.txt", 0, "of bzip2"),
        ("b.txt", 0, "of gzip"),
        ("c.txt", 0, "BZh9 is how it begins"),
    ]


def test_a_compressed_name_over_plain_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(b"plain text\n")
    message = failure(source_of(path))
    assert f"{path}: cannot read it as gzip: its name says so, its first bytes are no" in message
    assert "rename it if it is plain" in message


def test_empty_files_are_counted_and_named_whatever_their_compression(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one")
    (tmp_path / "b.txt").write_bytes(b"")
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "d.txt.xz").write_bytes(b"")
    found, report = read_reported(source_of(tmp_path))
    assert found == ["one"]
    assert report.counts["empty_files"] == 3
    assert [place.split(":")[0] for place in report.places] == [
        str(tmp_path / name) for name in ("b.txt", "d.txt.xz", "c.txt.gz")
    ]


def test_a_member_that_unpacks_to_much_more_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.zst"
    path.write_bytes(zstd(b"\n" * 50_000_000 + b"x"))
    assert path.stat().st_size < 10_000
    assert read_all(source_of(path)) == [("a.txt", 50_000_000, "x")]
    stream = DecompressedStream(io.BytesIO(path.read_bytes()), "zstd", "a.txt.zst")
    assert max(len(piece) for piece in iter(lambda: stream.read(1000), b"")) == 1000


@pytest.mark.parametrize("window_log", [27, 28, 31])
def test_zstd_frames_of_the_largest_windows_are_read(tmp_path: Path, window_log: int) -> None:
    options = {
        zstd_module.CompressionParameter.window_log: window_log,
        zstd_module.CompressionParameter.enable_long_distance_matching: 1,
    }
    packer = zstd_module.ZstdCompressor(options=options)
    path = tmp_path / "a.txt.zst"
    path.write_bytes(packer.compress(b"one\n\ntwo\n") + packer.flush())
    assert read_all(source_of(path)) == [("a.txt", 0, "one"), ("a.txt", 5, "two\n")]
