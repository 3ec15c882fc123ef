"""What lies at a URI: `verify` checks it against its manifest, `gc` finds what is not used."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from tokenizers import Tokenizer

from pipeline.commit import (
    MANIFEST,
    RUN_REPORT,
    Generation,
    objects_of,
    parse_marker,
    read_pointer,
)
from pipeline.contract import DOCUMENT_SCHEMA, METRICS_JSONL, ObjectEntry, ShardEntry
from pipeline.errors import ClozelineError, CorruptError, InputError
from pipeline.instance_set import InstanceSet
from pipeline.merge import read_documents
from pipeline.shards import shard_faults
from pipeline.stage import read_run_report
from pipeline.storage import Leftover, open_storage
from pipeline.vocabulary import read_vocab

STAGES = ("documents", "vocabulary", "instances", "training", "export")


def find(uri: str) -> list[Generation]:
    """Return the complete generations at a run's root, a stage or a generation.

    Raises InputError if there is none, CorruptError if a stage's pointer cannot be read.
    """
    place = _place(uri)
    if isinstance(place, Generation):
        return [place]
    root, stages = place
    pointers = (read_pointer(root, stage) for stage in stages)
    found = [pointer[0] for pointer in pointers if pointer]
    if not found:
        raise _nothing_at(uri)
    return found


def check(uri: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each stage or generation at a URI with its faults, none where it is whole.

    A pointer or manifest that is missing or cannot be read is a fault like any other, so that
    the other stages are checked as well. Raises InputError if there is nothing to check.
    """
    place = _place(uri)
    if isinstance(place, Generation):
        yield place.prefix, list(faults(place))
        return
    root, stages = place
    nothing = True
    for stage in stages:
        name = f"{stage}/current.json"
        try:
            pointer = read_pointer(root, stage)
        except ClozelineError as error:
            nothing = False
            yield name, [str(error)]
            continue
        if pointer:
            nothing = False
            yield pointer[0].prefix, [*faults(pointer[0]), *_missing_inputs(pointer[0])]
        elif _finished(root, stage):
            nothing = False
            yield name, [f"{root}/{name}: missing beside finished work; {_AGAIN}"]
    if nothing:
        raise _nothing_at(uri)


_AGAIN = "run the stage again, which finds the work that is done and writes it"


def _nothing_at(uri: str) -> InputError:
    return InputError(
        f"{uri}: no finished stage here; name a run's root, a stage's folder or a generation"
    )


def _place(uri: str) -> Generation | tuple[str, Sequence[str]]:
    """Tell which generation a URI names, or which stages of which root."""
    uri = uri.rstrip("/").removesuffix(f"/{MANIFEST}")
    head, _, last = uri.rpartition("/")
    if open_storage(uri).size(MANIFEST) is not None:
        root, _, stage = head.rpartition("/")
        if stage not in STAGES:
            raise _nothing_at(uri)
        return Generation(root or ".", stage, last)
    if last in STAGES and (
        open_storage(uri).size("current.json") is not None or _finished(head or ".", last)
    ):
        return head or ".", (last,)
    return uri, STAGES


def _finished(root: str, stage: str) -> bool:
    return any(_is_manifest(name) for name, _ in open_storage(root).list(f"{stage}/"))


def faults(generation: Generation) -> Iterator[str]:
    """Yield every way in which a generation differs from its manifest."""
    try:
        # What a changed manifest says of the objects is worth nothing: it is refused whole.
        manifest = generation.manifest()
    except ClozelineError as error:
        yield str(error)
        return
    if manifest is None:
        yield f"{generation.root}/{generation.name(MANIFEST)}: missing; {_AGAIN}"
        return
    checks = {
        "documents": _document_faults,
        "vocabulary": _vocabulary_faults,
        "instances": _instance_faults,
        "training": _training_faults,
        "export": _object_faults,
    }
    yield from checks[generation.stage](generation, manifest)
    if generation.stage not in ("training", "export"):
        yield from _marker_faults(generation, manifest)
    try:
        if read_run_report(generation) is None:
            yield f"{RUN_REPORT}: missing or damaged; time and memory of this stage are not known"
    except ClozelineError as error:
        yield str(error)


def _missing_inputs(generation: Generation) -> Iterator[str]:
    """Yield what a generation was made from and the root has no longer."""
    try:
        manifest = generation.manifest() or {}
    except ClozelineError:
        return  # told already
    for made_from in _inputs(generation, manifest):
        if generation.storage.size(made_from.name(MANIFEST)) is None:
            yield (
                f"{made_from.root}/{made_from.prefix}: missing or not finished, and "
                f"{generation.prefix} was made from it; run that stage again to have it back"
            )


def _inputs(generation: Generation, manifest: Mapping[str, Any]) -> list[Generation]:
    if generation.stage == "documents":  # its inputs are sources, not stages
        return []
    return [Generation(generation.root, *one) for one in manifest.get("inputs", {}).items()]


def _marker_faults(generation: Generation, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield damaged markers, and what neither the manifest nor a marker names.

    No reader needs a marker, but a run that has lost its manifest does.
    """
    storage = generation.storage
    names = [name for name, _ in storage.list(f"{generation.prefix}/")]
    known = {generation.name(name) for name in (MANIFEST, RUN_REPORT)}
    known |= {generation.name(entry.name) for entry in objects_of(manifest)}
    folder = generation.name("markers/")
    for name in (one for one in names if one.startswith(folder)):
        known.add(name)
        unit = name.removeprefix(folder).removesuffix(".json")
        try:
            marker = parse_marker(storage.read(name), unit, f"{generation.root}/{name}")
        except ClozelineError as error:
            yield str(error)
        else:
            known |= {generation.name(entry.name) for entry in objects_of(marker["objects"])}
    for name in sorted(set(names) - known):
        yield f"{generation.root}/{name}: neither the manifest nor a marker names it; remove it"


def _read(generation: Generation, entry: Mapping[str, Any]) -> tuple[bytes | None, str]:
    try:
        return generation.read(ObjectEntry(**entry)), ""
    except ClozelineError as error:
        return None, str(error)


def _document_faults(generation: Generation, manifest: Mapping[str, Any]) -> Iterator[str]:
    documents = 0
    for file in manifest["files"]:
        data, fault = _read(generation, file["object"])
        if data is None:
            yield fault
            continue
        name = file["object"]["name"]
        try:
            table = read_documents(data)
            table.validate(full=True)
        except pa.ArrowInvalid as error:
            yield f"{name}: not a valid Arrow file: {error}"
            continue
        if not table.schema.equals(DOCUMENT_SCHEMA):
            yield f"{name}: schema is {table.schema.to_string()!r}"
        if table.num_rows != file["documents"]:
            yield f"{name}: {table.num_rows} documents, the manifest says {file['documents']}"
        documents += table.num_rows
    if documents != manifest["counts"]["kept"]:
        yield f"{documents} documents, the manifest says {manifest['counts']['kept']}"


def _object_faults(generation: Generation, manifest: Mapping[str, Any]) -> Iterator[str]:
    for entry in manifest["objects"].values():
        _, fault = _read(generation, entry)
        if fault:
            yield fault


def _training_faults(generation: Generation, manifest: Mapping[str, Any]) -> Iterator[str]:
    yield from _object_faults(generation, manifest)
    name = generation.name(METRICS_JSONL)
    if generation.storage.size(name) is None:
        yield f"{METRICS_JSONL}: missing; the report has no curves without it"
        return
    for number, line in enumerate(generation.storage.read(name).splitlines(), 1):
        try:
            json.loads(line)
        except ValueError:
            yield f"{METRICS_JSONL}: line {number} is not JSON; the report leaves it out"


def _vocabulary_faults(generation: Generation, manifest: Mapping[str, Any]) -> Iterator[str]:
    objects = {}
    for name, entry in manifest["objects"].items():
        objects[name], fault = _read(generation, entry)
        if fault:
            yield fault
    if objects["vocab.txt"] is None or objects["tokenizer.json"] is None:
        return
    entries = read_vocab(objects["vocab.txt"])
    if len(entries) != manifest["vocab_size"]:
        yield f"vocab.txt: {len(entries)} entries, not {manifest['vocab_size']}"
    tokenizer = Tokenizer.from_str(objects["tokenizer.json"].decode())
    if tokenizer.get_vocab() != {entry: number for number, entry in enumerate(entries)}:
        yield "tokenizer.json: its vocabulary is not that of vocab.txt"


def _instance_faults(generation: Generation, manifest: Mapping[str, Any]) -> Iterator[str]:
    yield from _object_faults(generation, {"objects": manifest["tokenizer"]})
    for instances in InstanceSet.all_of(generation, manifest):
        yield from _set_faults(generation, instances)


def _set_faults(generation: Generation, instances: InstanceSet) -> Iterator[str]:
    for split, counts in instances.manifest["counts"].items():
        rows = tokens = 0
        for shard in (one for one in instances.manifest["shards"] if one["split"] == split):
            data, fault = _read(generation, shard["object"])
            lengths, other_fault = _read(generation, shard["lengths"])
            yield from filter(None, (fault, other_fault))
            if data is not None and lengths is not None:
                entry = ShardEntry.from_json(shard)
                found = shard_faults(
                    data,
                    lengths,
                    entry,
                    instances.schema,
                    instances.vocab_size,
                    len(instances.sources),
                )
                yield from (f"{entry.object.name}: {one}" for one in found)
            rows += shard["rows"]
            tokens += shard["tokens"]
        stated = (counts.get("instances", 0), counts.get("tokens", 0))
        if (rows, tokens) != stated:
            yield (
                f"{split}: {rows} instances and {tokens} tokens in the shards of max_seq_length "
                f"{instances.max_seq_length}, not {stated}"
            )


def garbage(root: str, *, unfinished: bool = False) -> dict[str, list[tuple[str, int]]]:
    """Return what nothing points to, as group -> (object, bytes): for `gc`.

    Groups are finished generations that neither a current.json nor, link by link, the inputs of
    a current generation name; the passes of finished generations; and only if asked for,
    generations that were never finished: the command that began one goes on from it.
    Raises InputError if no stage ever wrote anything here.
    """
    storage = open_storage(root)
    objects = [one for stage in STAGES for one in storage.list(f"{stage}/")]
    if not objects and not leftovers(root):
        raise InputError(f"{storage.uri}: no stage's folder here; name a run's root")
    finished = {name.removesuffix(f"/{MANIFEST}") for name, _ in objects if _is_manifest(name)}
    wanted = _wanted(root)
    groups: dict[str, list[tuple[str, int]]] = {}
    for name, size in objects:
        parts = name.split("/")
        prefix = "/".join(parts[:2])
        if len(parts) < 3:  # the stage's pointer
            continue
        if prefix not in finished:
            if unfinished:
                groups.setdefault(f"{prefix} (not finished)", []).append((name, size))
        elif prefix not in wanted:
            groups.setdefault(f"{prefix} (nothing points to it)", []).append((name, size))
        elif parts[2] == "passes":
            groups.setdefault(f"{prefix}/passes (finished)", []).append((name, size))
    return groups


def leftovers(root: str) -> list[Leftover]:
    """Return what killed writers left, and what writers at work have begun: for `gc`."""
    storage = open_storage(root)
    return [one for stage in STAGES for one in storage.leftovers(f"{stage}/")]


def _is_manifest(name: str) -> bool:
    parts = name.split("/")
    return len(parts) == 3 and parts[2] == MANIFEST


def _wanted(root: str) -> set[str]:
    """Return the folders of the current generations and of all that they were made from."""
    pending = [pointer[0] for stage in STAGES if (pointer := read_pointer(root, stage))]
    wanted: set[str] = set()
    while pending:
        generation = pending.pop()
        if generation.prefix in wanted:
            continue
        wanted.add(generation.prefix)
        manifest = generation.manifest()
        if manifest is None:
            raise CorruptError(
                f"{generation.root}/{generation.prefix}: has no {MANIFEST}, so what it needs is "
                "unknown, and a current generation needs it; run its stage again"
            )
        pending += _inputs(generation, manifest)
    return wanted
