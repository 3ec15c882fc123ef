"""The units of work of the documents job, by pass: split, deduplicate, paragraphs, merge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline import corpus, documents, merge, paragraphs, runs
from pipeline.commit import Generation
from pipeline.config import PipelineConfig
from pipeline.contract import ObjectEntry
from pipeline.documents import FINGERPRINT_SCHEMA, RUN_SCHEMA, Partitions
from pipeline.paragraphs import PARAGRAPH_SCHEMA
from pipeline.runs import Piece
from pipeline.weights import copies

SCHEMAS = {"run": RUN_SCHEMA, "fingerprints": FINGERPRINT_SCHEMA, "paragraphs": PARAGRAPH_SCHEMA}

# A group's rows in one run file, as a unit names them:
# [split, chunk, group, start, end, CRC-32, ordinal that a byte limit ends before, or None].
Row = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """What every unit of the job needs to know; picklable."""

    generation: Generation
    config: PipelineConfig
    partitions: Partitions

    def source_number(self, name: str) -> int:
        """Return the place of a source in the config."""
        return [one.name for one in self.config.documents.sources].index(name)


def run_file(split: int, chunk: int, kind: str) -> str:
    """Name the object that one chunk of a split leaves for a later pass."""
    return f"passes/split/{split:06d}-{chunk:04d}.{kind}"


def split_unit(plan: Plan, unit: Mapping[str, Any]) -> dict[str, Any]:
    """Split pass: an input split -> chunks of its documents and fingerprints, grouped."""
    number = plan.source_number(unit["source"])
    source = plan.config.documents.sources[number]
    ranges = tuple(corpus.FileRange(*part) for part in unit["ranges"])
    split = corpus.Split(unit["number"], unit["source"], ranges)
    partitions = plan.partitions
    counts: Counter[str] = Counter()
    report = corpus.ReadReport()
    pieces: dict[str, list[list[list[int]]]] = {kind: [] for kind in SCHEMAS}
    created: list[ObjectEntry] = []
    text_bytes = 0
    chunks = documents.split_documents(
        corpus.read_split(source, split, report, plan.config.working_storage),
        number,
        plan.config.documents,
        partitions,
        plan.config.seed,
        counts,
    )
    for index, chunk in enumerate(chunks):
        # Nobody reads them where neither duplicates nor the place of a limit are looked for.
        wanted = plan.config.documents.cleaning.deduplicate or source.limit_bytes
        prints = chunk.documents.select(FINGERPRINT_SCHEMA.names).slice(0, None if wanted else 0)
        grouped = {
            "run": runs.grouped_bytes(
                chunk.documents,
                documents.run_groups(chunk.documents, partitions),
                partitions.groups,
            ),
            "fingerprints": runs.grouped_bytes(
                prints, documents.content_groups(prints, partitions.total), partitions.total
            ),
            "paragraphs": runs.grouped_bytes(
                chunk.paragraphs,
                documents.content_groups(chunk.paragraphs, partitions.total),
                partitions.total,
            ),
        }
        for kind, (data, found) in grouped.items():
            pieces[kind].append([list(asdict(piece).values()) for piece in found])
            if data:
                created.append(plan.generation.create(run_file(split.number, index, kind), data))
        text_bytes += int(np.asarray(chunk.documents["text_bytes"]).sum())
    report.name_places({part.location: f"{source.name}/{part.path}" for part in ranges})
    facts = {
        "counts": dict(counts),
        "pieces": pieces,
        "report": report.as_dict(),
        "text_bytes": text_bytes,
    }
    plan.generation.complete(unit["marker"], {}, facts, created=created)
    return facts


def read_rows(plan: Plan, rows: Sequence[Row], kind: str) -> Iterator[pa.Table]:
    """Read these rows of run files, after an empty table of their schema."""
    storage = plan.generation.storage
    yield SCHEMAS[kind].empty_table()
    for split, chunk, *piece, limit in rows:
        name = plan.generation.name(run_file(split, chunk, kind))
        table = runs.read_piece(storage, name, Piece(*piece))
        if limit is not None:
            table = table.filter(pa.array(np.asarray(table["ordinal"]) < limit))
        yield table


def dropped_name(kind: str, group: int) -> str:
    """Name the object of what one deduplicate unit drops."""
    return f"passes/{kind}/{group:06d}.dropped"


def deduplicate_unit(plan: Plan, unit: Mapping[str, Any]) -> dict[str, Any]:
    """Deduplicate pass: one range of content hashes -> the documents to drop, by partition."""
    # What a weight leaves out takes no other document with it.
    table = documents.duplicates(_sampled(plan, unit, "fingerprints"))
    return _leave_dropped(plan, unit, "deduplicate", table)


def paragraph_unit(plan: Plan, unit: Mapping[str, Any]) -> dict[str, Any]:
    """Paragraph pass: one range of content hashes -> the paragraphs to drop, by partition."""
    # One object at a time: the dropped documents of a corpus need not fit memory.
    dropped = (
        table
        for group, pieces in enumerate(unit["dropped"])
        for table in _read_dropped(plan, "deduplicate", group, pieces)
    )
    table = paragraphs.repeated(_sampled(plan, unit, "paragraphs"), dropped)
    return _leave_dropped(plan, unit, "paragraphs", table)


def _sampled(plan: Plan, unit: Mapping[str, Any], kind: str) -> Iterator[pa.Table]:
    """Read a unit's rows of the documents that are in the corpus at least once."""
    for table in read_rows(plan, unit["rows"], kind):
        number = copies(table, unit["weights"], plan.partitions.train)
        yield table.filter(pa.array(number > 0))


def _leave_dropped(
    plan: Plan, unit: Mapping[str, Any], kind: str, table: pa.Table
) -> dict[str, Any]:
    partition = np.asarray(table["partition"]).astype(np.int64)
    data, pieces = runs.grouped_bytes(table, partition, plan.partitions.total)
    facts = {
        "dropped": table.num_rows,
        "pieces": [list(asdict(piece).values()) for piece in pieces],
    }
    objects = {dropped_name(kind, unit["group"]): data} if data else {}
    plan.generation.complete(unit["marker"], objects, facts)
    return facts


def _read_dropped(
    plan: Plan, kind: str, group: int, pieces: Sequence[Sequence[int]]
) -> Iterator[pa.Table]:
    name = plan.generation.name(dropped_name(kind, group))
    for piece in pieces:
        yield runs.read_piece(plan.generation.storage, name, Piece(*piece))


def merge_unit(plan: Plan, unit: Mapping[str, Any]) -> dict[str, Any]:
    """Merge pass: one partition of every run file -> its documents in hash order.

    Range by range of document hashes, so that a partition need not fit memory.
    """
    partition = unit["partition"]
    train = partition < plan.partitions.train
    losses = merge.Losses(len(plan.config.documents.sources))
    totals = {"documents": 0, "sentences": 0, "text_bytes": 0}
    dropped = {
        kind: [
            table
            for group, *piece in unit["dropped"][kind]
            for table in _read_dropped(plan, kind, group, [piece])
        ]
        for kind in ("deduplicate", "paragraphs")
    }

    def tables() -> Iterator[pa.Table]:
        for rows in unit["ranges"]:
            table = merge.merge_rows(
                read_rows(plan, rows, "run"),
                dropped["deduplicate"],
                dropped["paragraphs"],
                unit["weights"],
                losses,
                train_partitions=plan.partitions.train,
                seed=plan.config.seed,
            )
            losses.add("documents", table)
            texts = pc.list_flatten(table["sentences"])
            totals["documents"] += table.num_rows
            totals["sentences"] += len(texts)
            totals["text_bytes"] += pc.sum(pc.binary_length(texts)).as_py() or 0
            yield table

    data = merge.write_documents(tables())
    split = "train" if train else "held_out"
    number = partition if train else partition - plan.partitions.train
    entry = ObjectEntry.of(f"{split}-{number:05d}.arrow", data)
    facts = {
        "by_source": [dict(one) for one in losses.by_source],
        "object": asdict(entry),
        "split": split,
        **totals,
    }
    plan.generation.complete(unit["marker"], {entry.name: data}, facts)
    return facts
