"""The files of a checkpoint folder: config.json, and weights as safetensors or a torch pickle."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from pipeline.contract import canonical_json
from pipeline.errors import InputError
from pipeline.storage import Storage, open_storage, sha256

CONFIG = "config.json"
VOCABULARY = "vocab.txt"
TOKENIZER_CONFIG = "tokenizer_config.json"
# In the order they are looked for: safetensors cannot run code and is read faster.
WEIGHTS = ("model.safetensors", "pytorch_model.bin")

# A safetensors file: the header's length as uint64, the header as JSON, the tensors' bytes.
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFiles:
    """What was read of a folder."""

    uri: str
    """Of the weights."""
    config: Mapping[str, Any]
    weights: bytes
    vocab_txt: bytes | None
    """None where the folder has no vocab.txt: its tokenizer is another one."""
    tokenizer_config: Mapping[str, Any]
    """Empty where the folder has none."""

    @property
    def sha256(self) -> str:
        """Of settings, weights and vocabulary: what a run that starts from them depends on."""
        digests = [sha256(self.weights), sha256(self.vocab_txt or b"")]
        return sha256(canonical_json([self.config, *digests]))


def read_checkpoint(path: str) -> CheckpointFiles:
    """Read a folder (local or s3://), or a weights file whose config.json lies beside it.

    Raises InputError where a file is missing or config.json is no JSON object.
    """
    folder = path.rstrip("/") or "/"
    names: tuple[str, ...] = WEIGHTS
    if folder.endswith((".safetensors", ".bin")):
        head, _, name = folder.rpartition("/")
        folder, names = head or ("/" if folder.startswith("/") else "."), (name,)
    storage = open_storage(folder)
    found = [name for name in names if storage.size(name) is not None]
    if not found:
        raise InputError(f"{folder}: has no {' and no '.join(names)}: name a checkpoint's folder")
    return CheckpointFiles(
        uri=f"{storage.uri}/{found[0]}",
        config=_read_config(storage),
        weights=storage.read(found[0]),
        vocab_txt=storage.read(VOCABULARY) if storage.size(VOCABULARY) is not None else None,
        tokenizer_config={}
        if storage.size(TOKENIZER_CONFIG) is None
        else _read_json(storage, TOKENIZER_CONFIG),
    )


def _read_config(storage: Storage) -> Mapping[str, Any]:
    if storage.size(CONFIG) is None:
        raise InputError(
            f"{storage.uri}/{CONFIG}: no such file: tensors alone do not tell a model's heads"
        )
    return _read_json(storage, CONFIG)


def _read_json(storage: Storage, name: str) -> Mapping[str, Any]:
    uri = f"{storage.uri}/{name}"
    try:
        value = json.loads(storage.read(name))
    except ValueError as error:
        raise InputError(f"{uri}: not valid JSON ({error}): cut short or damaged") from None
    if not isinstance(value, dict):
        raise InputError(f"{uri}: holds a {type(value).__name__}, must be a JSON object")
    return value


def parse_weights(data: bytes, uri: str) -> dict[str, Tensor]:
    """Return the tensors of a file by name; `uri` tells its kind by its ending.

    Of a torch pickle only tensors are taken (`weights_only`): it can run no code.
    Raises InputError that names file and sizes where the file is cut short or damaged.
    """
    if uri.endswith(".safetensors"):
        _require_whole(data, uri)
        try:
            return dict(safetensors.torch.load(data))
        except safetensors.SafetensorError as error:
            raise InputError(f"{uri}: {len(data)} bytes: damaged: {error}") from None
    try:
        loaded = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{uri}: {len(data)} bytes: cut short, or not a file of tensors only ({reason})"
        ) from None
    if not isinstance(loaded, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in loaded.items()
    ):
        raise InputError(f"{uri}: must hold a state dict, names with their tensors, and no more")
    return loaded


def _require_whole(data: bytes, uri: str) -> None:
    """Raise InputError unless the header is there and the file is as long as it says."""
    if len(data) < _LENGTH_BYTES:
        raise InputError(f"{uri}: {len(data)} bytes: cut short inside its first {_LENGTH_BYTES}")
    start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    if len(data) < start:
        raise InputError(
            f"{uri}: {len(data)} bytes: cut short inside its header, which ends at byte {start}"
        )
    try:
        header = json.loads(data[_LENGTH_BYTES:start])
        tensors = [value for name, value in header.items() if name != "__metadata__"]
        end = start + max((value["data_offsets"][1] for value in tensors), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(f"{uri}: not a safetensors header: {error!r}") from None
    if len(data) != end:
        what = "cut short" if len(data) < end else "followed by other bytes"
        raise InputError(f"{uri}: {len(data)} bytes: {what}: by its header it has {end}")
