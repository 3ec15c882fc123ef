"""Documents: cleaning, partitions, deduplication, merging; no split of the input matters."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import documents
from pipeline.config import CleaningConfig, DocumentsConfig, SourceConfig
from pipeline.contract import DOCUMENT_SCHEMA
from pipeline.corpus import RawDocument
from pipeline.document_keys import document_key
from pipeline.documents import (
    FINGERPRINT_SCHEMA,
    RUN_SCHEMA,
    Partitions,
    choose_partitions,
    content_groups,
    duplicates,
    run_groups,
    split_documents,
    unit_bytes,
)
from pipeline.merge import Losses, merge_rows, read_documents, write_documents

SOURCE = SourceConfig(name="news", format="lines", path="unused")
CONFIG = DocumentsConfig(sources=(SOURCE,), held_out_fraction=0.1)
PARTITIONS = Partitions(train=3, held_out=1)


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


def split_counted(
    raw: Sequence[RawDocument],
    *,
    config: DocumentsConfig = CONFIG,
    partitions: Partitions = PARTITIONS,
    seed: int = 0,
) -> tuple[pa.Table, dict[str, int]]:
    """The run table of a split and what was counted."""
    counts: Counter[str] = Counter()
    chunks = [
        chunk.documents for chunk in split_documents(raw, 0, config, partitions, seed, counts)
    ]
    return pa.concat_tables([RUN_SCHEMA.empty_table(), *chunks]), dict(counts)


def run_table(raw: Sequence[RawDocument], **options: Any) -> pa.Table:
    return split_counted(raw, **options)[0]


def merged(runs: Sequence[pa.Table], dropped: Sequence[pa.Table] = ()) -> pa.Table:
    """One partition's documents, with the contract's columns."""
    table = merge_rows(
        [RUN_SCHEMA.empty_table(), *runs],
        dropped,
        [],
        [1 << 32],
        Losses(1),
        train_partitions=PARTITIONS.train,
        seed=0,
    )
    return table.select(DOCUMENT_SCHEMA.names)


def merged_bytes(
    splits: Sequence[Sequence[RawDocument]], partitions: Partitions = PARTITIONS
) -> list[bytes]:
    """The whole core of the stage over these splits: the bytes of every partition's object."""
    tables = [run_table(split, partitions=partitions) for split in splits]
    groups = partitions.total
    dropped = []
    for group in range(groups):
        prints = [table.select(FINGERPRINT_SCHEMA.names) for table in tables]
        mine = [part.filter(pa.array(content_groups(part, groups) == group)) for part in prints]
        dropped.append(duplicates(mine))
    result = []
    for partition in range(groups):
        ranges = []
        for part in range(partitions.ranges):
            group = partition * partitions.ranges + part
            runs = [
                table.filter(pa.array(run_groups(table, partitions) == group)) for table in tables
            ]
            ranges.append(merged(runs, dropped))
        result.append(write_documents(ranges))
    return result


def column(table: pa.Table, name: str) -> np.ndarray:
    return np.asarray(table[name])


# Partitions


def test_the_number_of_partitions_follows_from_the_raw_bytes_alone() -> None:
    config = DocumentsConfig(held_out_fraction=0.02)
    assert choose_partitions(1, config) == Partitions(1, 1)
    assert choose_partitions(64_000_000, config) == Partitions(1, 1)
    assert choose_partitions(64_000_001, config) == Partitions(2, 1)
    assert choose_partitions(10**9, config) == Partitions(16, 1)
    assert choose_partitions(10**9, DocumentsConfig(partitions=1)) == Partitions(1, 1, 4)


def test_the_pieces_of_the_shuffle_stay_in_the_millions_at_ten_terabytes() -> None:
    for size in (10**9, 10**11, 10**13):
        partitions = choose_partitions(size, DocumentsConfig())
        splits = size / unit_bytes(size, 64_000_000)
        assert splits * partitions.total < 5_000_000
        # What a merge holds of a partition.
        assert size / partitions.train / partitions.ranges <= 256_000_000 * 1.01


def test_a_partition_needs_no_more_than_the_config_says() -> None:
    assert choose_partitions(1, DocumentsConfig(held_out_fraction=0.0)) == Partitions(1, 0)


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
    config = DocumentsConfig(sources=(SOURCE,), held_out_fraction=fraction)
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
    table, counts = split_counted(raw)
    assert table.schema == RUN_SCHEMA
    assert table["sentences"].to_pylist() == [["One.", "Two."], ["Drei é."]]
    assert table["ordinal"].to_pylist() == [0, 1]
    assert table["text_bytes"].to_pylist() == [len(b"One. Two."), len("Drei é.".encode())]
    assert (
        table["content_hash"][0].as_py() == hashlib.blake2b(b"One. Two.", digest_size=16).digest()
    )
    assert counts == {
        "read": 2,
        "kept": 2,
        "carriage_returns_removed": 1,
        "other_white_space_to_space": 1,
        "white_space_collapsed": 2,
    }


def test_dropped_documents_are_counted_by_reason() -> None:
    raw = [
        RawDocument("f", 0, "Long enough."),
        RawDocument("f", 1, "\x00 \ufeff"),
        RawDocument("f", 2, "short"),
        RawDocument("f", 3, "", dropped="not_parsable"),
        RawDocument("f", 4, "This one is too long."),
    ]
    cleaning = CleaningConfig(minimum_characters=6, maximum_characters=15)
    config = DocumentsConfig(sources=(SOURCE,), cleaning=cleaning)
    table, counts = split_counted(raw, config=config)
    assert counts == {
        "read": 5,
        "kept": 1,
        "control_characters_removed": 1,
        "zero_width_characters_removed": 1,
        "white_space_collapsed": 1,
        "dropped_empty": 1,
        "dropped_too_short": 1,
        "dropped_too_long": 1,
        "dropped_not_parsable": 1,
    }
    assert table["ordinal"].to_pylist() == [0]


def test_a_split_of_which_nothing_is_left_is_an_empty_table() -> None:
    for raw in ([], [RawDocument("f", 0, "\x00")]):
        table, counts = split_counted(raw)
        assert table.num_rows == 0 and table.schema == RUN_SCHEMA
        assert counts.get("read", 0) == len(raw)


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
    kept = merged([table], [duplicates([table])])
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
    hashes = merged([table.slice(40), table.slice(0, 40)])["document_hash"].to_pylist()
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


def test_ranges_of_a_partition_one_after_the_other_are_the_partition() -> None:
    raw = [raw_documents(some_texts(70))]
    ranged = merged_bytes(raw, Partitions(3, 1, ranges=4))
    for whole, parts in zip(merged_bytes(raw), ranged, strict=True):
        assert read_documents(parts).equals(read_documents(whole))


def test_documents_of_other_scripts_are_dropped_by_their_share_of_letters() -> None:
    texts = ["Только кириллица, 100 %.", "Mostly Latin да.", "12345 !!", "Пополам halfhalf"]
    cleaning = CleaningConfig(scripts=("Latn", "Grek"), minimum_script_share=0.6)
    config = DocumentsConfig(sources=(SOURCE,), cleaning=cleaning)
    table, counts = split_counted(raw_documents(texts), config=config)
    assert table["ordinal"].to_pylist() == [1, 2]
    assert counts["dropped_other_script"] == 2


@pytest.mark.parametrize(
    ("codes", "kept"),
    [(("Jpan",), [0, 1]), (("Hans",), [1]), (("Kore",), [1, 2]), (("Latn", "Jpan"), [0, 1, 3])],
)
def test_writing_systems_of_several_scripts_are_all_of_them(
    codes: tuple[str, ...], kept: list[int]
) -> None:
    texts = ["これはひらがなとカタカナ", "中文文本", "한국어", "English"]
    config = DocumentsConfig(sources=(SOURCE,), cleaning=CleaningConfig(scripts=codes))
    assert run_table(raw_documents(texts), config=config)["ordinal"].to_pylist() == kept


def test_content_groups_cover_every_hash_and_keep_equal_ones_together() -> None:
    table = run_table(raw_documents(some_texts(100)))
    groups = content_groups(table, 5)
    assert set(groups.tolist()) == set(range(5))
    assert content_groups(table.slice(30, 50), 5).tolist() == groups[30:80].tolist()
    by_hash = dict(zip(table["content_hash"].to_pylist(), groups.tolist(), strict=True))
    assert [by_hash[one] for one in table["content_hash"].to_pylist()] == groups.tolist()
