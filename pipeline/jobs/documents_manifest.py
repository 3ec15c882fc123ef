"""The documents stage's manifest: what came of every byte and document of every source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline import corpus
from pipeline.config import SourceConfig
from pipeline.errors import CorruptError, InputError
from pipeline.identity import documents_identity
from pipeline.jobs.document_units import Plan

Facts = Mapping[str, Any]
Files = Mapping[str, Sequence[corpus.InputFile]]


@dataclass(frozen=True, slots=True)
class SplitResult:
    """A split that was read: its marker's facts, and where a byte limit ends in it."""

    split: corpus.Split
    facts: Facts
    ordinal_limit: int | None = None
    beyond_limit: int = 0
    """Documents from there on."""


def documents_manifest(
    plan: Plan,
    files: Files,
    inputs: Mapping[str, str],
    listings: Mapping[str, corpus.ReadReport],
    results: Sequence[SplitResult],
    merged: Sequence[Facts],
    weights: Sequence[int],
) -> dict[str, Any]:
    """Return the manifest's body.

    Raises InputError if no document is left, CorruptError if a document is not accounted for.
    """
    sources = {
        source.name: _source_counts(source, number, files, listings, results, merged)
        for number, source in enumerate(plan.config.documents.sources)
    }
    counts: Counter[str] = Counter()
    for of_source in sources.values():
        counts.update(of_source)
    if counts["kept"] == 0:
        raise InputError(
            f"documents: no document is left of {counts['read']} read "
            f"({dict(counts)}); check the sources and documents.cleaning"
        )
    places = [place for one in listings.values() for place in one.places]
    places += [place for one in results for place in one.facts["report"]["places"]]
    return {
        "counts": {
            **counts,
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
    """Count what came of one source: its files, what was read, changed, dropped and kept."""
    counts: Counter[str] = Counter(listings[source.name].counts)
    for result in results:
        if result.split.source == source.name:
            counts.update(result.facts["report"]["counts"])
            counts.update(result.facts["counts"])
            counts["dropped_beyond_limit"] += result.beyond_limit
            counts["read_bytes"] += result.split.bytes
            counts["read_text_bytes"] += result.facts["text_bytes"]
    del counts["documents"], counts["kept"]  # of the reader and of the split pass
    for facts in merged:
        counts.update(facts["by_source"][number])
    counts["kept"] = counts.pop("documents", 0)
    counts["input_bytes"] = sum(file.bytes for file in files[source.name])
    counts["input_files"] = len(files[source.name])
    dropped = sum(count for name, count in counts.items() if name.startswith("dropped_"))
    if counts["read"] + counts["repetitions"] != counts["kept"] + dropped:
        raise CorruptError(
            f"documents.sources[{source.name}]: {counts['read']} documents were read and "
            f"{counts['repetitions']} repeated, {counts['kept']} are kept and {dropped} dropped: "
            "they do not add up; remove this generation and run the stage again"
        )
    return dict(sorted((name, count) for name, count in counts.items() if count))
