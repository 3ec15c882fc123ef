"""A partition of documents to shards, without Ray: contract, data card, bounds and bytes."""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from pipeline.config import (
    DocumentsConfig,
    InstancesConfig,
    MaskingConfig,
    PipelineConfig,
    SourceConfig,
)
from pipeline.contract import DOCUMENT_SCHEMA, PAIR_LABELS, ShardEntry
from pipeline.data_card import add_up, data_card
from pipeline.document_encoding import EncodingVocabulary, encode_documents, has_word_starts
from pipeline.encoding import WordPieceEncoder
from pipeline.instance_rows import InstanceRows
from pipeline.instance_shards import PARTITION_BITS, SetWriter
from pipeline.normalization import NormalizationTable, TextRules
from pipeline.shards import instance_rows, shard_faults
from pipeline.stats import tables
from pipeline.vocabulary import SPECIAL_TOKENS, build_tokenizer, special_ids

WORDS = [f"word{chr(97 + number)}" for number in range(20)]
CHINESE = "我喜欢弹琵琶研究生命起源"
PIECES = [f"##{chr(97 + number)}" for number in range(20)]
VOCABULARY = [*SPECIAL_TOKENS, "word", ".", *WORDS[:10], *sorted(set(CHINESE)), *PIECES]
PAD, UNK, CLS, SEP, MASK = range(5)
NORMALIZATION = NormalizationTable.build(TextRules())
ENCODER = WordPieceEncoder(build_tokenizer(VOCABULARY, TextRules()).to_str(), None, NORMALIZATION)
KNOWN = EncodingVocabulary.of(VOCABULARY, special_ids(VOCABULARY), ENCODER, NORMALIZATION)
SOURCES = (SourceConfig(name="news", format="text", path="x"),)
BOTH = (*SOURCES, SourceConfig(name="wiki", format="text", path="y", locale="zh-Hans"))
PARTITION = 3
MASK_OUTCOMES = ("masked_by_mask", "masked_by_random", "masked_kept")


def documents_table(documents: Sequence[tuple[str, list[str]]]) -> pa.Table:
    """(key, sentences) as a partition, hashes by place."""
    return pa.table(
        {
            "document_hash": [n.to_bytes(8, "little") * 2 for n, _ in enumerate(documents)],
            "document_key": [key for key, _ in documents],
            "sentences": [sentences for _, sentences in documents],
        },
        schema=DOCUMENT_SCHEMA,
    )


def english(count: int, seed: int = 0) -> list[tuple[str, list[str]]]:
    rng = np.random.default_rng(seed)
    return [
        (
            f"news/file#{number}.0",
            [
                " ".join(WORDS[word] for word in rng.integers(0, 20, rng.integers(1, 15))) + "."
                for _ in range(rng.integers(1, 9))
            ],
        )
        for number in range(count)
    ]


def config_of(sources: tuple[SourceConfig, ...] = SOURCES, **changed: Any) -> PipelineConfig:
    masking = changed.pop("masking", MaskingConfig())
    settings = {"max_seq_length": 32, "rows_per_batch": 8, "rows_per_shard": 32, **changed}
    return PipelineConfig(
        seed=5,
        documents=DocumentsConfig(sources=sources),
        instances=InstancesConfig(**settings),
        masking=masking,
    )


@dataclasses.dataclass
class Built:
    objects: dict[str, bytes]
    entries: list[ShardEntry]
    counts: dict[str, Any]

    def file(self, entry: ShardEntry) -> pa.ipc.RecordBatchFileReader:
        return pa.ipc.open_file(pa.BufferReader(self.objects[entry.object.name]))

    def rows(self) -> list[InstanceRows]:
        files = map(self.file, self.entries)
        return [
            instance_rows(file.get_batch(number))
            for file in files
            for number in range(file.num_record_batches)
        ]


def build(
    documents: Sequence[tuple[str, list[str]]], config: PipelineConfig, *, blocks: int = 1
) -> Built:
    writer = SetWriter(
        config,
        KNOWN,
        max_seq_length=config.instances.max_seq_length,
        partition=PARTITION,
        split="train",
        name="train-3",
    )
    objects: dict[str, bytes] = {}
    entries = []
    for numbers in np.array_split(np.arange(len(documents)), blocks):
        table = documents_table([documents[number] for number in numbers])
        encoded = encode_documents(table, KNOWN, config.documents.sources)
        for written, entry in writer.add(encoded):
            objects |= written
            entries.append(entry)
    for written, entry in writer.finish():
        objects |= written
        entries.append(entry)
    return Built(objects, entries, writer.counts)


def test_copies_of_a_document_have_one_original() -> None:
    keys = ["news/a#0.0", "news/a#7.0", "news/a#0.1", "news/a#0.12", "news/b#0.1"]
    table = documents_table([(key, ["One.", "Two."]) for key in keys])
    encoded = encode_documents(table, KNOWN, SOURCES)
    hashes, originals = encoded.document_hashes, encoded.originals
    order = [table["document_key"].to_pylist().index(key) for key in keys]
    first, other, copy, another, alone = (originals[place] for place in order)
    assert first == copy == another == min(hashes[order[place]] for place in (0, 2, 3))
    assert (other, alone) == (hashes[order[1]], hashes[order[4]])


def sequences(built: Built) -> list[tuple[int, ...]]:
    """Every instance before masking, in the shards' order."""
    return [
        tuple(rows.original_ids()[start:end].tolist())
        for rows in built.rows()
        for start, end in zip(rows.offsets[:-1], rows.offsets[1:], strict=True)
    ]


@pytest.mark.parametrize("objective", ["nsp", "sop", "full_sentences", "doc_sentences", "sentence"])
@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_shards_of_every_objective_keep_the_contract(objective: str, mode: str) -> None:
    config = config_of(objective=objective, masking=MaskingConfig(mode=mode))
    built = build(english(60), config)
    expected = ["input_ids", "first_segment_length"]
    expected += [PAIR_LABELS[objective]] if objective in PAIR_LABELS else []
    expected += ["masked_lm_positions", "masked_lm_ids"] if mode == "static" else []
    for entry in built.entries:
        schema = built.file(entry).schema
        assert schema.names == expected
        faults = shard_faults(
            built.objects[entry.object.name],
            built.objects[entry.lengths.name],
            entry,
            schema,
            len(VOCABULARY),
        )
        assert list(faults) == []
    assert sum(entry.rows for entry in built.entries) == built.counts["instances"]
    assert sum(entry.tokens for entry in built.entries) == built.counts["tokens"]
    assert sum(built.counts["length_histogram"]) == built.counts["instances"]


@pytest.mark.parametrize("objective", ["nsp", "sop", "full_sentences", "sentence"])
def test_each_instance_has_the_source_of_its_first_segment(objective: str) -> None:
    rng = np.random.default_rng(7)
    documents = []
    for number in range(120):
        source, first = (("news", 0), ("blog", 10))[number % 2]
        sentences = [
            " ".join(WORDS[word] for word in rng.integers(first, first + 10, rng.integers(1, 15)))
            for _ in range(rng.integers(0, 9))
        ]
        documents.append((f"{source}/file#{number}.0", sentences if number % 7 else ["", ""]))
    sources = (*SOURCES, SourceConfig(name="blog", format="text", path="y"))
    built = build(documents, config_of(sources, objective=objective), blocks=3)
    # The words of the blog are in the vocabulary only as pieces.
    news = [VOCABULARY.index(word) for word in WORDS[:10]]
    found = []
    for rows in built.rows():
        assert rows.sources is not None
        first_ids = rows.input_ids[rows.offsets[:-1] + 1]
        assert np.array_equal(rows.sources == 0, np.isin(first_ids, news))
        found.append(rows.sources)
    assert np.array_equal(np.unique(np.concatenate(found)), [0, 1])
    entry = built.entries[0]
    shard = (built.objects[entry.object.name], built.objects[entry.lengths.name], entry)
    schema = built.file(entry).schema
    assert list(shard_faults(*shard, schema, len(VOCABULARY), 2)) == []
    assert "source 1 beyond 1" in next(shard_faults(*shard, schema, len(VOCABULARY), 1))


def test_a_shard_has_its_rows_exactly_and_no_two_shards_are_alike() -> None:
    """A known fault elsewhere: the start never advances, so that every shard is the same."""
    documents = english(400)
    split, whole = (
        build(documents, config_of(rows_per_shard=rows, rows_per_batch=8)) for rows in (32, 80_000)
    )
    assert len(split.entries) >= 10 and len(whole.entries) == 1
    assert all(entry.rows == 32 for entry in split.entries[:-1])
    assert 0 < split.entries[-1].rows <= 32
    assert len({entry.object.sha256 for entry in split.entries}) == len(split.entries)
    assert sequences(split) == sequences(whole)
    first = [entry.first_instance for entry in split.entries]
    assert first == [(PARTITION << PARTITION_BITS) + 32 * n for n in range(len(first))]


def test_blocks_of_documents_leave_no_trace_in_the_shards_sizes_or_numbers() -> None:
    """A partition of gigabytes is built block by block; its shards are full all the same."""
    documents = english(400)
    masking = MaskingConfig(mode="static")
    whole, cut = (
        build(documents, config_of(objective="sentence", masking=masking), blocks=blocks)
        for blocks in (1, 7)
    )
    rows = [entry.rows for entry in cut.entries]
    assert rows == [entry.rows for entry in whole.entries]
    assert set(rows[:-1]) == {32}
    assert [one.first_instance for one in cut.entries] == [
        one.first_instance for one in whole.entries
    ]
    # A sentence makes one instance wherever it stands; pairs draw their random B in the block.
    assert sorted(sequences(cut)) == sorted(sequences(whole))
    assert sequences(cut) != sequences(whole)
    same = set(cut.counts) - {"masked_tokens", *MASK_OUTCOMES}
    assert {name: cut.counts[name] for name in same} == {name: whole.counts[name] for name in same}
    pairs = build(documents, config_of(), blocks=7)
    assert {entry.rows for entry in pairs.entries[:-1]} == {32}
    assert pairs.counts["documents"] == 400
    assert pairs.counts["is_next"] > 100 and pairs.counts["random_next"] > 100


def test_more_rows_a_shard_than_instances_and_one_document_of_many_shards_both_end() -> None:
    few = build(english(2), config_of(rows_per_shard=8000))
    assert len(few.entries) == 1
    long = [("news/a#0.0", ["worda wordb wordc."] * 4000), ("news/b#0.0", ["wordd.", "worde."])]
    many = build(long, config_of())
    assert len(many.entries) > 10
    assert sum(entry.rows for entry in many.entries) == many.counts["instances"]


def test_static_masks_do_not_depend_on_where_shards_begin() -> None:
    masking = MaskingConfig(mode="static")
    one, other = (
        build(english(60), config_of(rows_per_shard=rows, masking=masking)) for rows in (16, 80_000)
    )
    assert [row.input_ids.tolist() for row in one.rows()] == [
        row.input_ids.tolist() for row in other.rows()
    ]


def test_duplicates_differ_in_their_cuts_and_in_their_static_masks() -> None:
    documents = english(60)
    once = build(documents, config_of())
    thrice = build(documents, config_of(duplicate_factor=3))
    assert thrice.counts["documents"] == once.counts["documents"] == 60
    assert thrice.counts["documents_used"] == once.counts["documents_used"]
    assert thrice.counts["tokens_read"] == 3 * once.counts["tokens_read"]
    assert len(set(sequences(thrice))) > 2 * len(set(sequences(once)))
    config = config_of(
        objective="sentence", duplicate_factor=4, masking=MaskingConfig(mode="static")
    )
    built = build([("news/a#0.0", ["worda wordb wordc wordd worde wordf wordg."])], config)
    assert len(set(sequences(built))) == 1 and built.counts["instances"] == 4
    (rows,) = built.rows()
    masks = np.split(rows.masked_positions, rows.masked_offsets[1:-1])
    assert len({tuple(positions) for positions in masks}) > 1


def test_every_compression_gives_the_same_rows() -> None:
    made = {
        name: build(english(300), config_of(compression=name, rows_per_batch=32))
        for name in ("zstd", "lz4", "none")
    }
    assert sequences(made["zstd"]) == sequences(made["lz4"]) == sequences(made["none"])
    sizes = {name: sum(entry.object.bytes for entry in one.entries) for name, one in made.items()}
    assert sizes["zstd"] < sizes["lz4"] < sizes["none"]


def test_a_long_document_is_cut_and_its_tokens_are_used() -> None:
    """One document of 100,000 tokens at 512 a row: elsewhere all but the first row was lost."""
    document = ("news/a#0.0", ["worda wordb wordc wordd."] * 12_500)
    for objective in ("sop", "full_sentences", "doc_sentences", "sentence"):
        config = config_of(objective=objective, max_seq_length=512, short_seq_prob=0.0)
        counts = build([document], config).counts
        card = data_card(counts, objective=objective, max_seq_length=512, duplicate_factor=1)
        assert counts["tokens_read"] > 60_000
        assert card["used_share"] >= 0.99
    two = [document, ("news/b#0.0", ["worda wordb.", "wordc."])]
    counts = build(two, config_of(max_seq_length=512, short_seq_prob=0.0)).counts
    own = counts["tokens_read"] - counts["tokens_unpaired"]
    assert own / counts["tokens_read"] >= 0.99


def test_only_sources_whose_language_needs_it_bring_word_starts() -> None:
    assert not has_word_starts(SOURCES) and has_word_starts(BOTH)
    documents = [
        *english(20),
        *((f"wiki/a#{n}.0", ["我喜欢弹琵琶", "研究生命起源", "worda wordt"]) for n in range(20)),
    ]
    built = build(documents, config_of(BOTH, objective="sentence"))
    seen = set()
    for rows in built.rows():
        assert rows.word_starts is not None
        for start, end in zip(rows.offsets[:-1], rows.offsets[1:], strict=True):
            text = "".join(VOCABULARY[token] for token in rows.input_ids[start:end])
            flags = rows.word_starts[start:end].tolist()
            if "琵" in text:
                assert flags == [True, True, True, False, True, True, False, True]
                seen.add("zh")
            else:  # words of other languages are told by their pieces
                is_piece = [VOCABULARY[t].startswith("##") for t in rows.input_ids[start:end]]
                if "研" not in text:
                    assert flags == [not one for one in is_piece]
                    seen.add("en")
    assert seen == {"zh", "en"}
    assert all(rows.word_starts is None for rows in build(english(5), config_of()).rows())


def test_a_word_of_two_ideographs_is_always_masked_as_one() -> None:
    documents = [(f"wiki/a#{n}.0", ["我喜欢弹琵琶"]) for n in range(300)]
    masking = MaskingConfig(mode="static", unit="whole_word", probability=0.34)
    built = build(documents, config_of(BOTH, objective="sentence", masking=masking))
    hits = 0
    for rows in built.rows():
        for chosen in np.split(rows.masked_positions, rows.masked_offsets[1:-1]):
            assert (5 in chosen) == (6 in chosen) and (2 in chosen) == (3 in chosen)
            hits += 5 in chosen
    assert hits > 50


def test_the_data_card_adds_up() -> None:
    masking = MaskingConfig(mode="static", probability=0.2)
    built = build(english(2000), config_of(masking=masking, duplicate_factor=2))
    counts = built.counts
    card = data_card(counts, objective="nsp", max_seq_length=32, duplicate_factor=2)
    ids = np.concatenate([rows.original_ids() for rows in built.rows()])
    assert counts["maskable_tokens"] == np.count_nonzero(ids >= len(SPECIAL_TOKENS))
    assert counts["masked_tokens"] == sum(counts[name] for name in MASK_OUTCOMES)
    assert card["mask_rate"] == pytest.approx(0.2, abs=0.01)
    assert card["mask_share"] == pytest.approx(0.8, abs=0.02)
    # One random draw in so many hits the original token and looks kept.
    assert card["random_share"] == pytest.approx(0.1, abs=0.02)
    assert card["label_one_share"] == pytest.approx(0.5, abs=0.03)
    assert card["fill"] == pytest.approx(ids.size / counts["instances"] / 32, abs=1e-5)
    total = card["used_share"] + card["truncation_loss"] + card["unpaired_share"]
    assert total == pytest.approx(1.0, abs=1e-5)
    # Of the 20 words ten are entries, and ten are "word" with a piece; none is unknown.
    assert card["unknown_rate"] == 0.0


def test_a_card_of_nothing_is_empty() -> None:
    nothing = add_up([])
    assert data_card(nothing, objective="nsp", max_seq_length=128, duplicate_factor=1) == {}


def test_stats_prints_every_share_of_the_card_as_tables() -> None:
    built = build(english(200), config_of(masking=MaskingConfig(mode="static")))
    card = data_card(built.counts, objective="nsp", max_seq_length=32, duplicate_factor=1)
    manifest = {
        "counts": {"train": built.counts, "held_out": add_up([])},
        "data_card": {"train": card, "held_out": {}},
        "masking": {"mode": "static"},
        "max_seq_length": 32,
        "objective": "nsp",
        "shards": [entry.to_json() for entry in built.entries],
    }
    console = Console(width=120, record=True, file=io.StringIO())
    for table in tables(manifest):
        console.print(table)
    text = console.export_text()
    for name, value in card.items():
        shown = f"{value:.1f}" if name == "mean_length_tokens" else f"{value:.3%}"
        assert shown in text, name
    assert "next_sentence_label 1: B is random" in text
    assert "held-out: tokens of an instance" in text
    assert re.search(r"30 to 32 +│ +[1-9]", text)
