"""metrics.jsonl: a log that was damaged stops no training and no report."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from pipeline.commit import Generation
from pipeline.errors import ConflictError
from pipeline.storage import LocalStorage
from tests.trainer.finished_runs import evaluation_record, train_record
from trainer.attempt_fence import AttemptFence
from trainer.journal import Journal, read_journal, unreadable_lines

GOOD = [train_record(10), evaluation_record(10), train_record(20)]


@pytest.fixture
def generation(tmp_path: Path) -> Generation:
    return Generation(str(tmp_path), "training", "0" * 20)


def write(generation: Generation, *lines: bytes) -> None:
    generation.storage.replace(generation.name("metrics.jsonl"), b"".join(lines))


def line(record: object) -> bytes:
    return json.dumps(record).encode() + b"\n"


@pytest.mark.parametrize(
    "bad",
    [
        b'{"kind": "train", "st\n',
        b"\xff\xfe\n",
        b"[]\n",
        b'{"a": 1}\n',
        b'{"step": "ten", "kind": "train"}\n',
        b'{"step": 5, "kind": "train"}\n',
        b'{"step": 5, "kind": "other"}\n',
        b"0" * 5000 + b"1\n",
    ],
)
def test_lines_that_are_no_records_are_left_out_and_counted(
    generation: Generation, bad: bytes
) -> None:
    write(generation, bad, line(GOOD[0]), bad, line(GOOD[1]), line(GOOD[2]), bad.rstrip())
    assert read_journal(generation) == GOOD
    assert unreadable_lines(generation) == 3


def test_without_a_file_there_are_no_records(generation: Generation) -> None:
    assert read_journal(generation) == []
    assert unreadable_lines(generation) == 0


def test_a_resumed_journal_goes_on_from_the_records_that_are_whole(generation: Generation) -> None:
    write(generation, line(GOOD[0]), b'{"kind"', b"\n", line(GOOD[1]), line(GOOD[2]))
    journal = Journal(AttemptFence.take(generation), 10)
    journal.add(train_record(20, attempt=2))
    journal.close()
    assert read_journal(generation) == [*GOOD[:2], train_record(20, attempt=2)]
    assert unreadable_lines(generation) == 0


def test_an_evaluation_that_is_done_again_takes_the_place_of_the_first(
    generation: Generation,
) -> None:
    write(generation, line(GOOD[0]), line(GOOD[1]))
    journal = Journal(AttemptFence.take(generation), 10)
    warning = {"kind": "warning", "attempt": 2, "step": 10, "text": "passed over"}
    again = {**GOOD[1], "mlm_loss_nats": 1.5}
    for record in (warning, again, train_record(20), evaluation_record(20)):
        journal.add(record)
    journal.close()
    expected = [GOOD[0], warning, again, train_record(20), evaluation_record(20)]
    assert read_journal(generation) == expected


def test_the_first_record_is_written_at_once_and_the_more_there_are_the_rarer(
    generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("trainer.journal.time.monotonic", lambda: now)
    journal = Journal(AttemptFence.take(generation), 0)

    def add_at(seconds: float, step: int, **more: str) -> list[int]:
        """Steps in the store after a record was added at that time."""
        nonlocal now
        now = seconds
        journal.add({**train_record(step), **more})
        if journal._in_flight is not None:
            journal._in_flight.result()
        return [record["step"] for record in read_journal(generation)]

    assert add_at(0.0, 1) == [1]
    assert add_at(4.0, 2) == [1]
    assert add_at(5.0, 3) == [1, 2, 3]
    assert add_at(9.0, 4, note="x" * 20_000_000) == [1, 2, 3]
    assert add_at(24.0, 5) == [1, 2, 3]  # 20 MB wait 20 s
    assert add_at(26.0, 6) == [1, 2, 3, 4, 5, 6]
    journal.close()


def test_a_slow_store_holds_up_nobody_who_adds_records(
    generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    replace = LocalStorage.replace

    def slow(self: LocalStorage, name: str, data: bytes) -> None:
        assert go_on.wait(30)
        replace(self, name, data)

    monkeypatch.setattr(LocalStorage, "replace", slow)
    monkeypatch.setattr("trainer.journal._WRITE_SECONDS", 0.0)
    journal = Journal(AttemptFence.take(generation), 0)
    for step in range(1, 6):  # would wait for ever if it waited for the first
        journal.add(train_record(step))
    go_on.set()
    journal.close()
    assert [record["step"] for record in read_journal(generation)] == [1, 2, 3, 4, 5]


def test_a_failed_write_is_raised_by_the_next_one(
    generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(AttemptFence.take(generation), 0)
    journal.add(train_record(1))
    AttemptFence.take(generation)
    failed = journal.write()
    with pytest.raises(ConflictError, match="superseded"):
        failed.result()
    with pytest.raises(ConflictError, match="superseded"):
        journal.write()
