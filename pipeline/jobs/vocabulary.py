"""The vocabulary job: words counted by partition, reduced by bucket, then one WordPiece trainer."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console

from pipeline import runs, vocabulary
from pipeline.commit import Generation, current, require_same_identity
from pipeline.config import PipelineConfig
from pipeline.contract import ObjectEntry, canonical_json, fingerprint
from pipeline.encoding import build_word_table
from pipeline.errors import InputError
from pipeline.identity import documents_identity, vocabulary_identity
from pipeline.jobs.cluster import run_units
from pipeline.merge import read_documents
from pipeline.normalization import accent_warnings
from pipeline.stage import Stage
from pipeline.storage import sha256
from pipeline.vocabulary import NormalizationTable, TextRules, TrainedVocabulary

TOKENIZER_JSON = "tokenizer.json"
VOCAB_TXT = "vocab.txt"
WORD_TABLE = "word_table.arrow"
WORD_COUNTS = "word_counts.parquet"
CARD = "card.json"
NORMALIZATION = "normalization.arrow"

# The most frequent words, whose ids every worker holds (about 60 bytes a word); it asks the
# library for others as it meets them.
_WORD_TABLE_WORDS = 2_000_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What every unit of the job needs to know; picklable."""

    generation: Generation
    documents: Generation
    config: PipelineConfig
    buckets: int


def read_table(generation: Generation, entry: ObjectEntry) -> pa.Table:
    """Read an object that `write_stream` wrote, verified."""
    return pa.ipc.open_stream(generation.read(entry)).read_all()


def map_word_table(generation: Generation, entry: ObjectEntry) -> pa.Table:
    """Open the word table, verified; from a local disk its pages are those of every worker."""
    return pa.ipc.open_file(pa.py_buffer(generation.view(entry))).read_all()


def word_table_bytes(table: pa.Table) -> bytes:
    """Return the table as an Arrow IPC file, uncompressed so that it can be mapped."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def text_rules(config: PipelineConfig) -> TextRules:
    """Return the normaliser's switches."""
    return TextRules(
        lowercase=config.vocabulary.lowercase,
        strip_accents=config.vocabulary.strip_accents,
        handle_chinese_chars=config.vocabulary.handle_chinese_chars,
    )


def started_from(start: str) -> dict[str, str]:
    """Return what a manifest says of the vocabulary that its own continues, by its text."""
    return {"start_from_sha256": sha256(start.encode())} if start else {}


def languages(config: PipelineConfig) -> dict[str, str]:
    """Return the language of each source: the first part of its locale."""
    return {
        source.name: source.locale.replace("_", "-").split("-")[0].lower()
        for source in config.documents.sources
    }


def check(config: PipelineConfig) -> str:
    """Refuse settings that no corpus fits, before any work; returns the text of `start_from`.

    Raises ConfigError, InputError where that file is not a vocabulary.
    """
    settings = config.vocabulary
    rules = text_rules(config)
    vocabulary.check_user_tokens(settings.user_tokens, rules, settings.max_input_chars_per_word)
    start = vocabulary.read_start(settings.start_from)
    if start:
        vocabulary.read_vocab(start.encode(), settings.start_from)
    else:
        vocabulary.check_vocab_size(settings.vocab_size, _leading(config))
    return start


def run(config: PipelineConfig) -> dict[str, Any]:
    """Run the stage or find it done; returns its manifest."""
    start = check(config)
    upstream, upstream_manifest = current(config.root, "documents", "python -m pipeline documents")
    require_same_identity(
        upstream,
        upstream_manifest["identity"],
        documents_identity(config),
        "python -m pipeline documents",
    )
    started = started_from(start)
    inputs = {"documents": upstream.fingerprint}
    generation = Generation(
        config.root,
        "vocabulary",
        fingerprint("vocabulary", identity=vocabulary_identity(config), inputs=inputs | started),
    )
    warnings = accent_warnings(text_rules(config), languages(config).values())
    with Stage(generation, repairs=True) as stage:
        if stage.manifest is not None:
            return stage.manifest
        for warning in warnings:
            Console(stderr=True, soft_wrap=True).print(f"warning: {warning}", markup=False)
        files = [file for file in upstream_manifest["files"] if file["split"] == "train"]
        if not any(file["documents"] for file in files):
            raise InputError(
                f"{upstream.root}/{upstream.prefix}: no documents to train on, all of them are "
                "held out; lower documents.held_out_fraction or add text, and run "
                "`python -m pipeline documents` again"
            )
        held_out = [file for file in upstream_manifest["files"] if file["split"] == "held_out"]
        plan = Plan(generation, upstream, config, buckets=len(files))
        (normalized,) = run_units(
            stage,
            partial(normalization_unit, plan),
            [{"marker": "normalization"}],
            description="vocabulary: normalisation table",
            workers=1,
        )
        counted = run_units(
            stage,
            partial(count_unit, plan),
            [
                {
                    "marker": f"count/{number:06d}",
                    "object": file["object"],
                    "normalization": normalized["object"],
                    "bytes": file["text_bytes"],
                }
                for number, file in enumerate(files)
            ],
            description="vocabulary: count words",
            workers=config.cluster.workers,
        )
        reduced = run_units(
            stage,
            partial(reduce_unit, plan),
            [
                {
                    "marker": f"reduce/{bucket:06d}",
                    "pieces": [facts["pieces"][bucket] for facts in counted],
                }
                for bucket in range(plan.buckets)
            ],
            description="vocabulary: add up counts",
            workers=config.cluster.workers,
        )
        (trained,) = run_units(
            stage,
            partial(train_unit, plan),
            [{"marker": "train", "tables": [facts["object"] for facts in reduced], "start": start}],
            description="vocabulary: train WordPiece",
            workers=1,
        )
        tested = run_units(
            stage,
            partial(held_out_unit, plan),
            [
                {
                    "marker": f"held_out/{number:06d}",
                    "object": file["object"],
                    "normalization": normalized["object"],
                    "bytes": file["text_bytes"],
                }
                for number, file in enumerate(held_out)
            ],
            description="vocabulary: count held-out words",
            workers=config.cluster.workers,
        )
        (card,) = run_units(
            stage,
            partial(card_unit, plan),
            [
                {
                    "marker": "card",
                    "tokenizer": trained["objects"][TOKENIZER_JSON],
                    "tables": [facts["object"] for facts in tested],
                }
            ],
            description="vocabulary: card",
            workers=1,
        )
        return stage.commit(
            {
                "alphabet": trained["alphabet"],
                "counts": trained["counts"],
                "held_out": card["summary"],
                "identity": vocabulary_identity(config),
                "inputs": inputs,
                "objects": {
                    **trained["objects"],
                    CARD: card["object"],
                    NORMALIZATION: normalized["object"],
                },
                "special_ids": trained["special_ids"],
                "unused_ids": trained["unused_ids"],
                "vocab_size": trained["vocab_size"],
                "warnings": warnings,
                **started,
            }
        )


def normalization_unit(plan: Plan, unit: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the tokenizers library once what it does to every code point; workers share it."""
    table = NormalizationTable.build(text_rules(plan.config)).to_table()
    data = runs.write_stream(table)
    facts = {"object": asdict(ObjectEntry.of(NORMALIZATION, data))}
    plan.generation.complete(unit["marker"], {NORMALIZATION: data}, facts)
    return facts


def count_unit(plan: Plan, unit: Mapping[str, Any]) -> dict[str, Any]:
    """Count the words of one partition, grouped by bucket of the word's hash."""
    table = read_documents(plan.documents.read(ObjectEntry(**unit["object"])))
    sentences = table["sentences"].combine_chunks().flatten()
    normalization = NormalizationTable.from_table(
        read_table(plan.generation, ObjectEntry(**unit["normalization"]))
    )
    counts = vocabulary.count_words(sentences, normalization)
    parts: list[bytes] = []
    pieces: list[list[int]] = []
    end = 0
    for bucket in vocabulary.split_counts(counts, plan.buckets):
        data = runs.write_stream(bucket)
        parts.append(data)
        piece = runs.Piece(len(pieces), end, end + len(data), zlib.crc32(data))
        pieces.append(list(asdict(piece).values()))
        end += len(data)
    facts = {"pieces": pieces, "words": counts.num_rows}
    objects = {f"passes/{unit['marker']}.counts": b"".join(parts)}
    plan.generation.complete(unit["marker"], objects, facts)
    return facts


def reduce_unit(plan: Plan, unit: Mapping[str, Any]) -> dict[str, Any]:
    """Add up one bucket's counts over all partitions."""
    storage = plan.generation.storage
    tables = [
        runs.read_piece(
            storage,
            plan.generation.name(f"passes/count/{partition:06d}.counts"),
            runs.Piece(*piece),
        )
        for partition, piece in enumerate(unit["pieces"])
    ]
    data = runs.write_stream(vocabulary.merge_counts(tables))
    entry = ObjectEntry.of(f"passes/{unit['marker']}.counts", data)
    facts = {"object": asdict(entry)}
    plan.generation.complete(unit["marker"], {entry.name: data}, facts)
    return facts


def train_unit(plan: Plan, unit: Mapping[str, Any]) -> dict[str, Any]:
    """Train the vocabulary from the whole table of word counts and write the stage's artefacts."""
    settings = plan.config.vocabulary
    tables = [read_table(plan.generation, ObjectEntry(**entry)) for entry in unit["tables"]]
    counts = vocabulary.merge_counts(tables)
    del tables
    trained = _train(plan.config, counts, unit["start"])
    entries = vocabulary.pad_entries(trained.entries, settings.pad_to_multiple_of)
    tokenizer = vocabulary.build_tokenizer(
        entries,
        text_rules(plan.config),
        max_input_chars_per_word=settings.max_input_chars_per_word,
    )
    tokenizer_json = tokenizer.to_str(pretty=True)
    table = build_word_table(
        tokenizer_json, counts["word"].slice(0, _WORD_TABLE_WORDS).combine_chunks()
    )
    parquet = pa.BufferOutputStream()
    pq.write_table(counts, parquet, compression="zstd")
    objects = {
        TOKENIZER_JSON: tokenizer_json.encode(),
        VOCAB_TXT: vocabulary.vocab_txt(entries),
        WORD_COUNTS: parquet.getvalue().to_pybytes(),
        WORD_TABLE: word_table_bytes(table),
    }
    total = pc.sum(counts["count"]).as_py() or 0
    facts = {
        "alphabet": trained.alphabet,
        "counts": {"distinct_words": counts.num_rows, "words": total},
        "objects": {name: asdict(ObjectEntry.of(name, data)) for name, data in objects.items()},
        "special_ids": vocabulary.special_ids(entries),
        "unused_ids": vocabulary.unused_ids(entries),
        "vocab_size": len(entries),
    }
    plan.generation.complete(unit["marker"], objects, facts)
    return facts


def _leading(config: PipelineConfig) -> list[str]:
    settings = config.vocabulary
    return [*vocabulary.leading_entries(settings.layout), *settings.user_tokens]


def _train(config: PipelineConfig, counts: pa.Table, start: str) -> TrainedVocabulary:
    settings = config.vocabulary
    rules = text_rules(config)
    required = vocabulary.required_characters(rules)
    if start:
        return vocabulary.extend_vocabulary(
            counts,
            vocabulary.read_vocab(start.encode(), settings.start_from),
            new_entries=settings.new_entries,
            vocab_size=settings.vocab_size,
            user_tokens=settings.user_tokens,
            rules=rules,
            required=required,
            min_pair_count=settings.least_pair_count,
            alphabet_limit=settings.alphabet_limit,
            alphabet_coverage=settings.alphabet_coverage,
            max_input_chars_per_word=settings.max_input_chars_per_word,
        )
    return vocabulary.train_wordpiece(
        counts,
        vocab_size=settings.vocab_size,
        leading=_leading(config),
        min_pair_count=settings.least_pair_count,
        alphabet_limit=settings.alphabet_limit,
        alphabet_coverage=settings.alphabet_coverage,
        required=required,
        algorithm=settings.algorithm,
    )


def held_out_unit(plan: Plan, unit: Mapping[str, Any]) -> dict[str, Any]:
    """Count the words of one held-out partition by source."""
    documents = read_documents(plan.documents.read(ObjectEntry(**unit["object"])))
    normalization = NormalizationTable.from_table(
        read_table(plan.generation, ObjectEntry(**unit["normalization"]))
    )
    found = vocabulary.count_by_source(documents, normalization)
    tables = [
        counts.append_column("source", pa.array([source] * counts.num_rows, pa.large_string()))
        for source, counts in found.items()
    ]
    schema = vocabulary.COUNTS_SCHEMA.append(pa.field("source", pa.large_string()))
    data = runs.write_stream(pa.concat_tables([schema.empty_table(), *tables]))
    entry = ObjectEntry.of(f"passes/{unit['marker']}.counts", data)
    facts = {"object": asdict(entry)}
    plan.generation.complete(unit["marker"], {entry.name: data}, facts)
    return facts


def card_unit(plan: Plan, unit: Mapping[str, Any]) -> dict[str, Any]:
    """Write the vocabulary card from the held-out word counts."""
    of_source = languages(plan.config)
    counts = []
    for entry in unit["tables"]:
        table = read_table(plan.generation, ObjectEntry(**entry))
        for source in of_source:
            rows = table.filter(pc.equal(table["source"], source))
            counts.append((source, rows.select(["word", "count"])))
    card = vocabulary.vocabulary_card(
        counts,
        of_source,
        plan.generation.read(ObjectEntry(**unit["tokenizer"])).decode(),
        plan.config.vocabulary.max_input_chars_per_word,
    )
    data = canonical_json(card)
    entry = ObjectEntry.of(CARD, data)
    facts = {"object": asdict(entry), "summary": vocabulary.summary(card)}
    plan.generation.complete(unit["marker"], {CARD: data}, facts)
    return facts
