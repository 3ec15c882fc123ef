"""The documents job: passes split, deduplicate and merge, each unit with its own marker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline import corpus, documents
from pipeline.commit import Generation
from pipeline.config import PipelineConfig, SourceConfig
from pipeline.contract import ObjectEntry, canonical_json, fingerprint
from pipeline.documents import FINGERPRINT_COLUMNS, RUN_SCHEMA, PartitionCounts, Piece
from pipeline.errors import InputError
from pipeline.identity import documents_identity
from pipeline.jobs.cluster import run_units
from pipeline.stage import Stage
from pipeline.storage import sha256

_FINGERPRINTS = RUN_SCHEMA.empty_table().select(list(FINGERPRINT_COLUMNS)).schema
# Splits read before the first estimate of how many a byte limit needs.
_FIRST_WAVE = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """What every unit of the job needs to know; picklable."""

    generation: Generation
    config: PipelineConfig
    partitions: PartitionCounts

    def source(self, name: str) -> SourceConfig:
        """Return the source of that name."""
        return next(one for one in self.config.documents.sources if one.name == name)


@dataclass(frozen=True, slots=True)
class SplitResult:
    """A split that was read: its marker's facts and how many of its documents a limit keeps."""

    split: corpus.Split
    facts: Mapping[str, Any]
    ordinal_limit: int | None = None


def run(config: PipelineConfig) -> dict[str, Any]:
    """Run the stage or find it done; returns its manifest."""
    if not config.documents.sources:
        raise InputError("documents.sources: none; add a [[documents.sources]] table to the config")
    files = {
        source.name: corpus.list_files(source, config.seed) for source in config.documents.sources
    }
    inputs = {
        name: sha256(canonical_json([[file.path, file.bytes, file.checksum] for file in found]))
        for name, found in files.items()
    }
    generation = Generation(
        config.root,
        "documents",
        fingerprint("documents", identity=documents_identity(config), inputs=inputs),
    )
    with Stage(generation) as stage:
        if stage.manifest is not None:
            return stage.manifest
        raw_bytes = sum(file.bytes for found in files.values() for file in found)
        partitions = documents.choose_partitions(raw_bytes, config.documents)
        plan = Plan(generation, config, partitions)
        results = []
        number = 0
        for source in config.documents.sources:
            splits = corpus.plan_splits(source, files[source.name], config.documents.split_bytes)
            numbered = [
                corpus.Split(number + index, one.source, one.ranges)
                for index, one in enumerate(splits)
            ]
            number += len(numbered)
            results += _read_splits(stage, plan, source, numbered)
        dropped = _deduplicate(stage, plan, results) if config.documents.deduplicate else []
        merged = _merge(stage, plan, results, dropped)
        return stage.commit(_manifest(plan, files, inputs, results, dropped, merged))


def _read_splits(
    stage: Stage, plan: Plan, source: SourceConfig, splits: Sequence[corpus.Split]
) -> list[SplitResult]:
    """Read a source's splits: all of them, or in waves until its byte limit is reached.

    Waves depend on the data alone, so the same splits are read whatever the workers.
    """
    results: list[SplitResult] = []
    text_bytes = 0
    while len(results) < len(splits):
        done = len(results)
        wave = len(splits)
        if source.limit_bytes:
            missing = source.limit_bytes - text_bytes
            wave = -(-missing * done // text_bytes) if text_bytes else _FIRST_WAVE
        wanted = splits[done : done + wave]
        facts = run_units(
            stage,
            partial(split_unit, plan),
            [_split_row(split) for split in wanted],
            description="documents: read",
            workers=plan.config.cluster.workers,
        )
        for split, fact in zip(wanted, facts, strict=True):
            text_bytes += fact["text_bytes"]
            if source.limit_bytes and text_bytes > source.limit_bytes:
                excess = text_bytes - source.limit_bytes
                limit = _ordinal_limit(plan, split, fact, fact["text_bytes"] - excess)
                return [*results, SplitResult(split, fact, limit)]
            results.append(SplitResult(split, fact))
    return results


def _split_row(split: corpus.Split) -> dict[str, Any]:
    ranges = [[part.location, part.path, part.start, part.end] for part in split.ranges]
    return {
        "marker": f"split/{split.number:06d}",
        "number": split.number,
        "source": split.source,
        "ranges": ranges,
        "bytes": split.bytes,
    }


def _ordinal_limit(
    plan: Plan, split: corpus.Split, facts: Mapping[str, Any], keep_bytes: int
) -> int:
    """Return the ordinal of the first document of a split that passes `keep_bytes`."""
    result = [SplitResult(split, facts)]
    rows = [
        row
        for group in range(plan.partitions.total)
        for row in _group_rows(result, "fingerprints", group)
    ]
    table = pa.concat_tables(_read_rows(plan, rows, "fingerprints")).sort_by("ordinal")
    passed = np.cumsum(np.asarray(table["text_bytes"])) > keep_bytes
    return int(np.asarray(table["ordinal"])[np.argmax(passed)])


def _object_name(split_number: int, kind: str) -> str:
    return f"passes/split/{split_number:06d}.{kind}"


def split_unit(plan: Plan, unit: Mapping[str, Any]) -> dict[str, Any]:
    """Split pass: an input split -> its documents, grouped by partition, and fingerprints."""
    source = plan.source(unit["source"])
    ranges = tuple(corpus.FileRange(*part) for part in unit["ranges"])
    split = corpus.Split(unit["number"], unit["source"], ranges)
    report = corpus.ReadReport()
    table, counts = documents.split_documents(
        corpus.read_split(source, split, report),
        source,
        plan.config.documents,
        plan.partitions,
        plan.config.seed,
    )
    groups = plan.partitions.total
    run_data, run_pieces = documents.grouped_bytes(table, np.asarray(table["partition"]), groups)
    print_data, print_pieces = documents.grouped_bytes(
        table.select(list(FINGERPRINT_COLUMNS)),
        documents.content_group(table["content_hash"], groups),
        groups,
    )
    facts = {
        "counts": dict(counts),
        "reading": report.as_dict(),
        "pieces": {
            "run": [list(asdict(piece).values()) for piece in run_pieces],
            "fingerprints": [list(asdict(piece).values()) for piece in print_pieces],
        },
        "text_bytes": int(np.asarray(table["text_bytes"]).sum()),
    }
    objects = {
        _object_name(split.number, "run"): run_data,
        _object_name(split.number, "fingerprints"): print_data,
    }
    plan.generation.complete(unit["marker"], objects, facts)
    return facts


def _group_rows(results: Sequence[SplitResult], kind: str, group: int) -> list[list[int | None]]:
    """Name one group's byte range in every split: [split, start, end, crc32, ordinal limit]."""
    rows: list[list[int | None]] = []
    for result in results:
        start, end, crc32 = result.facts["pieces"][kind][group]
        if end > start:
            rows.append([result.split.number, start, end, crc32, result.ordinal_limit])
    return rows


def _read_rows(plan: Plan, rows: Sequence[Sequence[Any]], kind: str) -> list[pa.Table]:
    schema = RUN_SCHEMA if kind == "run" else _FINGERPRINTS
    storage = plan.generation.storage
    tables = [schema.empty_table()]
    for split, start, end, crc32, limit in rows:
        name = plan.generation.name(_object_name(split, kind))
        table = documents.read_piece(storage, name, Piece(start, end, crc32), schema)
        if limit is not None:
            table = table.filter(pa.array(np.asarray(table["ordinal"]) < limit))
        tables.append(table)
    return tables


def _deduplicate(stage: Stage, plan: Plan, results: Sequence[SplitResult]) -> list[dict[str, Any]]:
    units = [
        {
            "marker": f"deduplicate/{group:06d}",
            "rows": _group_rows(results, "fingerprints", group),
        }
        for group in range(plan.partitions.total)
    ]
    return run_units(
        stage,
        partial(deduplicate_unit, plan),
        units,
        description="documents: deduplicate",
        workers=plan.config.cluster.workers,
    )


def deduplicate_unit(plan: Plan, unit: Mapping[str, Any]) -> dict[str, Any]:
    """Deduplicate pass: one range of content hashes -> the documents to drop, by partition."""
    table = documents.duplicates(_read_rows(plan, unit["rows"], "fingerprints"))
    data, pieces = documents.grouped_bytes(
        table, np.asarray(table["partition"]), plan.partitions.total
    )
    facts = {
        "dropped": table.num_rows,
        "pieces": [list(asdict(piece).values()) for piece in pieces],
    }
    plan.generation.complete(unit["marker"], {f"passes/{unit['marker']}.dropped": data}, facts)
    return facts


def _merge(
    stage: Stage,
    plan: Plan,
    results: Sequence[SplitResult],
    dropped: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    units: list[dict[str, Any]] = [
        {
            "marker": f"merge/{partition:06d}",
            "partition": partition,
            "rows": _group_rows(results, "run", partition),
            "dropped": [facts["pieces"][partition] for facts in dropped],
        }
        for partition in range(plan.partitions.total)
    ]
    for unit in units:
        unit["bytes"] = sum(row[2] - row[1] for row in unit["rows"])
    return run_units(
        stage,
        partial(merge_unit, plan),
        units,
        description="documents: merge",
        workers=plan.config.cluster.workers,
    )


def merge_unit(plan: Plan, unit: Mapping[str, Any]) -> dict[str, Any]:
    """Merge pass: one partition of every split -> its documents in hash order."""
    partition = unit["partition"]
    storage = plan.generation.storage
    dropped = [
        documents.read_piece(
            storage,
            plan.generation.name(f"passes/deduplicate/{number:06d}.dropped"),
            Piece(*piece),
            _FINGERPRINTS,
        )
        for number, piece in enumerate(unit["dropped"])
    ]
    table = documents.merge_partition(_read_rows(plan, unit["rows"], "run"), dropped)
    split = "train" if partition < plan.partitions.train else "held_out"
    number = partition if split == "train" else partition - plan.partitions.train
    data = documents.write_documents(table)
    entry = ObjectEntry.of(f"{split}-{number:05d}.arrow", data)
    sentences = table["sentences"].combine_chunks()
    facts = {
        "object": asdict(entry),
        "split": split,
        "documents": table.num_rows,
        "sentences": len(sentences.flatten()),
        "text_bytes": pc.sum(pc.binary_length(sentences.flatten())).as_py() or 0,
    }
    plan.generation.complete(unit["marker"], {entry.name: data}, facts)
    return facts


def _manifest(
    plan: Plan,
    files: Mapping[str, Sequence[corpus.InputFile]],
    inputs: Mapping[str, str],
    results: Sequence[SplitResult],
    dropped: Sequence[Mapping[str, Any]],
    merged: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(result.facts["counts"])
    kept = sum(facts["documents"] for facts in merged)
    duplicate = sum(facts["dropped"] for facts in dropped)
    if kept == 0:
        raise InputError(
            f"documents: no document is left of {counts['read']} read "
            f"({dict(counts)}); check the sources and documents.minimum_characters"
        )
    beyond = counts.pop("kept", 0) - duplicate - kept
    return {
        "counts": {
            **counts,
            "dropped_beyond_limit": beyond,
            "dropped_duplicate": duplicate,
            "empty_files": sum(file.bytes == 0 for found in files.values() for file in found),
            "input_bytes": sum(file.bytes for found in files.values() for file in found),
            "input_files": sum(map(len, files.values())),
            "kept": kept,
            "read_bytes": sum(result.split.bytes for result in results),
            "sentences": sum(facts["sentences"] for facts in merged),
            "text_bytes": sum(facts["text_bytes"] for facts in merged),
        },
        "identity": documents_identity(plan.config),
        "inputs": dict(inputs),
        "partitions": asdict(plan.partitions),
        "files": list(merged),
    }
