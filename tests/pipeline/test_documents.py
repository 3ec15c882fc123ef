"""Documents: cleaning, partitions, deduplication, merging; no split of the input matters."""

from __future__ import annotations

import hashlib
import itertools
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import documents
from pipeline.config import DocumentsConfig, SourceConfig
from pipeline.contract import DOCUMENT_SCHEMA
from pipeline.corpus import RawDocument
from pipeline.documents import (
    FINGERPRINT_COLUMNS,
    RUN_SCHEMA,
    PartitionCounts,
    Piece,
    choose_partitions,
    clean_text,
    content_group,
    document_key,
    duplicates,
    grouped_bytes,
    merge_partition,
    read_documents,
    read_piece,
    split_documents,
    write_documents,
)
from pipeline.errors import CorruptError
from pipeline.storage import LocalStorage

SOURCE = SourceConfig(name="news", format="lines", path="unused")
CONFIG = DocumentsConfig(sources=(SOURCE,), held_out_fraction=0.1)
PARTITIONS = PartitionCounts(train=3, held_out=1)

# Text of what cleaning treats each in its own way, and plain letters.
messy_text = st.text(
    st.one_of(
        st.sampled_from(
            "ab.\n\r\t \x00\x0b\x1c\x7f\x85\xa0\u0301\u2028\u2029\u3000\ufeff\ufffd\ud800"
        ),
        st.characters(),
    ),
    max_size=40,
)


def raw_documents(texts: Sequence[str]) -> list[RawDocument]:
    """One file of a document a line: offsets as a reader would give them."""
    raw = []
    offset = 0
    for text in texts:
        raw.append(RawDocument("a/file.txt", offset, text))
        offset += len(text) + 1
    return raw


def some_texts(count: int) -> list[str]:
    """Documents of one to four sentences; every seventh repeats the one before it."""
    texts: list[str] = []
    for number in range(count):
        if number % 7 == 6:
            texts.append(texts[-1])
        else:
            texts.append(
                " ".join(f"Sentence {part} of {number}." for part in range(number % 4 + 1))
            )
    return texts


def run_table(
    raw: Sequence[RawDocument],
    *,
    config: DocumentsConfig = CONFIG,
    partitions: PartitionCounts = PARTITIONS,
    seed: int = 0,
) -> pa.Table:
    return split_documents(raw, SOURCE, config, partitions, seed)[0]


def merged_bytes(splits: Sequence[Sequence[RawDocument]]) -> list[bytes]:
    """The whole core of the stage over these splits: the bytes of every partition's object."""
    tables = [run_table(split) for split in splits]
    groups = PARTITIONS.total
    dropped = []
    for group in range(groups):
        prints = [table.select(list(FINGERPRINT_COLUMNS)) for table in tables]
        mine = [
            part.filter(pa.array(content_group(part["content_hash"], groups) == group))
            for part in prints
        ]
        dropped.append(duplicates(mine))
    result = []
    for partition in range(groups):
        runs = [table.filter(pa.array(column(table, "partition") == partition)) for table in tables]
        unwanted = [
            part.filter(pa.array(column(part, "partition") == partition)) for part in dropped
        ]
        result.append(write_documents(merge_partition(runs, unwanted)))
    return result


def column(table: pa.Table, name: str) -> np.ndarray:
    return np.asarray(table[name])


# Cleaning


@given(messy_text)
def test_cleaning_twice_changes_nothing_more(text: str) -> None:
    once = clean_text(text)
    assert clean_text(once) == once


@given(messy_text)
def test_clean_text_is_nfc_utf8_with_line_feeds_as_its_only_line_ends(text: str) -> None:
    cleaned = clean_text(text)
    assert unicodedata.is_normalized("NFC", cleaned)
    cleaned.encode()
    assert len(f"{cleaned}x".splitlines()) == cleaned.count("\n") + 1
    assert cleaned.count("\n") == text.count("\n")
    assert "  " not in cleaned
    assert not any(unicodedata.category(one) == "Cc" for one in cleaned.replace("\n", ""))


@given(messy_text)
def test_cleaning_keeps_every_other_character(text: str) -> None:
    def content(value: str) -> str:
        kept = [
            one
            for one in value
            if not one.isspace() and unicodedata.category(one) not in ("Cc", "Cs")
        ]
        return (
            unicodedata.normalize("NFC", "".join(kept)).replace("\ufeff", "").replace("\ufffd", "")
        )

    # Compared without white space, which may stand between characters that would compose.
    decomposed = unicodedata.normalize("NFD", content(clean_text(text)))
    stripped = "".join(one for one in text if one not in "\ufeff\ufffd")
    assert decomposed == unicodedata.normalize("NFD", content(stripped))


def test_decomposed_letters_become_the_composed_ones() -> None:
    assert clean_text("cafe\u0301 e\ufeff\u0301") == "café é"


# Partitions


def test_the_number_of_partitions_follows_from_the_raw_bytes_alone() -> None:
    config = DocumentsConfig(held_out_fraction=0.02)
    assert choose_partitions(1, config) == PartitionCounts(1, 1)
    assert choose_partitions(64_000_000, config) == PartitionCounts(1, 1)
    assert choose_partitions(64_000_001, config) == PartitionCounts(2, 1)
    assert choose_partitions(64_000_000_000, config) == PartitionCounts(1000, 20)
    assert choose_partitions(10**12, DocumentsConfig(partitions=8)) == PartitionCounts(8, 1)
    assert choose_partitions(1, DocumentsConfig(held_out_fraction=0.0)) == PartitionCounts(1, 0)


def test_a_documents_place_depends_on_its_key_and_the_seed_only() -> None:
    raw = raw_documents(some_texts(50))
    table = run_table(raw)
    other_texts = [RawDocument(one.path, one.offset, f"Other text {one.offset}.") for one in raw]
    backwards = run_table(other_texts[::-1])
    for name in ("document_hash", "partition"):
        assert table[name].to_pylist() == backwards[name].to_pylist()[::-1]
    assert table["document_hash"] != run_table(raw, seed=1)["document_hash"]
    assert (
        column(table, "partition").tolist() != column(run_table(raw, seed=1), "partition").tolist()
    )


def test_document_keys_name_source_path_offset_and_repetition() -> None:
    table = run_table([RawDocument("a/b.txt", 17, "Text.")])
    assert table["document_key"].to_pylist() == ["news/a/b.txt#17.0"]
    assert document_key("s", "p", 3, 2) == "s/p#3.2"


def test_the_partition_is_the_hash_modulo_their_number() -> None:
    table = run_table(raw_documents(some_texts(300)))
    partition = column(table, "partition")
    assert set(partition.tolist()) == {0, 1, 2, 3}
    hashes = table["document_hash"].to_pylist()
    place = np.array([int.from_bytes(one[:8], "big") for one in hashes], np.uint64)
    train = partition < 3
    assert (partition[train] == place[train] % 3).all()


@pytest.mark.parametrize("fraction", [0.0, 0.02, 0.1, 0.5])
def test_the_held_out_share_is_the_fraction(fraction: float) -> None:
    count = 20_000
    config = DocumentsConfig(held_out_fraction=fraction)
    partitions = choose_partitions(1, config)
    table = run_table(
        [RawDocument("f", number, "A.") for number in range(count)],
        config=config,
        partitions=partitions,
    )
    share = (column(table, "partition") >= partitions.train).mean()
    # Four standard deviations of a draw for each document.
    assert share == pytest.approx(fraction, abs=4 * (fraction * (1 - fraction) / count) ** 0.5)


# Splitting into documents


def test_a_run_table_holds_cleaned_sentences_and_what_the_next_passes_need() -> None:
    raw = [RawDocument("f", 0, " One.\u2028Two.\r\n"), RawDocument("f", 20, "Drei é. ")]
    table, counts = split_documents(raw, SOURCE, CONFIG, PARTITIONS, 0)
    assert table.schema == RUN_SCHEMA
    assert table["sentences"].to_pylist() == [["One.", "Two."], ["Drei é."]]
    assert table["ordinal"].to_pylist() == [0, 1]
    assert table["text_bytes"].to_pylist() == [len(b"One. Two."), len("Drei é.".encode())]
    assert (
        table["content_hash"][0].as_py() == hashlib.blake2b(b"One. Two.", digest_size=16).digest()
    )
    assert counts == {"read": 2, "kept": 2}


def test_dropped_documents_are_counted_by_reason() -> None:
    raw = [
        RawDocument("f", 0, "Long enough."),
        RawDocument("f", 1, "\x00 \ufeff"),
        RawDocument("f", 2, "short"),
        RawDocument("f", 3, "", dropped="not_parsable"),
    ]
    config = DocumentsConfig(minimum_characters=6)
    table, counts = split_documents(raw, SOURCE, config, PARTITIONS, 0)
    assert counts == {
        "read": 4,
        "kept": 1,
        "dropped_empty": 1,
        "dropped_too_short": 1,
        "dropped_not_parsable": 1,
    }
    assert table["ordinal"].to_pylist() == [0]


def test_a_split_of_which_nothing_is_left_is_an_empty_table() -> None:
    for raw in ([], [RawDocument("f", 0, "\x00")]):
        table, counts = split_documents(raw, SOURCE, CONFIG, PARTITIONS, 0)
        assert table.num_rows == 0 and table.schema == RUN_SCHEMA
        assert counts["read"] == len(raw)
        data, pieces = grouped_bytes(table, content_group(table["content_hash"], 4), 4)
        assert data == b"" and [piece.end for piece in pieces] == [0] * 4


def test_batches_bound_memory_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = raw_documents(["", *some_texts(60), "\u0301 starts with an accent.", "No stop"])
    expected = run_table(raw)
    for characters in (1, 30, 500):
        monkeypatch.setattr(documents, "_BATCH_CHARACTERS", characters)
        assert run_table(raw).equals(expected)


# Deduplication and merging


def test_the_smallest_key_of_equal_texts_stays() -> None:
    texts = ["Same.", "Other.", "Same.", " Same. ", "Same. No."]
    raw = [RawDocument(f"file-{9 - number}", 0, text) for number, text in enumerate(texts)]
    table = run_table(raw)
    for parts in ([table], [table.slice(3), table.slice(0, 3)]):
        dropped = duplicates(parts)
        assert sorted(dropped["document_key"].to_pylist()) == [
            "news/file-7#0.0",
            "news/file-9#0.0",
        ]
    kept = merge_partition([table], [duplicates([table])])
    assert sorted(kept["document_key"].to_pylist()) == [
        "news/file-5#0.0",
        "news/file-6#0.0",
        "news/file-8#0.0",
    ]


def test_nothing_repeated_means_nothing_dropped() -> None:
    assert duplicates([RUN_SCHEMA.empty_table()]).num_rows == 0
    assert duplicates([run_table(raw_documents(["One."]))]).num_rows == 0
    assert duplicates([run_table(raw_documents(["One.", "Two."]))]).num_rows == 0


def test_a_merged_partition_is_sorted_by_document_hash() -> None:
    table = run_table(raw_documents(some_texts(80)))
    merged = merge_partition([table.slice(40), table.slice(0, 40)], [])
    assert merged.schema == DOCUMENT_SCHEMA
    hashes = merged["document_hash"].to_pylist()
    assert hashes == sorted(hashes) and len(hashes) == 80


@settings(max_examples=12, deadline=None)
@given(cuts=st.lists(st.integers(0, 70), max_size=8), order=st.randoms(use_true_random=False))
def test_any_splits_in_any_order_give_the_same_bytes(cuts: list[int], order: object) -> None:
    raw = raw_documents(some_texts(70))
    bounds = [0, *sorted(cuts), 70]
    splits = [raw[start:end] for start, end in itertools.pairwise(bounds)]
    order.shuffle(splits)  # type: ignore[attr-defined]
    assert merged_bytes(splits) == merged_bytes([raw])


def test_the_merged_partitions_hold_every_distinct_text_once() -> None:
    texts = some_texts(70)
    tables = [read_documents(data) for data in merged_bytes([raw_documents(texts)])]
    found = [" ".join(one) for table in tables for one in table["sentences"].to_pylist()]
    assert sorted(found) == sorted(set(texts))


def test_content_groups_cover_every_hash_and_keep_equal_ones_together() -> None:
    table = run_table(raw_documents(some_texts(100)))
    groups = content_group(table["content_hash"], 5)
    assert groups.dtype == np.uint32 and set(groups.tolist()) == set(range(5))
    assert content_group(table.slice(30, 50)["content_hash"], 5).tolist() == groups[30:80].tolist()
    by_hash = dict(zip(table["content_hash"].to_pylist(), groups.tolist(), strict=True))
    assert [by_hash[one] for one in table["content_hash"].to_pylist()] == groups.tolist()


# Objects


def test_each_group_of_an_object_is_read_by_its_range(tmp_path: Path) -> None:
    table = run_table(raw_documents(some_texts(40)))
    group = np.array([(number * 7) % 5 for number in range(40)])
    group[group == 3] = 4  # one group in the middle, and the last, are empty
    data, pieces = grouped_bytes(table, group, 6)
    storage = LocalStorage(str(tmp_path))
    storage.create("object", data)
    assert len(pieces) == 6
    assert [piece.start for piece in pieces[1:]] == [piece.end for piece in pieces[:-1]]
    assert (pieces[0].start, pieces[-1].end) == (0, len(data))
    for number, piece in enumerate(pieces):
        part = read_piece(storage, "object", piece, RUN_SCHEMA)
        assert part.schema == RUN_SCHEMA
        assert part.equals(table.filter(pa.array(group == number)))
    assert pieces[3].start == pieces[3].end


def test_a_flipped_byte_anywhere_in_a_group_is_named_with_its_range(tmp_path: Path) -> None:
    table = run_table(raw_documents(some_texts(20)))
    data, pieces = grouped_bytes(table, np.arange(20) % 2, 2)
    storage = LocalStorage(str(tmp_path))
    path = tmp_path / "object"
    for position in range(0, len(data), 97):
        damaged = bytearray(data)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        hit = next(piece for piece in pieces if piece.start <= position < piece.end)
        for piece in pieces:
            if piece is hit:
                message = f"{path}: bytes {piece.start} to {piece.end}: CRC-32 differs"
                with pytest.raises(CorruptError, match=message):
                    read_piece(storage, "object", piece, RUN_SCHEMA)
            else:
                assert read_piece(storage, "object", piece, RUN_SCHEMA).num_rows == 10
    path.write_bytes(data[:-1])
    with pytest.raises(CorruptError, match="cut short or changed"):
        read_piece(storage, "object", pieces[1], RUN_SCHEMA)


def test_an_empty_group_reads_nothing(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path / "nowhere"))
    assert read_piece(storage, "absent", Piece(5, 5, 0), RUN_SCHEMA).equals(
        RUN_SCHEMA.empty_table()
    )


@pytest.mark.parametrize("batch_bytes", [1, 40, 1000, 1 << 30])
def test_documents_are_read_back_from_any_number_of_record_batches(
    monkeypatch: pytest.MonkeyPatch, batch_bytes: int
) -> None:
    monkeypatch.setattr(documents, "_BATCH_TEXT_BYTES", batch_bytes)
    table = merge_partition([run_table(raw_documents(some_texts(30)))], [])
    data = write_documents(table)
    assert read_documents(data).equals(table)
    batches = pa.ipc.open_file(pa.BufferReader(data)).num_record_batches
    assert {1: 30, 1 << 30: 1}.get(batch_bytes, batches) == batches
    if batch_bytes == 40:
        assert 1 < batches < 30


def test_documents_without_sentences_are_not_lost() -> None:
    rows = {"document_hash": [b"0" * 16, b"1" * 16], "document_key": ["a", "b"]}
    for sentences in ([[], []], [[], ["x"]], [["x"], []]):
        table = pa.table({**rows, "sentences": sentences}, schema=DOCUMENT_SCHEMA)
        assert read_documents(write_documents(table)).equals(table)


def test_an_empty_partition_is_an_object_too() -> None:
    data = write_documents(merge_partition([RUN_SCHEMA.empty_table()], []))
    assert read_documents(data).equals(DOCUMENT_SCHEMA.empty_table())
