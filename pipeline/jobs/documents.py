"""The documents job: passes split, deduplicate, paragraphs and merge, each unit with its marker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline import corpus, documents
from pipeline.commit import Generation
from pipeline.config import PipelineConfig, SourceConfig
from pipeline.contract import canonical_json, fingerprint
from pipeline.errors import ConfigError, InputError
from pipeline.identity import documents_identity
from pipeline.jobs.cluster import run_units
from pipeline.jobs.document_units import (
    Plan,
    Row,
    deduplicate_unit,
    merge_unit,
    paragraph_unit,
    read_rows,
    split_unit,
)
from pipeline.stage import Stage
from pipeline.storage import sha256
from pipeline.weights import fixed_point_weights

# Splits read before the first estimate of how many a byte limit needs.
_FIRST_WAVE = 8

Facts = Mapping[str, Any]
Files = Mapping[str, Sequence[corpus.InputFile]]
Unit = Callable[[Plan, Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class SplitResult:
    """A split that was read: its marker's facts and how many of its documents a limit keeps."""

    split: corpus.Split
    facts: Facts
    ordinal_limit: int | None = None


def run(config: PipelineConfig) -> dict[str, Any]:
    """Run the stage or find it done; returns its manifest."""
    if not config.documents.sources:
        raise ConfigError(
            "documents.sources: none; add a [[documents.sources]] table to the config"
        )
    listings = {source.name: corpus.ReadReport() for source in config.documents.sources}
    files = {
        source.name: corpus.list_files(source, config.seed, listings[source.name])
        for source in config.documents.sources
    }
    for source in config.documents.sources:
        names = {file.location: f"{source.name}/{file.path}" for file in files[source.name]}
        # Of files that are left out the place below the source's root is all there is.
        listings[source.name].name_places({f"{_root(source.path)}/": f"{source.name}/", **names})
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
        text_bytes = _estimate(files)
        plan = Plan(generation, config, documents.choose_partitions(text_bytes, config.documents))
        passes = Passes(plan, partial(run_units, stage))
        return stage.commit(passes.run(files, inputs, listings, text_bytes))


def _root(path: str) -> str:
    return path.rstrip("/") if "://" in path else str(Path(path).expanduser().absolute())


def _estimate(files: Files) -> int:
    plain = compressed = 0
    for file in (one for found in files.values() for one in found):
        if PurePath(file.location).suffix in corpus.COMPRESSION_SUFFIXES:
            compressed += file.bytes
        else:
            plain += file.bytes
    return documents.estimated_text_bytes(plain, compressed)


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes of one run of the stage, in order; `run_units` does the units of one."""

    plan: Plan
    run_units: Callable[..., list[dict[str, Any]]]

    def run(
        self,
        files: Files,
        inputs: Mapping[str, str],
        listings: Mapping[str, corpus.ReadReport],
        text_bytes: int,
    ) -> dict[str, Any]:
        """Run every pass; returns the manifest."""
        config = self.plan.config.documents
        split_bytes = documents.unit_bytes(text_bytes, config.split_bytes)
        results: list[SplitResult] = []
        number = 0
        for source in config.sources:
            splits = corpus.plan_splits(source, files[source.name], split_bytes)
            numbered = [
                corpus.Split(number + index, one.source, one.ranges)
                for index, one in enumerate(splits)
            ]
            number += len(numbered)
            results += self._read_splits(source, numbered)
        sizes = {
            source.name: sum(
                one.facts["text_bytes"] for one in results if one.split.source == source.name
            )
            for source in config.sources
        }
        weights = fixed_point_weights(config, list(sizes.values()))
        cleaning = config.cleaning
        dropped: list[dict[str, Any]] = []
        if cleaning.deduplicate:
            dropped = self._by_content("deduplicate", deduplicate_unit, "fingerprints", results, [])
        repeated: list[dict[str, Any]] = []
        if cleaning.deduplicate_paragraphs:
            repeated = self._by_content(
                "paragraphs", paragraph_unit, "paragraphs", results, dropped
            )
        merged = self._merge(results, dropped, repeated, weights)
        return _manifest(self.plan, files, inputs, listings, results, merged, weights)

    def _units(
        self, work: Unit, units: Sequence[Mapping[str, Any]], description: str
    ) -> list[dict[str, Any]]:
        return self.run_units(
            partial(work, self.plan),
            units,
            description=f"documents: {description}",
            workers=self.plan.config.cluster.workers,
        )

    def _read_splits(
        self, source: SourceConfig, splits: Sequence[corpus.Split]
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
            facts = self._units(split_unit, [_split_row(split) for split in wanted], "read")
            for split, fact in zip(wanted, facts, strict=True):
                text_bytes += fact["text_bytes"]
                if source.limit_bytes and text_bytes > source.limit_bytes:
                    excess = text_bytes - source.limit_bytes
                    limit = self._ordinal_limit(split, fact, fact["text_bytes"] - excess)
                    return [*results, SplitResult(split, fact, limit)]
                results.append(SplitResult(split, fact))
        return results

    def _ordinal_limit(self, split: corpus.Split, facts: Facts, keep_bytes: int) -> int:
        """Return the ordinal of the first document of a split that passes `keep_bytes`."""
        rows = _rows([SplitResult(split, facts)], "fingerprints")
        every = [row for group in sorted(rows) for row in rows[group]]
        table = pa.concat_tables(read_rows(self.plan, every, "fingerprints")).sort_by("ordinal")
        passed = np.cumsum(np.asarray(table["text_bytes"])) > keep_bytes
        return int(np.asarray(table["ordinal"])[np.argmax(passed)])

    def _by_content(
        self,
        name: str,
        work: Unit,
        kind: str,
        results: Sequence[SplitResult],
        dropped: Sequence[Facts],
    ) -> list[dict[str, Any]]:
        """Run a pass over ranges of content hashes."""
        rows = _rows(results, kind)
        units = [
            {
                "marker": f"{name}/{group:06d}",
                "group": group,
                "rows": rows.get(group, []),
                "dropped": [facts["pieces"] for facts in dropped],
            }
            for group in range(self.plan.partitions.total)
        ]
        return self._units(work, units, name)

    def _merge(
        self,
        results: Sequence[SplitResult],
        dropped: Sequence[Facts],
        repeated: Sequence[Facts],
        weights: Sequence[int],
    ) -> list[dict[str, Any]]:
        rows = _rows(results, "run")
        ranges = self.plan.partitions.ranges
        pieces = {
            kind: _by_partition(facts)
            for kind, facts in (("deduplicate", dropped), ("paragraphs", repeated))
        }
        units = []
        for partition in range(self.plan.partitions.total):
            groups = [rows.get(partition * ranges + one, []) for one in range(ranges)]
            units.append(
                {
                    "marker": f"merge/{partition:06d}",
                    "partition": partition,
                    "ranges": groups,
                    "dropped": {kind: found.get(partition, []) for kind, found in pieces.items()},
                    "weights": weights,
                    "bytes": sum(row[4] - row[3] for group in groups for row in group),
                }
            )
        return self._units(merge_unit, units, "merge")


def _split_row(split: corpus.Split) -> dict[str, Any]:
    ranges = [list(astuple(part)) for part in split.ranges]
    return {
        "marker": f"split/{split.number:06d}",
        "number": split.number,
        "source": split.source,
        "ranges": ranges,
        "bytes": split.bytes,
    }


def _rows(results: Sequence[SplitResult], kind: str) -> dict[int, list[Row]]:
    """Return what each group has in the run files of a kind, in order of split and chunk."""
    rows: dict[int, list[Row]] = {}
    for result in results:
        for chunk, pieces in enumerate(result.facts["pieces"][kind]):
            for piece in pieces:
                row = [result.split.number, chunk, *piece, result.ordinal_limit]
                rows.setdefault(piece[0], []).append(row)
    return rows


def _by_partition(facts: Sequence[Facts]) -> dict[int, list[list[int]]]:
    """Return the pieces for each partition of what deduplicate units drop: [unit, *piece]."""
    found: dict[int, list[list[int]]] = {}
    for group, one in enumerate(facts):
        for piece in one["pieces"]:
            found.setdefault(piece[0], []).append([group, *piece])
    return found


def _manifest(
    plan: Plan,
    files: Files,
    inputs: Mapping[str, str],
    listings: Mapping[str, corpus.ReadReport],
    results: Sequence[SplitResult],
    merged: Sequence[Facts],
    weights: Sequence[int],
) -> dict[str, Any]:
    sources = {
        source.name: _source_counts(source, number, files, listings, results, merged)
        for number, source in enumerate(plan.config.documents.sources)
    }
    counts: Counter[str] = Counter()
    for of_source in sources.values():
        counts.update(of_source)
    for facts in merged:
        counts.update(facts["counts"])
    kept = counts.pop("documents")
    if kept == 0:
        raise InputError(
            f"documents: no document is left of {counts['read']} read "
            f"({dict(counts)}); check the sources and documents.cleaning"
        )
    # Of what the split pass kept, every document is here, repeated, or dropped by a later pass.
    gone = sum(
        counts[f"dropped_{reason}"] for reason in ("duplicate", "repeated_paragraphs", "sampled")
    )
    counts["dropped_beyond_limit"] = (
        counts["split_pass_kept"] - gone - (kept - counts["repetitions"])
    )
    places = [place for one in listings.values() for place in one.places]
    places += [place for one in results for place in one.facts["report"]["places"]]
    return {
        "counts": {
            **counts,
            "kept": kept,
            "sentences": sum(facts["sentences"] for facts in merged),
            "text_bytes": sum(facts["text_bytes"] for facts in merged),
        },
        "files": list(merged),
        "identity": documents_identity(plan.config),
        "inputs": dict(inputs),
        "partitions": asdict(plan.partitions),
        "places": places[: corpus.MOST_PLACES],
        "sources": {
            name: {**of_source, "weight": weight / (1 << 32)}
            for (name, of_source), weight in zip(sources.items(), weights, strict=True)
        },
    }


def _source_counts(
    source: SourceConfig,
    number: int,
    files: Files,
    listings: Mapping[str, corpus.ReadReport],
    results: Sequence[SplitResult],
    merged: Sequence[Facts],
) -> dict[str, int]:
    """Count what came of one source: its files, what was read, changed and dropped."""
    counts: Counter[str] = Counter(listings[source.name].counts)
    for result in results:
        if result.split.source == source.name:
            counts.update(result.facts["report"]["counts"])
            counts.update(result.facts["counts"])
            counts["read_bytes"] += result.split.bytes
            counts["read_text_bytes"] += result.facts["text_bytes"]
    counts["split_pass_kept"] = counts.pop("kept", 0)
    counts["documents"] = sum(facts["by_source"][number] for facts in merged)
    counts["input_bytes"] = sum(file.bytes for file in files[source.name])
    counts["input_files"] = len(files[source.name])
    return dict(sorted(counts.items()))
