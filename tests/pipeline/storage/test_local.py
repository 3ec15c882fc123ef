"""The local store: create if absent, atomic replacement, and every failure explained."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pipeline.errors import ClozelineError, ConflictError, LastingStorageError, StorageError
from pipeline.storage import (
    TEMPORARY_PREFIX,
    LocalStorage,
    absolute_uri,
    open_storage,
    sha256,
)

CHECKOUT = Path(__file__).parents[3]
NOBODY = 65534
DEADLINE_SECONDS = 60


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path / "store"))


def run_python(code: str, *arguments: str, prefix: Sequence[str] = ()) -> str:
    """Run code in a process of its own; returns what it printed."""
    done = subprocess.run(
        [*prefix, sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def files_below(path: Path) -> list[str]:
    return sorted(one.relative_to(path).as_posix() for one in path.rglob("*") if one.is_file())


def test_what_was_created_is_read_back_whole_and_by_range(storage: LocalStorage) -> None:
    storage.create("a/b.bin", b"0123456789")
    assert storage.read("a/b.bin") == b"0123456789"
    assert storage.view("a/b.bin") == b"0123456789"
    assert storage.read_range("a/b.bin", 2, 3) == b"234"
    assert storage.read_range("a/b.bin", 8, 5) == b"89"
    assert storage.read_range("a/b.bin", 20, 5) == b""
    assert storage.size("a/b.bin") == 10
    assert storage.size("a/c.bin") is None
    assert storage.size("a/b.bin/c") is None
    assert files_below(storage.root) == ["a/b.bin"]


def test_an_empty_object_is_an_object(storage: LocalStorage) -> None:
    storage.create("empty", b"")
    assert storage.size("empty") == 0
    assert storage.view("empty") == storage.read("empty") == b""
    storage.create("empty", b"")
    with pytest.raises(ConflictError):
        storage.create("empty", b"x")


def test_creating_the_same_bytes_again_is_a_retry_and_other_bytes_a_conflict(
    storage: LocalStorage,
) -> None:
    storage.create("x", b"ours")
    storage.create("x", b"ours")
    with pytest.raises(ConflictError) as caught:
        storage.create("x", b"theirs")
    message = str(caught.value)
    for part in (f"{storage.root}/x", sha256(b"ours"), sha256(b"theirs"), "4 bytes", "6 bytes"):
        assert part in message
    assert storage.read("x") == b"ours"
    assert files_below(storage.root) == ["x"]


def race(count: int, work: Callable[[int], None]) -> list[Exception | None]:
    """Run `work(number)` in threads that start together; returns each one's failure."""
    barrier = threading.Barrier(count)
    failures: list[Exception | None] = [None] * count

    def one(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except ClozelineError as error:
            failures[number] = error

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def test_a_race_for_one_name_has_exactly_one_winner(storage: LocalStorage) -> None:
    for turn in range(5):
        contents = [f"{turn} of writer {number}".encode() * 100 for number in range(16)]
        failures = race(16, lambda number: storage.create(f"n{turn}", contents[number]))  # noqa: B023
        winners = [number for number, failure in enumerate(failures) if failure is None]
        assert len(winners) == 1
        assert all(isinstance(one, ConflictError) for one in failures if one is not None)
        assert storage.read(f"n{turn}") == contents[winners[0]]
    assert files_below(storage.root) == [f"n{turn}" for turn in range(5)]


def test_a_race_of_equal_writers_has_no_loser(storage: LocalStorage) -> None:
    failures = race(16, lambda number: storage.create("deep/er/n", b"same" * 1000))
    assert failures == [None] * 16
    assert files_below(storage.root) == ["deep/er/n"]


def test_a_reader_sees_the_old_or_the_new_bytes_of_a_replaced_pointer(
    storage: LocalStorage,
) -> None:
    versions = [bytes([65 + number]) * 50_000 for number in range(8)]
    storage.replace("p", versions[0])
    done = threading.Event()
    seen: set[bytes] = set()

    def watch() -> None:
        while not done.is_set():
            seen.add(storage.read("p"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for turn in range(40):
        storage.replace("p", versions[turn % 8])
    done.set()
    watcher.join()
    assert seen <= set(versions)
    assert storage.read("p") == versions[39 % 8]
    assert files_below(storage.root) == ["p"]


def test_replace_if_swaps_only_what_is_expected(storage: LocalStorage) -> None:
    assert not storage.replace_if("p", b"1", b"2")
    assert storage.size("p") is None
    assert storage.replace_if("p", None, b"1")
    assert not storage.replace_if("p", None, b"2")
    assert storage.replace_if("p", b"1", b"2")
    assert storage.read("p") == b"2"


def test_a_race_to_swap_one_pointer_has_exactly_one_winner(storage: LocalStorage) -> None:
    storage.replace_if("p", None, b"start")
    won: list[int] = []

    def swap(number: int) -> None:
        if storage.replace_if("p", b"start", f"writer {number}".encode()):
            won.append(number)

    assert race(16, swap) == [None] * 16
    assert len(won) == 1
    assert storage.read("p") == f"writer {won[0]}".encode()


def test_list_names_objects_of_every_depth_in_order(storage: LocalStorage) -> None:
    for name in ("s/b", "s/a/z", "s/a/y", "t/x"):
        storage.create(name, name.encode())
    assert list(storage.list("s/")) == [("s/a/y", 5), ("s/a/z", 5), ("s/b", 3)]
    assert list(storage.list("absent/")) == []


def test_deleting_is_idempotent(storage: LocalStorage) -> None:
    storage.create("x", b"1")
    storage.delete("x")
    storage.delete("x")
    assert storage.size("x") is None


def test_a_folder_goes_with_its_last_object(storage: LocalStorage) -> None:
    for name in ("s/a/x", "s/a/y", "s/z"):
        storage.create(name, b"1")
    storage.delete("s/a/x")
    assert (storage.root / "s/a").is_dir()
    storage.delete("s/a/y")
    assert [one.name for one in (storage.root / "s").iterdir()] == ["z"]
    storage.delete("s/z")
    assert list(storage.root.iterdir()) == []


def test_a_root_that_cannot_be_written_is_refused_before_the_work(open_folder: Path) -> None:
    (open_folder / "file").write_text("")
    with pytest.raises(StorageError, match="a file is in the way of a directory"):
        LocalStorage(str(open_folder / "file")).prepare()
    (open_folder / "locked").mkdir(mode=0o555)
    (open_folder / "locked").chmod(0o555)
    code = textwrap.dedent(AS_NOBODY) + "refused(storage.prepare)\n"
    assert "cannot write: Permission denied" in run_python(code, str(open_folder / "locked"))
    LocalStorage(str(open_folder / "new/root")).prepare()
    assert (open_folder / "new/root").is_dir()


def test_a_writer_killed_in_the_middle_leaves_no_partial_object(tmp_path: Path) -> None:
    code = """
        import sys
        from pipeline.storage import LocalStorage
        storage = LocalStorage(sys.argv[1])
        data = sys.argv[2].encode() * 3_000_000
        number = 0
        while True:
            storage.create(f"{sys.argv[2]}/object-{number}", data)
            storage.replace("pointer", data)
            number += 1
    """
    storage = LocalStorage(str(tmp_path))
    for letter in "abcd":
        writer = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), str(tmp_path), letter], cwd=CHECKOUT
        )
        try:
            deadline = time.monotonic() + DEADLINE_SECONDS
            while not (tmp_path / letter).is_dir():
                assert writer.poll() is None
                assert time.monotonic() < deadline
            # Anywhere between its first bytes and some objects later.
            time.sleep(0.03 * "abcd".index(letter))
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        for name, size in storage.list(letter):
            if not Path(name).name.startswith(TEMPORARY_PREFIX):
                assert size == 3_000_000
                assert storage.read(name) == letter.encode() * 3_000_000
        # The name a killed writer was at is free, or holds the whole object.
        storage.create(f"{letter}/object-0", letter.encode() * 3_000_000)
    if storage.size("pointer") is not None:
        pointer = storage.read("pointer")
        assert len(pointer) == 3_000_000 and len(set(pointer)) == 1


def test_a_full_disk_is_explained_and_loses_nothing(tmp_path: Path) -> None:
    code = """
        import errno, resource, signal, subprocess, sys
        from pipeline.errors import StorageError
        from pipeline.storage import LocalStorage, TEMPORARY_PREFIX
        root, kind = sys.argv[1:]
        if kind == "disk":
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", root], check=True)
        else:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        storage = LocalStorage(root)
        storage.create("kept", b"k" * 500_000)
        storage.replace("pointer", b"old")
        for write in (storage.create, storage.replace):
            try:
                write("pointer" if write == storage.replace else "big", b"b" * 2_000_000)
                raise SystemExit("the write was taken")
            except StorageError as error:
                assert type(error) is StorageError  # room may be made, so it does not last
                print(error)
        assert storage.read("kept") == b"k" * 500_000
        assert storage.read("pointer") == b"old"
        assert [name for name, _ in storage.list("")] == ["kept", "pointer"]
        storage.create("small", b"still works")
    """
    # A disk of 1 MB in a mount namespace of its own, where the system lets us have one; else a
    # limit on the size of files, which fails the same write in the same place.
    prefix = ["unshare", "--map-root-user", "--mount"]
    permitted = (
        shutil.which("unshare")
        and not subprocess.run(
            [*prefix, "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)],
            capture_output=True,
        ).returncode
    )
    if permitted:
        printed = run_python(code, str(tmp_path), "disk", prefix=prefix)
        reason = "No space left on device; free space on that disk or move `root`"
    else:
        printed = run_python(code, str(tmp_path), "limit")
        reason = "File too large; free space on that disk or move `root`"
    big, pointer = printed.splitlines()
    assert f"{tmp_path}/big: cannot write: {reason}" in big
    assert f"{tmp_path}/pointer: cannot write: {reason}" in pointer


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may reach (pytest's own is for its user alone)."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


AS_NOBODY = f"""
    import os, sys
    from pipeline.errors import LastingStorageError
    from pipeline.storage import LocalStorage
    if os.getuid() == 0:
        os.setuid({NOBODY})
    storage = LocalStorage(sys.argv[1])

    def refused(work):
        try:
            work()
        except LastingStorageError as error:
            print(error)
        else:
            raise SystemExit("it was permitted")
"""


def test_a_folder_without_write_permission_is_explained(open_folder: Path) -> None:
    locked = open_folder / "locked"
    locked.mkdir()
    LocalStorage(str(locked)).create("old", b"1")
    locked.chmod(0o555)
    code = textwrap.dedent(AS_NOBODY) + textwrap.dedent("""
        refused(lambda: storage.create("new", b"2"))
        refused(lambda: storage.create("folder/new", b"2"))
        refused(lambda: storage.replace("old", b"2"))
        refused(lambda: storage.replace_if("pointer", None, b"2"))
        refused(lambda: storage.delete("old"))
        assert storage.read("old") == b"1"
    """)
    lines = run_python(code, str(locked)).splitlines()
    names = ("new", "folder/new", "old", "pointer", "old")
    for line, name, action in zip(lines, names, [*["write"] * 4, "delete"], strict=True):
        assert line.startswith(f"{locked}/{name}: cannot {action}: Permission denied;")
        assert f"give this user the right to {action} there or change `root`" in line


def test_objects_that_may_not_be_read_are_never_passed_over(open_folder: Path) -> None:
    storage = LocalStorage(str(open_folder))
    storage.create("secret/x", b"1")
    (open_folder / "secret").chmod(0o700 if os.getuid() == 0 else 0)
    code = textwrap.dedent(AS_NOBODY) + textwrap.dedent("""
        refused(lambda: storage.read("secret/x"))
        refused(lambda: storage.size("secret/x"))
        refused(lambda: list(storage.list("")))
    """)
    try:
        lines = run_python(code, str(open_folder)).splitlines()
    finally:
        (open_folder / "secret").chmod(0o700)
    assert len(lines) == 3
    assert all("Permission denied" in line for line in lines)


def test_a_file_in_the_way_of_a_folder_is_explained(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    storage = LocalStorage(str(tmp_path / "store"))
    for name in ("x", "deep/x"):
        for write in (storage.create, storage.replace):
            with pytest.raises(LastingStorageError, match="a file is in the way of a directory"):
                write(name, b"1")
    assert (tmp_path / "store").read_text() == "a file"


def test_a_folder_in_the_way_of_an_object_is_named(storage: LocalStorage) -> None:
    storage.create("x/y", b"1")
    for write in (storage.create, storage.replace):
        with pytest.raises(LastingStorageError, match=r"store/x: cannot write: Is a directory"):
            write("x", b"2")
    assert files_below(storage.root) == ["x/y"]


def test_an_absent_object_is_named(storage: LocalStorage) -> None:
    for read in (lambda: storage.read("a/b"), lambda: storage.read_range("a/b", 0, 1)):
        with pytest.raises(LastingStorageError, match=r"store/a/b: cannot read: No such file"):
            read()


def test_an_unknown_scheme_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"ftp://x/y: unknown scheme; use a local path or s3"):
        open_storage("ftp://x/y")
    assert isinstance(open_storage(str(tmp_path)), LocalStorage)


def test_a_relative_root_is_made_absolute_once() -> None:
    assert absolute_uri("s3://bucket/x") == "s3://bucket/x"
    assert absolute_uri("runs/x") == str(Path.cwd() / "runs/x")
    storage = LocalStorage("runs/x")
    assert storage.root == Path.cwd() / "runs/x"


def test_objects_are_readable_by_other_users(storage: LocalStorage) -> None:
    storage.create("x", b"1")
    storage.replace("y", b"1")
    assert (storage.root / "x").stat().st_mode & 0o777 == 0o644
    assert (storage.root / "y").stat().st_mode & 0o777 == 0o644
