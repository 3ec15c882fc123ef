"""The instances job: one documents partition -> encoded, paired, (masked,) shuffled, in shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from rich.console import Console

from pipeline.commit import Generation, current, require_same_identity
from pipeline.config import PipelineConfig
from pipeline.contract import SPLITS, ObjectEntry, fingerprint
from pipeline.data_card import add_up, data_card
from pipeline.encoding import WordPieceEncoder
from pipeline.identity import (
    documents_identity,
    instances_identity,
    masking_identity,
    vocabulary_identity,
)
from pipeline.instance_checks import require_instances, warnings_of
from pipeline.instance_shards import (
    count_ideographs,
    encode_documents,
    has_word_starts,
    plan_partition,
    write_partition,
)
from pipeline.jobs.cluster import run_units
from pipeline.jobs.vocabulary import (
    NORMALIZATION,
    TOKENIZER_JSON,
    VOCAB_TXT,
    WORD_TABLE,
    read_table,
)
from pipeline.masking import token_classes
from pipeline.merge import read_documents
from pipeline.stage import Stage
from pipeline.vocabulary import NormalizationTable, read_vocab


@dataclass(frozen=True, slots=True)
class Plan:
    """What every unit of the job needs to know; picklable."""

    generation: Generation
    documents: Generation
    vocabulary: Generation
    vocabulary_manifest: Mapping[str, Any]
    config: PipelineConfig

    def vocabulary_bytes(self, name: str) -> bytes:
        """Read one of the vocabulary stage's artefacts, verified."""
        return self.vocabulary.read(ObjectEntry(**self.vocabulary_manifest["objects"][name]))

    def vocabulary_table(self, name: str) -> pa.Table:
        """Read one of its Arrow tables, verified."""
        return read_table(self.vocabulary, ObjectEntry(**self.vocabulary_manifest["objects"][name]))


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
        {**words_manifest["identity"], "documents": words_manifest["inputs"]["documents"]},
        {**vocabulary_identity(config), "documents": texts.fingerprint},
        "python -m pipeline vocabulary",
    )
    inputs = {"documents": texts.fingerprint, "vocabulary": words.fingerprint}
    generation = Generation(
        config.root,
        "instances",
        fingerprint("instances", identity=instances_identity(config), inputs=inputs),
    )
    with Stage(generation) as stage:
        if stage.manifest is not None:
            return stage.manifest
        plan = Plan(generation, texts, words, words_manifest, config)
        units = [
            {
                "marker": f"build/{number:06d}",
                "partition": number,
                "name": file["object"]["name"].removesuffix(".arrow"),
                "split": file["split"],
                "object": file["object"],
                "bytes": file["text_bytes"],
            }
            for number, file in enumerate(texts_manifest["files"])
        ]
        built = run_units(
            stage,
            partial(build_unit, plan),
            units,
            description="instances: encode and pair",
            workers=config.cluster.workers,
        )
        sets = [
            set_entry(config, built, number)
            for number, _ in enumerate(config.instances.max_seq_lengths)
        ]
        console = Console(stderr=True, soft_wrap=True, highlight=False)
        for one in sets:
            require_instances(one["counts"]["train"], config.instances.objective)
            for warning in warnings_of(config, one["counts"]["train"]):
                console.print(f"warning: {warning}", markup=False)
        tokenizer = {TOKENIZER_JSON: "tokenizer_json", VOCAB_TXT: "vocab_txt"}
        copies = {name: plan.vocabulary_bytes(name) for name in tokenizer}
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
                "special_ids": words_manifest["special_ids"],
                "tokenizer": {
                    key: words_manifest["objects"][name] for name, key in tokenizer.items()
                },
                "vocab_size": words_manifest["vocab_size"],
                "word_starts": has_word_starts(config.documents.sources),
            }
        )


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


def build_unit(plan: Plan, unit: Mapping[str, Any]) -> dict[str, Any]:
    """Encode one partition, then build every set's instances of it and write their shards."""
    config = plan.config
    table = read_documents(plan.documents.read(ObjectEntry(**unit["object"])))
    normalization = NormalizationTable.from_table(plan.vocabulary_table(NORMALIZATION))
    encoder = WordPieceEncoder(
        plan.vocabulary_bytes(TOKENIZER_JSON).decode(),
        plan.vocabulary_table(WORD_TABLE),
        normalization,
    )
    vocabulary = read_vocab(plan.vocabulary_bytes(VOCAB_TXT))
    special = plan.vocabulary_manifest["special_ids"]
    classes = token_classes(vocabulary, sorted(special.values()))
    documents = encode_documents(
        table,
        encoder,
        sources=config.documents.sources,
        vocabulary=vocabulary,
        normalization=normalization,
        classes=classes,
        special_ids=special,
    )
    ideographs = count_ideographs(documents, vocabulary)
    lengths = config.instances.max_seq_lengths
    sets = []
    created = []
    for max_seq_length in lengths:
        instances, counts = plan_partition(
            documents,
            config.instances,
            max_seq_length=max_seq_length,
            seed=config.seed,
            special_ids=special,
        )
        shards = []
        masked = []
        for objects, entry, counted in write_partition(
            documents,
            instances,
            config,
            partition=unit["partition"],
            split=unit["split"],
            name=unit["name"] if len(lengths) == 1 else f"{max_seq_length}/{unit['name']}",
            classes=classes,
            special_ids=special,
        ):
            # One by one: a worker holds the bytes of one shard, however many a partition has.
            created += [plan.generation.create(name, data) for name, data in objects.items()]
            shards.append(entry.to_json())
            masked.append(counted)
        sets.append({"counts": add_up([counts, ideographs, *masked]), "shards": shards})
    facts = {"sets": sets, "split": unit["split"]}
    plan.generation.complete(unit["marker"], {}, facts, created=created)
    return facts
