"""Checkpoints: committed whole or not at all, verified before use, written by one attempt only.

Below a training generation:

    attempts/0001.json                        one for every attempt, by conditional create
    checkpoints/step-000000100-attempt-0001/  model.safetensors, optimizer.safetensors,
                                              state.json, and manifest.json last
    latest.json                               the newest one, moved by compare-and-swap

A folder without a manifest is a save that did not end; it is passed over and named. Which of them
stay is said in trainer/retention.py.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import safetensors.torch
from torch import Tensor

from pipeline.commit import Generation
from pipeline.contract import MANIFEST_VERSION, ObjectEntry, canonical_json
from pipeline.errors import ConflictError, CorruptError, LastingStorageError
from pipeline.storage import Storage, sha256
from trainer.attempt_fence import AttemptFence

MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
MANIFEST = "manifest.json"
DECISION = "decision.json"
POINTER = "latest.json"

_FOLDER = re.compile(r"checkpoints/step-(\d{9,})-attempt-(\d{4,})/")
_CHUNK_BYTES = 1 << 26
_ADOPTED = canonical_json({"is": "adopted by a later attempt"})
_WITHDRAWN = canonical_json({"is": "withdrawn by its own attempt"})

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRef:
    """Names one committed checkpoint of a training generation, and its very bytes."""

    step: int
    """Updates done."""
    attempt: int
    manifest_sha256: str

    @property
    def name(self) -> str:
        """Its folder below the generation."""
        return checkpoint_folder(self.step, self.attempt)

    def to_json(self) -> dict[str, Any]:
        """Return the form latest.json holds and rank 0 broadcasts."""
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> CheckpointRef:
        """Rebuild a reference from `to_json`."""
        return CheckpointRef(**value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a run goes on from; tensors are on the CPU, exact to the bit."""

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]


def checkpoint_folder(step: int, attempt: int) -> str:
    """Return the name of a checkpoint's folder below the generation."""
    return f"checkpoints/step-{step:09d}-attempt-{attempt:04d}"


def save(
    fence: AttemptFence,
    *,
    step: int,
    model: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> CheckpointRef:
    """Commit a checkpoint under a new name and point latest.json at it.

    Tensors are contiguous, on the CPU, and none shares memory with another. `state` is JSON.
    Raises ConflictError if a later attempt has begun; nothing is then published.
    """
    return write(fence, step, model, optimizer, canonical_json(state))


def write(
    fence: AttemptFence,
    step: int,
    model: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: bytes,
) -> CheckpointRef:
    """Do what `save` does, with a state that is serialised already."""
    generation = fence.generation
    storage = generation.storage
    folder = checkpoint_folder(step, fence.attempt)
    fence.require_newest(storage)
    entries = []
    # One file after the other: only one is in memory twice.
    for name, tensors in ((MODEL, model), (OPTIMIZER, optimizer), (STATE, None)):
        data = state if tensors is None else safetensors.torch.save(dict(tensors))
        storage.create(generation.name(f"{folder}/{name}"), data)
        entries.append(asdict(ObjectEntry.of(name, data)))
    manifest = canonical_json(
        {
            "attempt": fence.attempt,
            "fingerprint": generation.fingerprint,
            "objects": entries,
            "step": step,
            "version": MANIFEST_VERSION,
        }
    )
    storage.create(generation.name(f"{folder}/{MANIFEST}"), manifest)
    ref = CheckpointRef(step=step, attempt=fence.attempt, manifest_sha256=sha256(manifest))
    try:
        # Now a later attempt either sees this checkpoint, or is seen here.
        fence.require_newest(storage)
        _point(storage, fence, ref)
    except ConflictError:
        if _decided(generation, ref, _WITHDRAWN):
            withdraw(generation, step, fence.attempt)
        raise
    return ref


def adopt(fence: AttemptFence, ref: CheckpointRef) -> bool:
    """Keep a checkpoint for this attempt to begin from; False if its own attempt took it back.

    That attempt was superseded while it committed: either may come first, and one object that both
    would create decides.
    """
    return ref.attempt == fence.attempt or _decided(fence.generation, ref, _ADOPTED)


def withdraw(generation: Generation, step: int, attempt: int) -> None:
    """Make a checkpoint one no more; what it had is removed with the old ones."""
    generation.storage.delete(_manifest_name(generation, step, attempt))


def _manifest_name(generation: Generation, step: int, attempt: int) -> str:
    return generation.name(f"{checkpoint_folder(step, attempt)}/{MANIFEST}")


def _decided(generation: Generation, ref: CheckpointRef, what: bytes) -> bool:
    """Say whether that is what became of the checkpoint; who comes first decides."""
    try:
        generation.storage.create(generation.name(f"{ref.name}/{DECISION}"), what)
    except ConflictError:
        return False
    return True


def committed(generation: Generation) -> list[tuple[int, int]]:
    """Return (step, attempt) of every checkpoint with a manifest, the newest first."""
    storage = generation.storage
    return [
        (step, attempt)
        for step, attempt in newest_first(storage, generation)
        if storage.size(_manifest_name(generation, step, attempt)) is not None
    ]


def had_checkpoints(generation: Generation) -> bool:
    """Say whether there are checkpoints, or folders of some that latest.json tells of."""
    storage = generation.storage
    has_pointer = storage.size(generation.name(POINTER)) is not None
    return bool(committed(generation)) or (has_pointer and newest_first(storage, generation) != [])


def missing_newest(generation: Generation) -> tuple[str, ...]:
    """Return what is wrong where latest.json names a checkpoint of which there is nothing left."""
    storage, name = generation.storage, generation.name(POINTER)
    pointed = None if storage.size(name) is None else _pointed(storage.read(name))
    if pointed is None or (pointed.step, pointed.attempt) in newest_first(storage, generation):
        return ()
    return (f"{storage.uri}/{generation.name(pointed.name)}: was the newest, and is not there",)


def _point(storage: Storage, fence: AttemptFence, ref: CheckpointRef) -> None:
    """Move latest.json to `ref`; ConflictError if a later attempt has moved it."""
    name = fence.generation.name(POINTER)
    while True:
        found = None if storage.size(name) is None else storage.read(name)
        if found is not None:
            pointed = _pointed(found)
            if pointed is not None and pointed.attempt > ref.attempt:
                raise ConflictError(
                    f"{storage.uri}/{name}: points at {pointed.name}, of a later attempt than "
                    f"{ref.name}; this worker group was cut off and must end"
                )
        if storage.replace_if(name, found, canonical_json(ref.to_json())):
            return


def _pointed(data: bytes) -> CheckpointRef | None:
    """Return what latest.json names; None if it was damaged: a new one takes its place."""
    try:
        return CheckpointRef.from_json(json.loads(data))
    except (TypeError, ValueError):
        return None


def latest(
    generation: Generation, *, since: int = 0, before: int | None = None
) -> tuple[CheckpointRef | None, tuple[str, ...]]:
    """Return the newest checkpoint (by step, then attempt) whose every byte verifies.

    Of the steps from `since` on, and those below `before` if it is given.

    And why newer ones were passed over: not complete, cut short, changed, or of another run;
    each is logged as a warning too. None if there is no checkpoint.
    Raises StorageError where the store does not answer: that is no reason to pass one over.
    """
    storage = generation.storage
    skipped: list[str] = []
    for step, attempt in newest_first(storage, generation):
        if step < since or (before is not None and step >= before):
            continue
        try:
            return _verify(storage, generation, step, attempt), tuple(skipped)
        except (CorruptError, LastingStorageError) as error:
            manifest = _manifest_name(generation, step, attempt)
            if isinstance(error, LastingStorageError) and storage.size(manifest) is not None:
                raise  # nobody took it back meanwhile
            _log.warning("checkpoint passed over: %s", error)
            skipped.append(str(error))
    return None, tuple(skipped)


def load(generation: Generation, ref: CheckpointRef) -> Checkpoint:
    """Read and verify a checkpoint.

    Raises CorruptError, naming the object, unless all its bytes are what `ref` stands for, and
    if it was made by a run of another fingerprint.
    """
    storage = generation.storage
    read = {
        entry.name: _read_object(storage, generation.name(f"{ref.name}/{entry.name}"), entry)
        for entry in _entries(storage, generation, ref)
    }
    return Checkpoint(
        model=safetensors.torch.load(read[MODEL]),
        optimizer=safetensors.torch.load(read[OPTIMIZER]),
        state=_parsed(read[STATE], f"{storage.uri}/{generation.name(ref.name)}/{STATE}"),
    )


def checkpoint_objects(generation: Generation, ref: CheckpointRef) -> dict[str, Any]:
    """Return a checkpoint's objects as a manifest names them, below the generation."""
    named = {}
    for entry in _entries(generation.storage, generation, ref):
        name = f"{ref.name}/{entry.name}"
        named[name] = {**asdict(entry), "name": name}
    return named


def load_model(generation: Generation, ref: CheckpointRef) -> dict[str, Tensor]:
    """Read and verify the model's tensors only; raises like `load`."""
    storage = generation.storage
    entries = {entry.name: entry for entry in _entries(storage, generation, ref)}
    name = generation.name(f"{ref.name}/{MODEL}")
    return dict(safetensors.torch.load(_read_object(storage, name, entries[MODEL])))


def newest_first(storage: Storage, generation: Generation) -> list[tuple[int, int]]:
    """Return (step, attempt) of every folder, complete or not."""
    start = generation.name("")
    found = set()
    for name, _ in storage.list(generation.name("checkpoints")):
        match = _FOLDER.match(name.removeprefix(start))
        if match is not None:
            found.add((int(match[1]), int(match[2])))
    return sorted(found, reverse=True)


def _verify(storage: Storage, generation: Generation, step: int, attempt: int) -> CheckpointRef:
    folder = generation.name(checkpoint_folder(step, attempt))
    uri = f"{storage.uri}/{folder}"
    if storage.size(f"{folder}/{MANIFEST}") is None:
        raise CorruptError(
            f"{uri}: has no {MANIFEST}: the save did not end, or it was withdrawn or removed"
        )
    digest = sha256(storage.read(f"{folder}/{MANIFEST}"))
    ref = CheckpointRef(step=step, attempt=attempt, manifest_sha256=digest)
    for entry in _entries(storage, generation, ref):
        name = f"{folder}/{entry.name}"
        _check_size(storage, name, entry)
        found = hashlib.sha256()
        for offset in range(0, entry.bytes, _CHUNK_BYTES):
            length = min(_CHUNK_BYTES, entry.bytes - offset)
            found.update(storage.read_range(name, offset, length))
        _check_digest(storage, name, entry, found.hexdigest())
    return ref


def _entries(
    storage: Storage, generation: Generation, ref: CheckpointRef
) -> tuple[ObjectEntry, ...]:
    """Return what the manifest of `ref` names, if it is that manifest, of this run."""
    name = generation.name(f"{ref.name}/{MANIFEST}")
    uri = f"{storage.uri}/{name}"
    data = storage.read(name)
    if sha256(data) != ref.manifest_sha256:
        raise CorruptError(f"{uri}: SHA-256 {sha256(data)} instead of {ref.manifest_sha256}")
    manifest = _parsed(data, uri)
    expected = {
        "attempt": ref.attempt,
        "fingerprint": generation.fingerprint,
        "step": ref.step,
        "version": MANIFEST_VERSION,
    }
    for key, value in expected.items():
        if manifest.get(key) != value:
            raise CorruptError(
                f"{uri}: {key} is {manifest.get(key)!r} instead of {value!r}: it belongs to "
                "another run or was changed"
            )
    try:
        entries = tuple(ObjectEntry(**entry) for entry in manifest["objects"])
    except (KeyError, TypeError) as error:
        raise CorruptError(f"{uri}: not a checkpoint's manifest ({error!r})") from None
    if [entry.name for entry in entries] != [MODEL, OPTIMIZER, STATE]:
        raise CorruptError(f"{uri}: does not name {MODEL}, {OPTIMIZER} and {STATE}")
    return entries


def _read_object(storage: Storage, name: str, entry: ObjectEntry) -> bytes:
    _check_size(storage, name, entry)
    data = storage.read(name)
    _check_digest(storage, name, entry, sha256(data))
    return data


def _check_size(storage: Storage, name: str, entry: ObjectEntry) -> None:
    size = storage.size(name)
    if size is None:
        raise CorruptError(f"{storage.uri}/{name}: is missing, its manifest names it")
    if size != entry.bytes:
        raise CorruptError(
            f"{storage.uri}/{name}: {size} bytes, its manifest says {entry.bytes}: cut short or "
            "overwritten"
        )


def _check_digest(storage: Storage, name: str, entry: ObjectEntry, digest: str) -> None:
    if digest != entry.sha256:
        raise CorruptError(
            f"{storage.uri}/{name}: SHA-256 {digest}, its manifest says {entry.sha256}: its bytes "
            "were changed"
        )


def _parsed(data: bytes, uri: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise CorruptError(f"{uri}: not valid JSON ({error}): cut short or changed") from None
    if not isinstance(value, dict):
        raise CorruptError(f"{uri}: not a JSON object: it was changed")
    return value
