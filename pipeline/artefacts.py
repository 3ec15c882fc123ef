"""What lies at a URI: `verify` checks it against its manifest, `gc` finds what is not used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from tokenizers import Tokenizer

from pipeline.commit import MANIFEST, Generation, check_manifest, parse_json, read_pointer
from pipeline.contract import DOCUMENT_SCHEMA, ObjectEntry, ShardEntry
from pipeline.documents import read_documents
from pipeline.errors import ClozelineError, CorruptError, InputError
from pipeline.instance_set import InstanceSet
from pipeline.shards import shard_faults
from pipeline.storage import TEMPORARY_PREFIX, open_storage, sha256
from pipeline.vocabulary import read_vocab

STAGES = ("documents", "vocabulary", "instances", "training", "export")


@dataclass(frozen=True, slots=True)
class Artefact:
    """A complete generation and its manifest."""

    generation: Generation
    manifest: Mapping[str, Any]


def find(uri: str) -> list[Artefact]:
    """Return the complete generations at a run's root, a stage or a generation.

    Raises InputError if there is none.
    """
    uri = uri.rstrip("/").removesuffix(f"/{MANIFEST}")
    storage = open_storage(uri)
    head, _, last = uri.rpartition("/")
    if storage.size(MANIFEST) is not None:
        root, _, stage = head.rpartition("/")
        found = [Generation(root or ".", stage, last)]
    elif pointer := read_pointer(head or ".", last):
        found = [pointer[0]]
    else:
        pointers = (read_pointer(uri, stage) for stage in STAGES)
        found = [pointer[0] for pointer in pointers if pointer]
    if not found or any(one.stage not in STAGES for one in found):
        raise InputError(
            f"{uri}: no finished stage here; name a run's root, a stage's folder or a generation"
        )
    return [Artefact(one, _manifest(one)) for one in found]


def _manifest(generation: Generation) -> Mapping[str, Any]:
    uri = f"{generation.root}/{generation.name(MANIFEST)}"
    data = generation.storage.read(generation.name(MANIFEST))
    return check_manifest(parse_json(data, uri), uri)


def faults(artefact: Artefact) -> Iterator[str]:
    """Yield every way in which a generation differs from its manifest."""
    generation = artefact.generation
    if artefact.manifest.get("fingerprint") != generation.fingerprint:
        yield f"{MANIFEST}: fingerprint {artefact.manifest.get('fingerprint')} is not the folder's"
        return
    pointer = read_pointer(generation.root, generation.stage)
    if pointer and pointer[0] == generation:
        found = sha256(generation.storage.read(generation.name(MANIFEST)))
        if found != pointer[1]:
            # What a changed manifest says of the objects is worth nothing.
            yield f"{MANIFEST}: SHA-256 {found} where current.json says {pointer[1]}"
            return
    checks = {
        "documents": _document_faults,
        "vocabulary": _vocabulary_faults,
        "instances": _instance_faults,
        "training": _object_faults,
        "export": _object_faults,
    }
    yield from checks[generation.stage](artefact)


def _read(artefact: Artefact, entry: Mapping[str, Any]) -> tuple[bytes | None, str]:
    try:
        return artefact.generation.read(ObjectEntry(**entry)), ""
    except ClozelineError as error:
        return None, str(error)


def _document_faults(artefact: Artefact) -> Iterator[str]:
    documents = 0
    for file in artefact.manifest["files"]:
        data, fault = _read(artefact, file["object"])
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
    if documents != artefact.manifest["counts"]["kept"]:
        yield f"{documents} documents, the manifest says {artefact.manifest['counts']['kept']}"


def _object_faults(artefact: Artefact) -> Iterator[str]:
    for entry in artefact.manifest["objects"].values():
        _, fault = _read(artefact, entry)
        if fault:
            yield fault


def _vocabulary_faults(artefact: Artefact) -> Iterator[str]:
    objects = {}
    for name, entry in artefact.manifest["objects"].items():
        objects[name], fault = _read(artefact, entry)
        if fault:
            yield fault
    if objects["vocab.txt"] is None or objects["tokenizer.json"] is None:
        return
    entries = read_vocab(objects["vocab.txt"])
    if len(entries) != artefact.manifest["vocab_size"]:
        yield f"vocab.txt: {len(entries)} entries, not {artefact.manifest['vocab_size']}"
    tokenizer = Tokenizer.from_str(objects["tokenizer.json"].decode())
    if tokenizer.get_vocab() != {entry: number for number, entry in enumerate(entries)}:
        yield "tokenizer.json: its vocabulary is not that of vocab.txt"


def _instance_faults(artefact: Artefact) -> Iterator[str]:
    instances = InstanceSet(artefact.generation, artefact.manifest)
    yield from _object_faults(
        Artefact(artefact.generation, {"objects": artefact.manifest["tokenizer"]})
    )
    for split, counts in artefact.manifest["counts"].items():
        rows = tokens = 0
        for shard in (one for one in artefact.manifest["shards"] if one["split"] == split):
            data, fault = _read(artefact, shard["object"])
            lengths, other_fault = _read(artefact, shard["lengths"])
            yield from filter(None, (fault, other_fault))
            if data is not None and lengths is not None:
                entry = ShardEntry.from_json(shard)
                found = shard_faults(data, lengths, entry, instances.schema, instances.vocab_size)
                yield from (f"{entry.object.name}: {one}" for one in found)
            rows += shard["rows"]
            tokens += shard["tokens"]
        stated = (counts.get("instances", 0), counts.get("tokens", 0))
        if (rows, tokens) != stated:
            yield f"{split}: {rows} instances and {tokens} tokens in shards, not {stated}"


def garbage(root: str, *, unfinished: bool = False) -> dict[str, list[tuple[str, int]]]:
    """Return what nothing points to, as group -> (object, bytes): for `gc`.

    Groups are finished generations that neither a current.json nor, link by link, the inputs of
    a current generation name; the passes of finished generations; temporary files of writers
    that were killed; and only if asked for, generations that were never finished: the command
    that began one goes on from it.
    """
    storage = open_storage(root)
    objects = [one for stage in STAGES for one in storage.list(f"{stage}/")]
    if not objects:
        raise InputError(f"{storage.uri}: no stage's folder here; name a run's root")
    finished = {name.removesuffix(f"/{MANIFEST}") for name, _ in objects if _is_manifest(name)}
    wanted = _wanted(root)
    groups: dict[str, list[tuple[str, int]]] = {}
    for name, size in objects:
        parts = name.split("/")
        prefix = "/".join(parts[:2])
        if parts[-1].startswith(TEMPORARY_PREFIX):
            groups.setdefault("temporary files of killed writers", []).append((name, size))
        elif len(parts) < 3:  # the stage's pointer
            continue
        elif prefix not in finished:
            if unfinished:
                groups.setdefault(f"{prefix} (not finished)", []).append((name, size))
        elif prefix not in wanted:
            groups.setdefault(f"{prefix} (nothing points to it)", []).append((name, size))
        elif parts[2] == "passes":
            groups.setdefault(f"{prefix}/passes (finished)", []).append((name, size))
    return groups


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
        inputs = manifest.get("inputs", {}).items()  # of documents: sources, not stages
        pending += [Generation(root, *one) for one in inputs if generation.stage != "documents"]
    return wanted
