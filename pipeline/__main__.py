"""Command line of the data half: `python -m pipeline COMMAND`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from pipeline import artefacts, config, working_storage
from pipeline.command_line import parse_config, run_command
from pipeline.config import MaskingConfig, PipelineConfig, require
from pipeline.contract import LABEL_MEANINGS, PAIR_LABELS
from pipeline.decoding import decode_instances, spaced
from pipeline.errors import InputError
from pipeline.instance_set import InstanceSet
from pipeline.stats import tables
from pipeline.storage import open_storage

USAGE = """\
usage: python -m pipeline COMMAND [--config FILE.toml] [--FIELD VALUE ...] [--debug]

  documents    raw files -> cleaned documents of sentences, partitioned by hash
  vocabulary   documents -> word counts, WordPiece vocabulary, tokenizer.json
  instances    documents -> Arrow shards of training instances
  run          the three stages above; each finds what is done already

  inspect URI  counts and decoded instances with their masks
  stats URI    data card of the instances: fill, labels, masks, losses, lengths
  verify URI   check schema, counts, sizes and checksums; exit code 1 on any fault
  gc ROOT      list what nothing points to and killed writers left; --delete removes it

`python -m pipeline COMMAND --help` lists a command's fields. A URI is a local path or s3://."""

Uri = Annotated[str, tyro.conf.Positional]


@dataclasses.dataclass(frozen=True, kw_only=True)
class InspectArguments:
    """Show counts and decoded instances."""

    uri: Uri
    """A run's root, a stage's folder or one generation."""
    rows: int = 3
    """Instances to decode."""
    split: Literal["train", "held_out"] = "train"
    """Which instances."""
    epoch: int = 0
    """Epoch of the masks, where they are dynamic."""
    masking: MaskingConfig = MaskingConfig()


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatsArguments:
    """Print the data card of a set of instances."""

    uri: Uri
    """A run's root, the instances folder or one generation of instances."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyArguments:
    """Check what lies at a URI against its manifests."""

    uri: Uri
    """A run's root, a stage's folder or one generation."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GcArguments:
    """List, and on request remove, what nothing points to. Not while a job runs."""

    root: Uri
    """A run's root."""
    delete: bool = False
    """Remove it."""
    unfinished: bool = False
    """Include generations that were never finished: interrupted work, checkpoints too."""
    leftover_hours: float = 24.0
    """Temporary files and incomplete uploads younger than this stay: a writer may be at work."""


def main(argv: Sequence[str]) -> int:
    """Run one command; returns its exit code."""
    command, rest = (argv[0], list(argv[1:])) if argv else ("", [])
    prog = f"python -m pipeline {command}"
    if command in ("documents", "vocabulary", "instances", "run"):
        return run_stages(command, parse_config(PipelineConfig, config.load, rest, prog))
    if command == "inspect":
        return inspect(tyro.cli(InspectArguments, prog=prog, args=rest, use_underscores=True))
    if command == "stats":
        return stats(tyro.cli(StatsArguments, prog=prog, args=rest))
    if command == "verify":
        return verify(tyro.cli(VerifyArguments, prog=prog, args=rest))
    if command == "gc":
        return gc(tyro.cli(GcArguments, prog=prog, args=rest))
    asked = command in ("-h", "--help", "help")
    print(USAGE, file=sys.stdout if asked else sys.stderr)
    if command and not asked:
        print(f"\nerror: {command}: no such command", file=sys.stderr)
    return 0 if asked else 2


def run_stages(command: str, settings: PipelineConfig) -> int:
    """Run one stage, or all three, inside one Ray session."""
    # The one way from the core to its shells; within the command, so that inspect needs no Ray.
    from pipeline.jobs import documents, instances, vocabulary  # noqa: TID251
    from pipeline.jobs.cluster import data_session  # noqa: TID251

    stages: dict[str, Callable[[PipelineConfig], Any]] = {
        "documents": documents.run,
        "vocabulary": vocabulary.run,
        "instances": instances.run,
    }
    working_storage.prepare(settings.working_storage)
    open_storage(settings.root).prepare()
    if command in ("vocabulary", "run"):
        vocabulary.check(settings)  # not after hours of documents
    with data_session(settings):
        for name, stage in stages.items():
            if command in (name, "run"):
                stage(settings)
    return 0


def inspect(arguments: InspectArguments) -> int:
    """Print a table of counts for every stage, then decoded instances."""
    for key in ("rows", "epoch"):
        value = getattr(arguments, key)
        require(value >= 0, f"--{key}", value, "must be >= 0")
    console = Console(highlight=False)
    for generation in artefacts.find(arguments.uri):
        manifest = generation.manifest() or {}  # refuses one that was changed
        title = f"{generation.stage} {generation.fingerprint}"
        if "counts" in manifest:  # training and export have none: the report tells of them
            console.print(_counts_table(title, manifest["counts"]))
        if "held_out" in manifest:
            console.print(_card_table(manifest["held_out"]))
        if generation.stage == "instances":
            for one in InstanceSet.all_of(generation, manifest):
                about = f"{title}, {one.max_seq_length} tokens"
                console.print(_counts_table(about, one.manifest["counts"]))
                _print_decoded(console, one, arguments)
    return 0


def _print_decoded(console: Console, instances: InstanceSet, arguments: InspectArguments) -> None:
    for one in decode_instances(
        instances, arguments.split, arguments.rows, arguments.masking, arguments.epoch
    ):
        lines = [f"instance {one.number}: {one.tokens} tokens"]
        if one.label is not None:
            objective = instances.objective
            meaning = LABEL_MEANINGS[objective][one.label]
            lines[0] += f", {PAIR_LABELS[objective]} {one.label} ({meaning})"
        lines.append(f"  A: {spaced(one.first_segment)}")
        if one.second_segment:
            lines.append(f"  B: {spaced(one.second_segment)}")
        console.print("\n".join(lines), markup=False)


def stats(arguments: StatsArguments) -> int:
    """Print the data card of the instances at a URI as tables."""
    found = [one for one in artefacts.find(arguments.uri) if one.stage == "instances"]
    if not found:
        raise InputError(
            f"{arguments.uri}: no instances here; run `python -m pipeline instances` first, or "
            "name a run's root"
        )
    console = Console(highlight=False)
    for generation in found:
        for one in InstanceSet.all_of(generation, generation.manifest() or {}):
            about = f"instances {generation.fingerprint}, {one.max_seq_length} tokens"
            console.print(about, markup=False)
            for table in tables(one.manifest):
                console.print(table)
    return 0


def _counts_table(title: str, counts: Mapping[str, Any]) -> Table:
    table = Table("count", "value", title=title)
    for name, value in _flattened(counts):
        table.add_row(name, f"{value:,}" if isinstance(value, int) else str(value))
    return table


def _card_table(card: Mapping[str, Any]) -> Table:
    """Show how a vocabulary does on held-out text, in all and by language and source."""
    figures = ("words", "pieces_per_word", "unknown_rate", "coverage", "too_long_words")
    table = Table("held-out text", *(figure.replace("_", " ") for figure in figures))
    for name, group in [("all", card), *card["by_language"].items(), *card["by_source"].items()]:
        values = (group[figure] for figure in figures)
        table.add_row(name, *("none" if value is None else f"{value:,}" for value in values))
    return table


def _flattened(counts: Any, prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in counts.items():
        rows += (
            _flattened(value, f"{name}.") if isinstance(value, dict) else [(prefix + name, value)]
        )
    return rows


def verify(arguments: VerifyArguments) -> int:
    """Print every fault found; 1 if there is any."""
    console = Console(highlight=False, soft_wrap=True)
    exit_code = 0
    for what, found in artefacts.check(arguments.uri):
        for fault in found:
            console.print(f"fault: {what}: {fault}", markup=False)
        console.print(f"{what}: {f'{len(found)} faults' if found else 'whole'}", markup=False)
        exit_code = exit_code or int(bool(found))
    return exit_code


def gc(arguments: GcArguments) -> int:
    """List what nothing points to with its size; remove it if asked to."""
    hours = arguments.leftover_hours
    require(hours >= 0, "--leftover_hours", hours, "must be >= 0")
    groups = artefacts.garbage(arguments.root, unfinished=arguments.unfinished)
    leftovers = artefacts.leftovers(arguments.root)
    stale = [one for one in leftovers if one.age_seconds >= hours * 3600]
    storage = open_storage(arguments.root)
    for group, objects in groups.items():
        print(f"{group}: {len(objects)} objects, {sum(size for _, size in objects):,} bytes")
        if arguments.delete:
            # Markers and manifest first: what is left over is then not taken for finished work.
            for name, _ in sorted(objects, key=lambda one: not one[0].endswith(".json")):
                storage.delete(name)
    for what, found in (
        ("temporary files", [one for one in stale if not one.upload_id]),
        ("incomplete uploads", [one for one in stale if one.upload_id]),
    ):
        if found:
            print(
                f"{what} of killed writers: {len(found)}, {sum(one.bytes for one in found):,} bytes"
            )
    if arguments.delete:
        for one in stale:
            storage.remove_leftover(one)
    if young := len(leftovers) - len(stale):
        print(
            f"{young} begun less than {hours:g} hours ago stay; --leftover_hours 0 takes them too"
        )
    verb = "removed" if arguments.delete else "would be removed with --delete"
    print(f"{sum(map(len, groups.values())) + len(stale)} objects {verb}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
