"""The instances job: one documents partition -> encoded once, then shards of every set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from rich.console import Console

from pipeline.commit import Generation, current, require_same_identity
from pipeline.config import PipelineConfig
from pipeline.contract import SPLITS, ObjectEntry, fingerprint
from pipeline.data_card import add_up, data_card
from pipeline.document_blocks import document_blocks
from pipeline.document_encoding import EncodingVocabulary, encode_documents, has_word_starts
from pipeline.encoding import WordPieceEncoder
from pipeline.identity import (
    documents_identity,
    instances_identity,
    masking_identity,
    vocabulary_identity,
)
from pipeline.instance_checks import require_instances, require_split, warnings_of
from pipeline.instance_shards import SetWriter, Shard
from pipeline.jobs.cluster import run_units
from pipeline.jobs.vocabulary import (
    NORMALIZATION,
    TOKENIZER_JSON,
    VOCAB_TXT,
    WORD_TABLE,
    map_word_table,
    read_table,
    started_from,
)
from pipeline.masking import require_words, token_classes
from pipeline.stage import Stage
from pipeline.vocabulary import NormalizationTable, read_start, read_vocab


@dataclass(frozen=True, slots=True)
class Plan:
    """What every unit of the job needs to know; picklable."""

    generation: Generation
    documents: Generation
    vocabulary: Generation
    config: PipelineConfig


def run(config: PipelineConfig) -> dict[str, Any]:
    """Run the stage or find it done; returns its manifest."""
    texts, texts_manifest = current(config.root, "documents", "python -m pipeline documents")
    require_same_identity(
        texts,
        texts_manifest["identity"],
        documents_identity(config),
        "python -m pipeline documents",
    )
    words, words_manifest = current(config.root, "vocabulary", "python -m pipeline vocabulary")
    require_same_identity(
        words,
        {
            **words_manifest["identity"],
            "documents": words_manifest["inputs"]["documents"],
            "start_from_sha256": words_manifest.get("start_from_sha256"),
        },
        {
            **vocabulary_identity(config),
            "documents": texts.fingerprint,
            # Another text may stand under the file's name by now.
            "start_from_sha256": None,
            **started_from(read_start(config.vocabulary.start_from)),
        },
        "python -m pipeline vocabulary",
    )
    inputs = {"documents": texts.fingerprint, "vocabulary": words.fingerprint}
    generation = Generation(
        config.root,
        "instances",
        fingerprint("instances", identity=instances_identity(config), inputs=inputs),
    )
    with Stage(generation, repairs=True) as stage:
        if stage.manifest is not None:
            return stage.manifest
        plan = Plan(generation, texts, words, config)
        _require_words(config, words, words_manifest)
        built = run_units(
            stage,
            partial(build_unit, plan),
            units_of(texts_manifest),
            description="instances: encode and pair",
            workers=config.cluster.workers,
        )
        sets = [
            set_entry(config, built, number)
            for number, _ in enumerate(config.instances.max_seq_lengths)
        ]
        trained = [one["counts"]["train"] for one in sets]
        for counts in trained:
            require_instances(counts, config.instances.objective)
        console = Console(stderr=True, soft_wrap=True, highlight=False)
        # What is told of the documents is the same of every set.
        for warning in dict.fromkeys(
            one for counts in trained for one in warnings_of(config, counts)
        ):
            console.print(f"warning: {warning}", markup=False)
        tokenizer = {TOKENIZER_JSON: "tokenizer_json", VOCAB_TXT: "vocab_txt"}
        copies = {
            name: words.read(ObjectEntry(**words_manifest["objects"][name])) for name in tokenizer
        }
        generation.complete("tokenizer", copies, {})
        return stage.commit(
            {
                "identity": instances_identity(config),
                "inputs": inputs,
                "made_from": {**documents_identity(config), **vocabulary_identity(config)},
                "masking": masking_identity(config),
                "objective": config.instances.objective,
                "seed": config.seed,
                "sets": sets,
                "split_check": {
                    "documents_checked": sum(facts["documents_checked"] for facts in built),
                    "documents_shared": 0,
                },
                "sources": [source.name for source in config.documents.sources],
                "special_ids": words_manifest["special_ids"],
                "tokenizer": {
                    key: words_manifest["objects"][name] for name, key in tokenizer.items()
                },
                "vocab_size": words_manifest["vocab_size"],
                "word_starts": has_word_starts(config.documents.sources),
            }
        )


def units_of(documents: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the stage's units, one a partition, from the manifest of documents."""
    return [
        {
            "marker": f"build/{number:06d}",
            "partition": number,
            "name": file["object"]["name"].removesuffix(".arrow"),
            "split": file["split"],
            "object": file["object"],
            "bytes": file["text_bytes"],
        }
        for number, file in enumerate(documents["files"])
    ]


def set_entry(
    config: PipelineConfig, built: Sequence[Mapping[str, Any]], number: int
) -> dict[str, Any]:
    """Return what the manifest says of set `number`, from the facts of all units."""
    max_seq_length = config.instances.max_seq_lengths[number]
    counts = {
        split: add_up([one["sets"][number]["counts"] for one in built if one["split"] == split])
        for split in SPLITS
    }
    return {
        "counts": counts,
        "data_card": {
            split: data_card(
                counts[split],
                objective=config.instances.objective,
                max_seq_length=max_seq_length,
                duplicate_factor=config.instances.duplicate_factor,
            )
            for split in SPLITS
        },
        "max_seq_length": max_seq_length,
        "shards": [shard for one in built for shard in one["sets"][number]["shards"]],
    }


def _require_words(config: PipelineConfig, words: Generation, manifest: Mapping[str, Any]) -> None:
    entries = read_vocab(words.read(ObjectEntry(**manifest["objects"][VOCAB_TXT])))
    classes = token_classes(entries, sorted(manifest["special_ids"].values()))
    segmented = has_word_starts(config.documents.sources)
    require_words(config.masking, classes, has_word_starts=segmented)


@lru_cache(maxsize=1)
def open_vocabulary(vocabulary: Generation) -> EncodingVocabulary:
    """Read a vocabulary's artefacts, verified; kept, since the next units want the same one."""
    manifest = vocabulary.manifest()
    assert manifest is not None  # the driver has read it
    entries = {name: ObjectEntry(**entry) for name, entry in manifest["objects"].items()}
    normalization = NormalizationTable.from_table(read_table(vocabulary, entries[NORMALIZATION]))
    encoder = WordPieceEncoder(
        vocabulary.read(entries[TOKENIZER_JSON]).decode(),
        map_word_table(vocabulary, entries[WORD_TABLE]),
        normalization,
    )
    return EncodingVocabulary.of(
        read_vocab(vocabulary.read(entries[VOCAB_TXT])),
        manifest["special_ids"],
        encoder,
        normalization,
    )


def build_unit(plan: Plan, unit: Mapping[str, Any]) -> dict[str, Any]:
    """Encode one partition, block by block, and write the shards of every set from it."""
    config = plan.config
    vocabulary = open_vocabulary(plan.vocabulary)
    lengths = config.instances.max_seq_lengths
    writers = [
        SetWriter(
            config,
            vocabulary,
            max_seq_length=length,
            partition=unit["partition"],
            split=unit["split"],
            name=unit["name"] if len(lengths) == 1 else f"{length}/{unit['name']}",
        )
        for length in lengths
    ]
    created: list[ObjectEntry] = []
    shards: list[list[dict[str, Any]]] = [[] for _ in writers]

    def create(number: int, made: Iterator[Shard]) -> None:
        # One by one: a worker holds the bytes of one shard, however many a partition has.
        for objects, entry in made:
            created.extend(plan.generation.create(name, data) for name, data in objects.items())
            shards[number].append(entry.to_json())

    checked = 0
    entry = ObjectEntry(**unit["object"])
    where = f"{plan.documents.root}/{plan.documents.name(entry.name)}"
    for table in document_blocks(plan.documents, entry, unit["bytes"]):
        checked += require_split(table, unit["split"], config, where)
        documents = encode_documents(table, vocabulary, config.documents.sources)
        for number, writer in enumerate(writers):
            create(number, writer.add(documents))
    for number, writer in enumerate(writers):
        create(number, writer.finish())
    sets = [
        {"counts": writer.counts, "shards": entries}
        for writer, entries in zip(writers, shards, strict=True)
    ]
    facts = {"documents_checked": checked, "sets": sets, "split": unit["split"]}
    plan.generation.complete(unit["marker"], {}, facts, created=created)
    return facts
