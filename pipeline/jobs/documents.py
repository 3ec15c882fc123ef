"""The documents job: passes split, deduplicate, paragraphs and merge, each unit with its marker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline import corpus, documents
from pipeline.commit import Generation
from pipeline.config import PipelineConfig, SourceConfig
from pipeline.contract import canonical_json, fingerprint
from pipeline.errors import ConfigError
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
from pipeline.jobs.documents_manifest import Facts, Files, SplitResult, documents_manifest
from pipeline.stage import Stage
from pipeline.storage import sha256
from pipeline.weights import fixed_point_weights

# Splits read before the first estimate of how many a byte limit needs.
_FIRST_WAVE = 8

Unit = Callable[[Plan, Mapping[str, Any]], dict[str, Any]]


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
    with Stage(generation, repairs=True) as stage:
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
        sizes = [self._text_bytes(source, results) for source in config.sources]
        weights = fixed_point_weights(config, sizes)
        cleaning = config.cleaning
        dropped: list[dict[str, Any]] = []
        if cleaning.deduplicate:
            units = self._by_content("deduplicate", results, "fingerprints", [], weights)
            dropped = self._units(deduplicate_unit, units, "deduplicate")
        repeated: list[dict[str, Any]] = []
        if cleaning.deduplicate_paragraphs:
            units = self._by_content("paragraphs", results, "paragraphs", dropped, weights)
            repeated = self._units(paragraph_unit, units, "paragraphs")
        merged = self._merge(results, dropped, repeated, weights)
        return documents_manifest(self.plan, files, inputs, listings, results, merged, weights)

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
                    limit, beyond = self._limit(split, fact, fact["text_bytes"] - excess)
                    return [*results, SplitResult(split, fact, limit, beyond)]
                results.append(SplitResult(split, fact))
        return results

    @staticmethod
    def _text_bytes(source: SourceConfig, results: Sequence[SplitResult]) -> int:
        """Return the text that is kept of a source, to the document that a limit ends in."""
        size: int = sum(
            one.facts["text_bytes"] for one in results if one.split.source == source.name
        )
        return min(size, source.limit_bytes) if source.limit_bytes else size

    def _limit(self, split: corpus.Split, facts: Facts, keep_bytes: int) -> tuple[int, int]:
        """Return the ordinal of the first document past `keep_bytes`, and how many there are."""
        rows = _rows([SplitResult(split, facts)], "fingerprints")
        every = [row for group in sorted(rows) for row in rows[group]]
        table = pa.concat_tables(read_rows(self.plan, every, "fingerprints")).sort_by("ordinal")
        passed = np.cumsum(np.asarray(table["text_bytes"])) > keep_bytes
        return int(np.asarray(table["ordinal"])[np.argmax(passed)]), int(passed.sum())

    def _by_content(
        self,
        name: str,
        results: Sequence[SplitResult],
        kind: str,
        dropped: Sequence[Facts],
        weights: Sequence[int],
    ) -> list[dict[str, Any]]:
        """Return the units of a pass over ranges of content hashes."""
        rows = _rows(results, kind)
        return [
            {
                "marker": f"{name}/{group:06d}",
                "group": group,
                "rows": rows.get(group, []),
                "dropped": [facts["pieces"] for facts in dropped],
                "weights": weights,
            }
            for group in range(self.plan.partitions.total)
        ]

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
