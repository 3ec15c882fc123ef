"""What a finished run left behind: the manifests its model came from, run reports, metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.commit import MANIFEST, Generation, current
from pipeline.errors import CorruptError
from pipeline.instance_set import InstanceSet
from pipeline.stage import read_run_report
from pipeline.storage import open_storage
from trainer.journal import read_journal, unreadable_lines

_PRETRAIN = "python -m trainer pretrain"
_EXPORT = "python -m trainer export"

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The records of metrics.jsonl, each kind by ascending step."""

    train: tuple[Record, ...]
    evaluation: tuple[Record, ...]
    restarts: tuple[int, ...]
    """The step each attempt after a failed one began to log at."""
    rollbacks: tuple[Record, ...] = ()
    """Returns to a checkpoint because a loss went wrong."""
    warnings: tuple[Record, ...] = ()
    unreadable: int = 0
    """Lines that are no records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A trained run, and the generation of each earlier stage that its model came from."""

    root: str
    fingerprints: Mapping[str, str]
    """By stage, in the order of the stages."""
    documents: Mapping[str, Any]
    """Manifests, as their stages wrote them."""
    vocabulary: Mapping[str, Any]
    instances: Mapping[str, Any]
    """Of the set that was trained on."""
    training: Mapping[str, Any]
    reports: Mapping[str, Mapping[str, Any]]
    """run_report.json by stage, where it can be read; "export" only of this model's export."""
    metrics: Metrics


def read_run(root: str) -> FinishedRun:
    """Read a trained run, from its model back through the inputs that the manifests name.

    So the counts are those of the model's own data, whatever ran since. Raises InputError if
    nothing was trained yet, CorruptError if a manifest is missing or was changed.
    """
    training, manifest = current(root, "training", _PRETRAIN)
    instances, instances_manifest = _input(root, "instances", manifest)
    documents, documents_manifest = _input(root, "documents", instances_manifest)
    vocabulary, vocabulary_manifest = _input(root, "vocabulary", instances_manifest)
    generations = [documents, vocabulary, instances, training, *_export(root, training)]
    return FinishedRun(
        root=root,
        fingerprints={one.stage: one.fingerprint for one in generations},
        documents=documents_manifest,
        vocabulary=vocabulary_manifest,
        instances=InstanceSet.one_of(
            instances, instances_manifest, manifest["max_seq_length"]
        ).manifest,
        training=manifest,
        reports={
            one.stage: report for one in generations if (report := read_run_report(one)) is not None
        },
        metrics=metrics_of(read_journal(training), manifest, unreadable_lines(training)),
    )


def _input(
    root: str, stage: str, downstream: Mapping[str, Any]
) -> tuple[Generation, dict[str, Any]]:
    generation = Generation(root, stage, downstream["inputs"][stage])
    manifest = generation.manifest()
    if manifest is None:
        raise CorruptError(
            f"{root}/{generation.name(MANIFEST)}: missing, but the trained model came from it; "
            "restore that generation, or run the stages again"
        )
    return generation, manifest


def _export(root: str, training: Generation) -> Sequence[Generation]:
    if open_storage(root).size("export/current.json") is None:
        return ()
    generation, manifest = current(root, "export", _EXPORT)
    # An older model's export says nothing of this one.
    of_this_model = manifest.get("inputs", {}).get("training") == training.fingerprint
    return (generation,) if of_this_model else ()


def metrics_of(
    records: Sequence[Record], training: Mapping[str, Any], unreadable: int = 0
) -> Metrics:
    """Sort a journal's records; the manifest's evaluation counts as the one after the last step."""
    train = [record for record in records if record["kind"] == "train"]
    evaluation = {training["steps"]: {**training["evaluation"], "step": training["steps"]}}
    evaluation |= {one["step"]: one for one in records if one["kind"] == "evaluation"}
    attempts = [1, *(record["attempt"] for record in train)]
    rollbacks = tuple(record for record in records if record["kind"] == "rollback")
    after_rollback = {record["attempt"] for record in rollbacks}
    return Metrics(
        train=tuple(train),
        evaluation=tuple(evaluation[step] for step in sorted(evaluation)),
        restarts=tuple(
            record["step"]
            for record, before in zip(train, attempts, strict=False)
            if record["attempt"] > before and record["attempt"] not in after_rollback
        ),
        rollbacks=rollbacks,
        warnings=tuple(record for record in records if record["kind"] == "warning"),
        unreadable=unreadable,
    )


def series(records: Sequence[Record], name: str) -> tuple[list[float], list[float]]:
    """Return (steps, values) of the records that hold a finite `name`."""
    points = [(one["step"], one[name]) for one in records if one.get(name) is not None]
    points = [(step, value) for step, value in points if math.isfinite(value)]
    return [float(step) for step, _ in points], [float(value) for _, value in points]
