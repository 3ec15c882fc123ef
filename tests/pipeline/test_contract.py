"""The contract between stages: schemas, entries and deterministic JSON."""

from __future__ import annotations

import json
import math
import socket

import pyarrow as pa
import pytest

from pipeline.contract import (
    DOCUMENT_SCHEMA,
    ObjectEntry,
    ShardEntry,
    byte_shaping_versions,
    canonical_json,
    fingerprint,
    require_versions,
    shard_schema,
    token_type,
)
from pipeline.errors import ClusterError


@pytest.mark.parametrize(
    ("vocab_size", "kind"), [(64, pa.uint16()), (65_536, pa.uint16()), (65_537, pa.uint32())]
)
def test_token_ids_are_as_narrow_as_the_vocabulary_allows(
    vocab_size: int, kind: pa.DataType
) -> None:
    assert token_type(vocab_size) == kind
    schema = shard_schema(
        vocab_size=vocab_size, objective="nsp", word_starts=False, static_masking=True
    )
    assert schema.field("input_ids").type.value_type == kind
    assert schema.field("masked_lm_ids").type.value_type == kind


def test_shard_columns_are_those_of_the_contract() -> None:
    dynamic = shard_schema(vocab_size=100, objective="nsp", word_starts=False, static_masking=False)
    assert dynamic.names == ["input_ids", "first_segment_length", "next_sentence_label"]
    static = shard_schema(vocab_size=100, objective="nsp", word_starts=False, static_masking=True)
    assert static.names == [*dynamic.names, "masked_lm_positions", "masked_lm_ids"]
    assert static.field("masked_lm_positions").type.value_type == pa.uint16()
    assert static.field("next_sentence_label").type == pa.int8()
    assert not any(field.nullable for field in [*static, *DOCUMENT_SCHEMA])


def test_canonical_json_depends_on_values_alone() -> None:
    one = canonical_json({"b": [1, (2, 3)], "a": {"y": "é", "x": None}})
    other = canonical_json({"a": {"x": None, "y": "é"}, "b": (1, [2, 3])})
    assert one == other
    assert one.endswith(b"}\n")
    assert "é".encode() in one
    assert json.loads(one) == {"a": {"x": None, "y": "é"}, "b": [1, [2, 3]]}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_has_not_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"loss": value})


def test_a_shard_entry_survives_json() -> None:
    entry = ShardEntry(
        object=ObjectEntry.of("train-0.arrow", b"data"),
        lengths=ObjectEntry.of("train-0.lengths", b"\x01\x00"),
        split="train",
        rows=1,
        tokens=1,
        first_instance=1 << 40,
        batch_offsets=(8, 12),
        batch_rows=(1,),
        batch_tokens=(1,),
        batch_crc32=(7,),
    )
    assert ShardEntry.from_json(json.loads(canonical_json(entry.to_json()))) == entry


def test_versions_that_shape_bytes_are_named() -> None:
    versions = byte_shaping_versions()
    assert set(versions) == {"icu", "pyarrow", "tokenizers", "unicode"}
    assert versions["pyarrow"] == pa.__version__
    assert all(versions.values())


@pytest.mark.parametrize("library", sorted(byte_shaping_versions()))
def test_another_version_of_a_library_makes_another_generation(library: str) -> None:
    def named(versions: dict[str, str]) -> str:
        return fingerprint("instances", identity={"seed": 0}, inputs={}, versions=versions)

    ours = byte_shaping_versions()
    assert named({**ours, library: "0.0"}) != named(ours)
    assert named(ours) == fingerprint("instances", identity={"seed": 0}, inputs={})


def test_a_worker_with_other_versions_than_the_driver_is_named_with_both() -> None:
    ours = byte_shaping_versions()
    require_versions(ours)
    with pytest.raises(ClusterError) as caught:
        require_versions({**ours, "icu": "0.0"})
    message = f"{socket.gethostname()}: icu {ours['icu']} where the driver has 0.0: its bytes would"
    assert str(caught.value).startswith(message)
    assert "pyarrow" not in str(caught.value)
