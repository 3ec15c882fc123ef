"""Which files a source has, and what names and identifies them."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.corpus import ReadReport, files, list_files, plan_splits, read_split
from pipeline.errors import InputError
from tests.pipeline.corpus.reading import WHOLE, failure, names_of, read_all, source_of, write_files


def test_every_file_below_a_directory_is_read_whatever_its_name(tmp_path: Path) -> None:
    names = [
        "contest_report.txt",
        "deep/er/README",
        "latest-news.txt",
        "my-validation-notes.txt",
        "test/part-0",
        "training-day.txt",
        "validation/dev.json",
    ]
    write_files(tmp_path, *names)
    assert names_of(source_of(tmp_path)) == names


def test_hidden_files_and_folders_below_a_directory_are_left_out(tmp_path: Path) -> None:
    write_files(tmp_path, "a.txt", ".hidden.txt", ".git/objects", "b/.cache/x", "b/c.txt")
    assert names_of(source_of(tmp_path)) == ["a.txt", "b/c.txt"]
    # One that is named is read, and so is a directory whose own name is hidden.
    assert names_of(source_of(tmp_path / ".hidden.txt")) == [".hidden.txt"]
    assert names_of(source_of(tmp_path / ".git")) == ["objects"]
    assert names_of(source_of(tmp_path / "b/.cache/*")) == ["x"]


def test_a_glob_names_files_below_its_first_pattern(tmp_path: Path) -> None:
    write_files(tmp_path, "x/1/a.txt", "x/2/b.txt", "x/2/c.md", "y/1/d.txt")
    assert names_of(source_of(tmp_path / "x/*/*.txt")) == ["1/a.txt", "2/b.txt"]
    assert names_of(source_of(tmp_path / "**/*.txt")) == ["x/1/a.txt", "x/2/b.txt", "y/1/d.txt"]
    assert names_of(source_of(tmp_path / "x/2/[ab].*")) == ["b.txt"]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path: Path) -> None:
    write_files(tmp_path, "notes[1].txt", "notes1.txt")
    assert names_of(source_of(tmp_path / "notes[1].txt")) == ["notes[1].txt"]


def test_a_path_relative_to_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, "corpus/a.txt")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert names_of(source_of(Path("~/corpus"))) == ["a.txt"]


@pytest.mark.parametrize("name", ["absent.txt", "absent/folder", "absent/*.txt"])
def test_a_path_that_does_not_exist_is_named(tmp_path: Path, name: str) -> None:
    message = failure(source_of(tmp_path / name))
    assert f"documents.sources[s].path = {tmp_path / name}: no such file or directory" in message
    assert "correct the path" in message


def test_a_directory_without_files_is_named(tmp_path: Path) -> None:
    write_files(tmp_path, ".hidden")
    assert f"documents.sources[s].path = {tmp_path}: no files" in failure(source_of(tmp_path))


def test_an_empty_corpus_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    (tmp_path / "b.txt").write_bytes(b"")
    message = failure(source_of(tmp_path))
    assert f"documents.sources[s].path = {tmp_path}: 2 files, all empty" in message


def test_two_files_that_differ_in_compression_only_are_refused(tmp_path: Path) -> None:
    write_files(tmp_path, "a.txt", "a.txt.gz")
    message = failure(source_of(tmp_path))
    assert "same name as" in message and "rename or remove one" in message


def test_links_are_followed(tmp_path: Path) -> None:
    write_files(tmp_path, "corpus/a.txt", "elsewhere/b.txt", "c.txt")
    (tmp_path / "corpus/more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "corpus/c.txt").symlink_to(tmp_path / "c.txt")
    assert names_of(source_of(tmp_path / "corpus")) == ["a.txt", "c.txt", "more/b.txt"]


def test_a_link_into_a_loop_is_named(tmp_path: Path) -> None:
    write_files(tmp_path, "a.txt", "deep/b.txt")
    (tmp_path / "deep/up").symlink_to(tmp_path)
    message = failure(source_of(tmp_path))
    assert f"{tmp_path}/deep/up: leads to {tmp_path}" in message
    assert "remove the link" in message


def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    write_files(tmp_path, "a.txt")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    assert f"{tmp_path}/gone.txt: cannot read: No such file" in failure(source_of(tmp_path))


def test_a_pipe_is_named_and_not_waited_for(tmp_path: Path) -> None:
    write_files(tmp_path, "a.txt")
    os.mkfifo(tmp_path / "pipe")
    assert f"{tmp_path}/pipe: not a regular file" in failure(source_of(tmp_path))


def test_a_file_name_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")).write_text("text\n")
    message = failure(source_of(tmp_path))
    assert "caf\\udce9.txt: the file's name is not UTF-8" in message


def test_what_may_not_be_read_is_named() -> None:
    code = """
import os, sys
from pipeline.source_config import SourceConfig
from pipeline.corpus import list_files
from pipeline.errors import InputError
if os.getuid() == 0:
    os.setuid(65534)
for name in ("file", "folder"):
    try:
        list_files(SourceConfig(name="s", format="text", path=f"{sys.argv[1]}/{name}"), 0)
    except InputError as error:
        print(error)
"""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        write_files(folder, "file/secret.txt", "folder/secret/a.txt", "folder/b.txt")
        (folder / "file/secret.txt").chmod(0)
        (folder / "folder/secret").chmod(0)
        done = subprocess.run(
            [sys.executable, "-c", code, name],
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            timeout=60,
        )
        (folder / "folder/secret").chmod(0o700)
    assert done.returncode == 0, done.stderr
    file, directory = done.stdout.splitlines()
    assert f"{name}/file/secret.txt: cannot read: Permission denied; give this user" in file
    assert f"{name}/folder/secret: cannot list: Permission denied; give this user" in directory


def test_a_file_cut_short_after_planning_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\ntwo\n")
    source = source_of(path)
    (split,) = plan_splits(source, list_files(source, 0), WHOLE)
    path.write_bytes(b"one\n")
    with pytest.raises(
        InputError, match=r"a\.txt: ends at byte 4, before byte 9: it was cut short"
    ):
        list(read_split(source, split, ReadReport()))


def test_a_files_checksum_and_size_are_those_of_its_bytes(tmp_path: Path) -> None:
    write_files(tmp_path, "a.txt")
    (file,) = list_files(source_of(tmp_path), 0)
    data = (tmp_path / "a.txt").read_bytes()
    assert file.bytes == len(data)
    assert file.checksum == hashlib.sha256(data).hexdigest()


def test_a_large_files_checksum_is_that_of_its_blocks_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_HASHED_BLOCK_BYTES", 10)
    monkeypatch.setattr(files, "_READ_BYTES", 4)
    for size in (10, 11, 40, 45):
        data = bytes(range(size))
        (tmp_path / f"{size}.txt").write_bytes(data)
        (file,) = list_files(source_of(tmp_path / f"{size}.txt"), 0)
        digests = [hashlib.sha256(data[start : start + 10]) for start in range(0, size, 10)]
        whole = hashlib.sha256(b"".join(one.digest() for one in digests))
        assert file.checksum == (digests[0] if size == 10 else whole).hexdigest()


def test_a_byte_limit_takes_files_in_an_order_of_the_seed(tmp_path: Path) -> None:
    write_files(tmp_path, *(f"{number:02d}.txt" for number in range(30)))
    plain = names_of(source_of(tmp_path))
    assert plain == sorted(plain)
    limited = source_of(tmp_path, limit_bytes=10)
    orders = [[file.path for file in list_files(limited, seed)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert orders[0] != plain
    assert all(sorted(order) == plain for order in orders)


def test_temporary_files_are_left_out_and_counted(tmp_path: Path) -> None:
    left = ["_SUCCESS", "_temporary/0/a", "b.tmp", "c.txt.part", "d~", ".e.crc", "f.crc", "g.lock"]
    write_files(tmp_path, "a.txt", "sub/part-0", *left)
    report = ReadReport()
    files = list_files(source_of(tmp_path), 0, report)
    assert [file.path for file in files] == ["a.txt", "sub/part-0"]
    assert report.counts == {"hidden_left_out": 1, "temporary_left_out": 7}
    assert f"{tmp_path}/_SUCCESS: temporary, left out" in report.places
    # A pattern leaves them out too, unless it spells them out.
    assert names_of(source_of(tmp_path / "*")) == ["a.txt"]
    assert names_of(source_of(tmp_path / "*.tmp")) == ["b.tmp"]
    assert names_of(source_of(tmp_path / "_temporary/**/a")) == ["0/a"]
    assert names_of(source_of(tmp_path / "_SUCCESS")) == ["_SUCCESS"]


def test_a_list_names_files_relative_to_itself(tmp_path: Path) -> None:
    write_files(tmp_path, "lists/a.txt", "b.txt", "deep/c.txt", "lists/_d.tmp")
    text = f"a.txt\r\n../b.txt\n\n_d.tmp\n{tmp_path}/deep/c.txt\n"
    (tmp_path / "lists/all.lst").write_text(text, encoding="utf-8-sig", newline="")
    files = list_files(source_of(f"@{tmp_path}/lists/all.lst"), 0)
    assert [file.path for file in files] == sorted(
        ["a.txt", "../b.txt", "_d.tmp", f"{tmp_path}/deep/c.txt"]
    )
    assert {Path(file.location).read_text() for file in files} == {
        f"text of {name}\n" for name in ("lists/a.txt", "b.txt", "deep/c.txt", "lists/_d.tmp")
    }


def test_what_is_wrong_with_a_list_is_named_with_its_line(tmp_path: Path) -> None:
    write_files(tmp_path, "a.txt")
    listed = tmp_path / "all.lst"
    listed.write_text("a.txt\nabsent.txt\n")
    message = failure(source_of(f"@{listed}"))
    assert f"{listed}: line 2: absent.txt: no such file; correct the list" in message
    (tmp_path / "x").mkdir()
    (tmp_path / "link.txt").symlink_to("a.txt")
    for again in ("a.txt", "./a.txt", f"{tmp_path}/x/../a.txt", "link.txt"):
        listed.write_text(f"\na.txt\n\n{again}\n")
        message = failure(source_of(f"@{listed}"))
        assert f"{listed}: line 4: {again}: the same file as on line 2; remove" in message
    for name in ("a" * 5000, "nul\0", "~nosuchuser/a.txt"):
        listed.write_text(f"a.txt\n{name}\n")
        assert f"{listed}: line 2: {name[:200]}: " in failure(source_of(f"@{listed}"))
    listed.write_bytes(b"caf\xe9.txt\n")
    assert f"{listed}: cannot read the list of files" in failure(source_of(f"@{listed}"))
    assert "cannot read the list of files" in failure(source_of(f"@{tmp_path}/absent.lst"))


def test_a_file_that_disappears_after_the_listing_is_named(tmp_path: Path) -> None:
    write_files(tmp_path, "a.txt")
    source = source_of(tmp_path)
    (split,) = plan_splits(source, list_files(source, 0), WHOLE)
    (tmp_path / "a.txt").unlink()
    with pytest.raises(InputError) as caught:
        list(read_split(source, split, ReadReport()))
    message = str(caught.value)
    assert f"{tmp_path}/a.txt: cannot read it: No such file or directory; restore it" in message


def test_a_files_name_tells_its_format_where_its_bytes_do_not(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"y\n\nz"))
    (tmp_path / "c.NDJSON").write_text('{"text": "w"}\n')
    found = [(path, text) for path, _, text in read_all(source_of(tmp_path, "auto"))]
    assert found == [("a.jsonl", "x"), ("b.txt", "y"), ("b.txt", "z"), ("c.NDJSON", "w")]
    (tmp_path / "d.data").write_text("what is it")
    message = failure(source_of(tmp_path, "auto"))
    assert f"{tmp_path}/d.data: neither its name nor its first bytes say" in message
    assert "set documents.sources[s].format" in message


def test_a_file_changed_while_it_is_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\ntwo\n")
    os.utime(path, (1, 1))
    source = source_of(path)
    (split,) = plan_splits(source, list_files(source, 0), WHOLE)
    documents = read_split(source, split, ReadReport())
    assert next(documents).text == "one"
    path.write_bytes(b"one\n\nnew\n")
    with pytest.raises(InputError, match=r"a\.txt: changed since the job was planned"):
        list(documents)


def rows(count: int, word: str) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": [word] * count}), sink, row_group_size=5)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"Old text.\n\nTwo.\n", b"New TEXT.\n\nTwo.\n"),
        (b"Old text.\n\nTwo.\n", b"Old text.\n\nTwo.\n\nThree.\n"),
        (gzip.compress(b"Old text."), gzip.compress(b"Old text. And more.")),
        (rows(10, "old"), rows(1000, "new")),
        (rows(10, "old"), rows(10, "new")),
    ],
)
def test_a_file_changed_after_the_listing_is_named(
    tmp_path: Path, before: bytes, after: bytes
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(before)
    os.utime(path, (1, 1))  # file systems keep time in steps of milliseconds
    source = source_of(path, "parquet" if before.startswith(b"PAR1") else "text")
    files = list_files(source, 0)
    splits = plan_splits(source, files, 8)
    path.write_bytes(after)
    expected = rf"{re.escape(str(path))}: changed since the job was planned"
    for split in splits:
        with pytest.raises(InputError, match=expected):
            list(read_split(source, split, ReadReport()))
    with pytest.raises(InputError, match=expected):
        plan_splits(source, files, 8)
    # The same bytes at another time may have been others in between.
    path.write_bytes(before)
    with pytest.raises(InputError, match=expected):
        list(read_split(source, splits[0], ReadReport()))


@pytest.mark.parametrize("pattern", ["", "**", "**/*.txt", "d*/**"])
def test_links_that_lead_round_or_to_a_folder_twice_are_refused(
    tmp_path: Path, pattern: str
) -> None:
    write_files(tmp_path, "root/deep/a.txt", "elsewhere/b.txt")
    root = tmp_path / "root"
    source = source_of(root / pattern if pattern else root)
    assert len(names_of(source)) == 1
    link = root / "deep/link"
    link.symlink_to(root / "deep")  # round
    assert f"{link}: leads to {root}/deep, which {root}/deep is already" in failure(source)
    link.unlink()
    for target in ("one", "two"):
        (root / "deep" / target).symlink_to(tmp_path / "elsewhere")
    assert f"{root}/deep/two: leads to {tmp_path}/elsewhere, which" in failure(source)
    (root / "deep/two").unlink()
    assert len(names_of(source)) == 2


@pytest.mark.parametrize("pattern", ["", "*", "*.txt", "**/*.txt"])
def test_a_file_that_links_lead_to_twice_is_refused(tmp_path: Path, pattern: str) -> None:
    write_files(tmp_path, "a.txt", "b.txt")
    source = source_of(tmp_path / pattern if pattern else tmp_path)
    (tmp_path / "0.txt").symlink_to("b.txt")
    message = failure(source)
    assert f"{tmp_path}/0.txt: leads to {tmp_path}/b.txt, which {tmp_path}/b.txt does" in message
    assert "its documents would be read twice" in message


@pytest.mark.parametrize("pattern", ["", "*", "*.txt", "**/*.txt", "broken.txt"])
def test_broken_links_and_pipes_are_refused(tmp_path: Path, pattern: str) -> None:
    write_files(tmp_path, "a.txt")
    source = source_of(tmp_path / pattern if pattern else tmp_path)
    (tmp_path / "broken.txt").symlink_to("absent")
    assert f"{tmp_path}/broken.txt: cannot read: No such file" in failure(source)
    (tmp_path / "broken.txt").unlink()
    os.mkfifo(tmp_path / "broken.txt")
    assert f"{tmp_path}/broken.txt: not a regular file; take it out" in failure(source)


def test_a_pattern_matches_as_a_shell_does(tmp_path: Path) -> None:
    names = ["a.txt", "d/b.txt", "d/e/c.txt", "d/e/[x].md", "f/.h/g.txt", "f/_t/i.txt"]
    write_files(tmp_path, *names)
    report = ReadReport()
    assert [one.path for one in list_files(source_of(tmp_path / "**/*.txt"), 0, report)] == names[
        :3
    ]
    assert report.counts == {"hidden_left_out": 1, "temporary_left_out": 1}
    assert names_of(source_of(tmp_path / "**/[[]x].md")) == ["d/e/[x].md"]
    assert names_of(source_of(tmp_path / "d/**/c.txt")) == ["e/c.txt"]
    assert names_of(source_of(tmp_path / "?/**/e/*.txt")) == ["d/e/c.txt"]
    assert names_of(source_of(tmp_path / "**/.h/*")) == ["f/.h/g.txt"]


@pytest.mark.parametrize("path", ["/tmp/" + "a" * 5000, "~nosuchuser/x.txt", "a\0b"])
def test_a_path_that_the_system_does_not_take_is_named(path: str) -> None:
    assert f"documents.sources[s].path = {path[:200]}: " in failure(source_of(path))
    assert path[:150] in failure(source_of(f"@{path}"))
