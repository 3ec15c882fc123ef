"""Shards: what is written is read back by range, and every changed byte is found."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import MaskingConfig
from pipeline.contract import ObjectEntry, ShardEntry, shard_schema
from pipeline.errors import CorruptError
from pipeline.instance_rows import InstanceRows
from pipeline.shards import (
    _row_faults,
    instance_rows,
    read_batch,
    record_batch,
    shard_faults,
    write_shard,
)
from pipeline.storage import LocalStorage
from tests.pipeline.small_run import VOCABULARY, masked_rows, random_rows

COLUMNS = [field.name for field in dataclasses.fields(InstanceRows)]
PREFIX = "instances/f"


def write(
    rows: InstanceRows,
    *,
    start: int = 0,
    end: int | None = None,
    rows_per_batch: int = 16,
    vocab_size: int = len(VOCABULARY),
) -> tuple[dict[str, bytes], ShardEntry, pa.Schema]:
    schema = shard_schema(
        vocab_size=vocab_size,
        objective="nsp",
        word_starts=False,
        static_masking=rows.masked_offsets is not None,
    )
    objects, entry = write_shard(
        rows,
        schema,
        name="train-00000-00000",
        split="train",
        start=start,
        end=rows.rows if end is None else end,
        rows_per_batch=rows_per_batch,
        first_instance=7,
    )
    return objects, entry, schema


def store(tmp_path: Path, objects: dict[str, bytes]) -> LocalStorage:
    storage = LocalStorage(str(tmp_path))
    for name, data in objects.items():
        storage.create(f"{PREFIX}/{name}", data)
    return storage


def ragged(values: Any, offsets: Any) -> list[list[int]]:
    return [values[start:end].tolist() for start, end in itertools.pairwise(offsets)]


def as_lists(rows: InstanceRows, start: int = 0, end: int | None = None) -> list[Any]:
    """One tuple an instance, whatever the arrays' layout."""
    columns = [
        ragged(rows.input_ids, rows.offsets),
        rows.first_segment_length.tolist(),
        rows.pair_labels.tolist(),
    ]
    if rows.masked_offsets is not None:
        columns.append(ragged(rows.masked_positions, rows.masked_offsets))
        columns.append(ragged(rows.masked_lm_ids, rows.masked_offsets))
    return list(zip(*columns, strict=True))[start:end]


@pytest.mark.parametrize("static", [False, True])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_range_of_rows_is_read_back_batch_by_batch(
    static: bool, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = random_rows(data.draw(st.integers(0, 40)), seed=data.draw(st.integers(0, 9)))
    if static:
        rows = masked_rows(rows, 0, MaskingConfig())
    start = data.draw(st.integers(0, rows.rows))
    end = data.draw(st.integers(start, rows.rows))
    rows_per_batch = data.draw(st.integers(1, 20))
    objects, entry, schema = write(rows, start=start, end=end, rows_per_batch=rows_per_batch)
    storage = store(tmp_path_factory.mktemp("shard"), objects)
    found = []
    for number in range(len(entry.batch_rows)):
        batch = read_batch(storage, PREFIX, entry, number, schema)
        batch.validate(full=True)
        assert batch.num_rows == entry.batch_rows[number]
        found += as_lists(instance_rows(batch))
    assert found == as_lists(rows, start, end)
    assert all(count == rows_per_batch for count in entry.batch_rows[:-1])
    assert (entry.rows, sum(entry.batch_rows)) == (end - start, end - start)
    assert entry.tokens == rows.offsets[end] - rows.offsets[start]
    assert list(shard_faults(*objects.values(), entry, schema, len(VOCABULARY))) == []


@pytest.mark.parametrize("vocab_size", [65_536, 65_537])
def test_ids_of_a_large_vocabulary_survive(tmp_path: Path, vocab_size: int) -> None:
    rows = random_rows(30, vocab_size=vocab_size)
    rows.input_ids[3] = vocab_size - 1
    objects, entry, schema = write(rows, vocab_size=vocab_size)
    storage = store(tmp_path, objects)
    first = instance_rows(read_batch(storage, PREFIX, entry, 0, schema))
    assert first.input_ids.dtype == rows.input_ids.dtype
    assert first.input_ids[3] == vocab_size - 1
    assert first.rows == 16


def test_the_same_rows_give_the_same_bytes_wherever_they_lie() -> None:
    rows = random_rows(40)
    objects, entry, _ = write(rows, start=10, end=30)
    base = rows.offsets[10]
    moved = InstanceRows(
        input_ids=rows.input_ids[base : rows.offsets[30]].copy(),
        offsets=rows.offsets[10:31] - base,
        first_segment_length=rows.first_segment_length[10:30].copy(),
        pair_labels=rows.pair_labels[10:30].copy(),
    )
    assert write(moved)[:2] == (objects, entry)


def test_plain_pyarrow_opens_a_shard() -> None:
    rows = random_rows(40)
    objects, entry, schema = write(rows)
    file = pa.ipc.open_file(pa.BufferReader(objects["train-00000-00000.arrow"]))
    assert file.schema == schema
    table = file.read_all()
    assert table.num_rows == 40 and file.num_record_batches == len(entry.batch_rows) == 3
    assert table["input_ids"].to_pylist() == ragged(rows.input_ids, rows.offsets)
    assert table["next_sentence_label"].to_pylist() == rows.pair_labels.tolist()


def test_datasets_opens_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_rows(40)
    for number, (start, end) in enumerate(((0, 25), (25, 40))):
        objects, _, _ = write(rows, start=start, end=end)
        (tmp_path / f"{number}.arrow").write_bytes(objects["train-00000-00000.arrow"])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from datasets import load_dataset  # a second that other tests need not pay

    opened = load_dataset(
        "arrow",
        data_files=[str(tmp_path / "0.arrow"), str(tmp_path / "1.arrow")],
        split="train",
        cache_dir=str(tmp_path / "cache"),
    )
    assert opened["input_ids"][:] == ragged(rows.input_ids, rows.offsets)
    assert opened["next_sentence_label"][:] == rows.pair_labels.tolist()
    assert opened["first_segment_length"][:] == rows.first_segment_length.tolist()


def test_the_lengths_sidecar_holds_two_bytes_a_row() -> None:
    rows = random_rows(40)
    objects, entry, _ = write(rows, start=5)
    lengths = objects["train-00000-00000.lengths"]
    assert np.frombuffer(lengths, "<u2").tolist() == np.diff(rows.offsets)[5:].tolist()
    assert entry.lengths == ObjectEntry.of("train-00000-00000.lengths", lengths)


def test_a_flipped_byte_anywhere_in_a_record_batch_is_found(tmp_path: Path) -> None:
    objects, entry, schema = write(random_rows(200), rows_per_batch=64)
    storage = store(tmp_path, objects)
    path = tmp_path / PREFIX / entry.object.name
    data = path.read_bytes()
    assert entry.batch_offsets[-1] - entry.batch_offsets[0] > 2_000
    for position in range(entry.batch_offsets[0], entry.batch_offsets[-1], 97):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        for number, batch_rows in enumerate(entry.batch_rows):
            start, end = entry.batch_offsets[number : number + 2]
            if start <= position < end:
                message = rf"bytes {start} to {end} \(record batch {number}\): CRC-32"
                with pytest.raises(CorruptError, match=message) as caught:
                    read_batch(storage, PREFIX, entry, number, schema)
                assert str(path) in str(caught.value)
            else:
                assert read_batch(storage, PREFIX, entry, number, schema).num_rows == batch_rows


def test_a_shard_cut_short_is_named_with_both_sizes(tmp_path: Path) -> None:
    objects, entry, schema = write(random_rows(40))
    storage = store(tmp_path, objects)
    path = tmp_path / PREFIX / entry.object.name
    end = entry.batch_offsets[2]
    path.write_bytes(path.read_bytes()[: end - 1])
    assert read_batch(storage, PREFIX, entry, 0, schema).num_rows == 16
    with pytest.raises(CorruptError) as caught:
        read_batch(storage, PREFIX, entry, 1, schema)
    assert f"{path}: ends before byte {end}" in str(caught.value)
    assert f"{entry.object.bytes} bytes: it was cut short" in str(caught.value)


def faults(
    objects: dict[str, bytes], entry: ShardEntry, schema: pa.Schema, vocab_size: int = 1000
) -> str:
    """The faults of a shard as one text, empty where there is none."""
    data, lengths = objects.values()
    return "\n".join(shard_faults(data, lengths, entry, schema, vocab_size))


def test_a_shard_of_another_schema_is_a_fault() -> None:
    objects, entry, _ = write(random_rows(20))
    other = shard_schema(
        vocab_size=len(VOCABULARY), objective="nsp", word_starts=False, static_masking=True
    )
    assert faults(objects, entry, other).startswith("schema is ")


def test_wrong_rows_tokens_and_batches_are_faults() -> None:
    objects, entry, schema = write(random_rows(20))
    assert faults(objects, entry, schema) == ""

    def changed(**fields: Any) -> str:
        return faults(objects, dataclasses.replace(entry, **fields), schema)

    assert f"the manifest says 21 and {entry.tokens}" in changed(rows=21)
    assert "the manifest says 20 and 1" in changed(tokens=1)
    assert "record batch 1: 4 rows, not 5" in changed(batch_rows=(16, 5))
    assert "2 record batches, the manifest says 1" in changed(batch_rows=(20,))
    assert "record batch 0: CRC-32" in changed(batch_crc32=(1, entry.batch_crc32[1]))


def test_an_id_beyond_the_vocabulary_is_a_fault() -> None:
    rows = random_rows(20)
    rows.input_ids[-2] = 500
    objects, entry, schema = write(rows)
    assert faults(objects, entry, schema, 501) == ""
    assert faults(objects, entry, schema, 500) == "record batch 1: id 500 beyond 500 entries"


def test_a_segment_longer_than_its_row_is_a_fault() -> None:
    rows = random_rows(20)
    rows.first_segment_length[3] = 1000
    objects, entry, schema = write(rows)
    assert "record batch 0: first_segment_length beyond the row" in faults(objects, entry, schema)


def test_masks_outside_their_row_or_the_vocabulary_are_faults() -> None:
    rows = masked_rows(random_rows(20), 0, MaskingConfig())
    assert rows.masked_positions is not None and rows.masked_lm_ids is not None
    objects, entry, schema = write(rows)
    assert faults(objects, entry, schema) == ""
    rows.masked_positions[0] = 999
    rows.masked_lm_ids[1] = 2000
    objects, entry, schema = write(rows)
    found = faults(objects, entry, schema)
    assert "record batch 0: masked_lm_positions beyond the row" in found
    assert "record batch 0: masked id 2000 beyond 1000 entries" in found


def test_a_sidecar_of_other_lengths_is_a_fault() -> None:
    objects, entry, schema = write(random_rows(20))
    name = entry.lengths.name
    for lengths in (objects[name][:-2], objects[name][2:] + objects[name][:2]):
        assert "lengths sidecar differs" in faults({**objects, name: lengths}, entry, schema)


def test_bytes_that_are_no_arrow_file_are_a_fault() -> None:
    objects, entry, schema = write(random_rows(20))
    name = entry.object.name
    for data in (b"", b"no arrow", objects[name][:-9], objects[name][:100]):
        assert "not a valid Arrow file" in faults({**objects, name: data}, entry, schema)


def test_labels_and_word_starts_that_make_no_sense_are_faults() -> None:
    rows = random_rows(20)
    assert rows.pair_labels is not None
    rows.pair_labels[4] = 2
    objects, entry, schema = write(rows)
    assert faults(objects, entry, schema) == "record batch 0: a pair label other than 0 and 1"

    rows = dataclasses.replace(
        random_rows(20), pair_labels=None, word_starts=np.ones(1000, np.bool_)
    )
    schema = shard_schema(
        vocab_size=len(VOCABULARY), objective="sentence", word_starts=True, static_masking=False
    )
    short = pa.array([[True]] * 20, schema.field("word_starts").type)
    batch = record_batch(rows, schema, 0, 20).set_column(2, schema.field(2), short)
    read = instance_rows(batch)
    assert "20 word_starts for" in " ".join(_row_faults(read, 10_000, 1))
