"""The files of a checkpoint folder: config.json, and weights as safetensors or a torch pickle."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from pipeline.contract import canonical_json
from pipeline.errors import InputError
from pipeline.released_files import FETCH_AGAIN, parse_table, require_no_pointer
from pipeline.storage import Storage, open_storage, sha256
from pipeline.vocabulary import vocab_txt, wordpiece_entries

CONFIG = "config.json"
VOCABULARY = "vocab.txt"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
# In the order they are looked for: safetensors cannot run code and is read faster.
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
# Lists the files of weights that are split into several.
INDEX = ".index.json"

# A safetensors file: the header's length as uint64, the header as JSON, the tensors' bytes.
_LENGTH_BYTES = 8
# What the library reads at most.
_LONGEST_HEADER_BYTES = 100_000_000
# Of torch's errors that advise to read the file with its code; that is not what to do.
_ADVICE = "weights_only"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFiles:
    """What was read of a folder."""

    uri: str
    """Of the weights, or of the index of their files."""
    config: Mapping[str, Any]
    weights: Mapping[str, bytes]
    """By the file's URI: one, or those of the index."""
    vocab_txt: bytes | None
    """Of vocab.txt or, where the folder has none, of tokenizer.json; None where that holds no
    WordPiece either."""
    vocabulary_uri: str
    """Of the file that holds it; empty without one."""
    tokenizer: Mapping[str, Any]
    """tokenizer.json; empty where the folder has none."""
    tokenizer_config: Mapping[str, Any]
    """Empty where the folder has none."""

    @property
    def sha256(self) -> str:
        """Of settings, weights and vocabulary: what a run that starts from them depends on."""
        weights = [sha256(data) for data in self.weights.values()]
        digests = [*weights, sha256(self.vocab_txt or b"")]
        return sha256(canonical_json([self.config, *digests]))


def read_checkpoint(path: str) -> CheckpointFiles:
    """Read a folder (local or s3://), or a weights file whose config.json lies beside it.

    Weights that are split into several files are read by their index.

    Raises InputError where a file is missing, or config.json or the index is not what it must be.
    """
    folder = path.rstrip("/") or "/"
    names: tuple[str, ...] = WEIGHTS
    if folder.endswith((".safetensors", ".bin", INDEX)):
        head, _, name = folder.rpartition("/")
        folder, names = head or ("/" if folder.startswith("/") else "."), (name,)
    storage = open_storage(folder)
    wanted = (*names, *(name + INDEX for name in names))
    found = [name for name in wanted if storage.size(name) is not None]
    if not found:
        raise InputError(f"{folder}: has no {' and no '.join(names)}: name a checkpoint's folder")
    tokenizer = _read_json_or_nothing(storage, TOKENIZER)
    vocabulary, vocabulary_name = _read_vocabulary(storage, tokenizer)
    return CheckpointFiles(
        uri=f"{storage.uri}/{found[0]}",
        config=_read_config(storage),
        weights=_read_weights(storage, found[0]),
        vocab_txt=vocabulary,
        vocabulary_uri=f"{storage.uri}/{vocabulary_name}" if vocabulary_name else "",
        tokenizer=tokenizer,
        tokenizer_config=_read_json_or_nothing(storage, TOKENIZER_CONFIG),
    )


def _read_vocabulary(storage: Storage, tokenizer: Mapping[str, Any]) -> tuple[bytes | None, str]:
    """Return the vocabulary as vocab.txt, and the name of the file that holds it."""
    if storage.size(VOCABULARY) is not None:
        return _read(storage, VOCABULARY), VOCABULARY
    # transformers 5 saves no vocab.txt.
    entries = wordpiece_entries(tokenizer, f"{storage.uri}/{TOKENIZER}")
    return (None, "") if entries is None else (vocab_txt(entries), TOKENIZER)


def _read_weights(storage: Storage, name: str) -> dict[str, bytes]:
    """Return URI -> bytes of a file of weights, or of those that an index names, in order."""
    if not name.endswith(INDEX):
        return {f"{storage.uri}/{name}": _read(storage, name)}
    places = _read_json(storage, name).get("weight_map")
    files = list(places.values()) if isinstance(places, dict) else []
    if not files or not all(isinstance(file, str) and "/" not in file for file in files):
        raise InputError(
            f"{storage.uri}/{name}: weight_map must be a table, tensor -> a file beside it"
        )
    missing = sorted(file for file in set(files) if storage.size(file) is None)
    if missing:
        raise InputError(f"{storage.uri}/{name}: names {missing[0]}, which is not there")
    return {f"{storage.uri}/{file}": _read(storage, file) for file in sorted(set(files))}


def _read_config(storage: Storage) -> Mapping[str, Any]:
    if storage.size(CONFIG) is None:
        raise InputError(
            f"{storage.uri}/{CONFIG}: no such file: tensors alone do not tell a model's heads"
        )
    return _read_json(storage, CONFIG)


def _read(storage: Storage, name: str) -> bytes:
    return require_no_pointer(storage.read(name), f"{storage.uri}/{name}")


def _read_json_or_nothing(storage: Storage, name: str) -> Mapping[str, Any]:
    return {} if storage.size(name) is None else _read_json(storage, name)


def _read_json(storage: Storage, name: str) -> Mapping[str, Any]:
    return parse_table(storage.read(name), f"{storage.uri}/{name}")


def parse_files(files: Mapping[str, bytes]) -> dict[str, Tensor]:
    """Return the tensors of all files, URI -> bytes, by name; InputError if two hold the same."""
    tensors: dict[str, Tensor] = {}
    for uri, data in files.items():
        parsed = parse_weights(data, uri)
        twice = sorted(tensors.keys() & parsed.keys())
        if twice:
            raise InputError(f"{uri}: {twice[0]} stands in another file of the checkpoint as well")
        tensors |= parsed
    return tensors


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
            raise InputError(
                f"{uri}: {len(data)} bytes: damaged ({error}): {FETCH_AGAIN}"
            ) from None
    try:
        loaded = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        # torch's reader runs a pickle's opcodes on whatever it holds: damage raises anything.
        reason = "" if _ADVICE in str(error) else f" ({type(error).__name__}: {error})"
        raise InputError(
            f"{uri}: {len(data)} bytes: cut short, not a PyTorch file, or with more than tensors "
            f"in it{reason.splitlines()[0] if reason else ''}"
        ) from None
    if not isinstance(loaded, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in loaded.items()
    ):
        raise InputError(f"{uri}: must hold a state dict, names with their tensors, and no more")
    return loaded


def _require_whole(data: bytes, uri: str) -> None:
    """Raise InputError unless the header is there and the file is as long as it says."""
    if len(data) < _LENGTH_BYTES:
        raise InputError(
            f"{uri}: {len(data)} bytes: cut short inside its first {_LENGTH_BYTES}: {FETCH_AGAIN}"
        )
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if length > _LONGEST_HEADER_BYTES:
        raise InputError(
            f"{uri}: {len(data)} bytes: not a safetensors file, by its first {_LENGTH_BYTES} bytes "
            f"its header would have {length}: {FETCH_AGAIN}"
        )
    start = _LENGTH_BYTES + length
    if len(data) < start:
        raise InputError(
            f"{uri}: {len(data)} bytes: cut short inside its header, which ends at byte {start}: "
            f"{FETCH_AGAIN}"
        )
    try:
        header = json.loads(data[_LENGTH_BYTES:start])
        tensors = [value for name, value in header.items() if name != "__metadata__"]
        end = start + max((value["data_offsets"][1] for value in tensors), default=0)
    except (ValueError, RecursionError):
        raise InputError(
            f"{uri}: not a safetensors header: bytes {_LENGTH_BYTES} to {start} are not valid "
            f"JSON: {FETCH_AGAIN}"
        ) from None
    except (KeyError, TypeError, AttributeError, IndexError):
        raise InputError(
            f"{uri}: not a safetensors header: must be a table, tensor -> dtype, shape and "
            f"data_offsets: {FETCH_AGAIN}"
        ) from None
    if len(data) != end:
        what = "cut short" if len(data) < end else "followed by other bytes"
        raise InputError(
            f"{uri}: {len(data)} bytes: {what}: by its header it has {end}: {FETCH_AGAIN}"
        )
