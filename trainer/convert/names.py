"""What every Hugging Face twin's state dict shares: pairs of names, prefixes, old names, ties.

A twin is described by a list of `Pair`; this file moves tensors along such a list and refuses what
does not fit, by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.errors import InputError

# Under what name torch's wrappers hold the module they wrap: data-parallel models and compiled
# ones. It stands before the names of whatever was wrapped, the model or a part of it.
_WRAPPERS = frozenset({"module", "_orig_mod"})
# LayerNorm as TensorFlow named it, in files of the first years.
_OLD_NAMES = ((".gamma", ".weight"), (".beta", ".bias"))
# What weights are kept in. Eight-bit floats are not among them: without their scales, which lie in
# other tensors, they are not the weights.
_REAL = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
# Most names that one message lists.
_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One of our tensors and what it is called in the twin."""

    ours: str
    theirs: tuple[str, ...]
    """Several where ours is theirs stacked along the first dimension (query, key, value)."""
    copies: tuple[tuple[str, ...], ...] = ()
    """Further places of the same weights: a block that we hold once and the twin once a layer."""
    by_token: bool = False
    """Whether it has a row a token: those that only pad the vocabulary are ours alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """The tensors of one Hugging Face class, beside those of our model."""

    class_name: str
    pairs: tuple[Pair, ...]
    tied: Mapping[str, str]
    """Copies that older files carry -> what they are tied to: they must be equal."""
    ignored: frozenset[str] = frozenset()
    """Buffers that some versions saved."""
    left_out: frozenset[str] = frozenset()
    """Weights that some versions saved and the class does not read: poolers without a use."""

    @property
    def names(self) -> set[str]:
        """Every tensor a file must have."""
        return {
            name for pair in self.pairs for parts in (pair.theirs, *pair.copies) for name in parts
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """What a checkpoint has on top of its embeddings and layers."""

    masked_lm: bool = False
    pooler: bool = False
    pair: bool = False


def plain_name(name: str) -> str:
    """Return a name without those of torch's wrappers, gamma and beta being new again."""
    *path, last = name.split(".")
    name = ".".join([*(part for part in path if part not in _WRAPPERS), last])
    for old, new in _OLD_NAMES:
        if name.endswith(old):
            name = name.removesuffix(old) + new
    return name


def plain_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors by their plain names; InputError if two come to have the same one."""
    found: dict[str, str] = {}
    for name in tensors:
        plain = plain_name(name)
        if plain in found:
            raise InputError(f"{found[plain]} and {name} are the same tensor: remove one of them")
        found[plain] = name
    return {plain: tensors[name] for plain, name in found.items()}


def to_theirs(twin: Twin, ours: Mapping[str, Tensor], vocab_size: int) -> dict[str, Tensor]:
    """Return our tensors under the twin's names, on the CPU, each with memory of its own.

    Tied copies are left out: `from_pretrained` makes them anew. So are the rows beyond
    `vocab_size`, which no token has.
    """
    tensors: dict[str, Tensor] = {}
    for pair in twin.pairs:
        whole = ours[pair.ours].detach().cpu()
        if pair.by_token:
            whole = whole[:vocab_size]
        for names in (pair.theirs, *pair.copies):
            for name, part in zip(names, whole.chunk(len(names)), strict=True):
                tensors[name] = part.clone(memory_format=torch.contiguous_format)
    return tensors


def to_ours(
    twin: Twin, theirs: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]]
) -> dict[str, Tensor]:
    """Return the twin's tensors, by plain names, under ours, with the `shapes` of our model.

    Raises InputError that names every missing and every unexpected tensor, every tensor of
    another shape or of a dtype that holds no plain real numbers, a sparse one, one without values
    or with some that are not finite in float32, copies that differ, and a decoder that is not tied
    to the embeddings.
    """
    missing = sorted(twin.names - theirs.keys())
    known = twin.names | twin.tied.keys() | twin.ignored | twin.left_out
    unexpected = sorted(theirs.keys() - known)
    if missing or unexpected:
        raise InputError(
            f"not the tensors of a {twin.class_name}: missing: {listed(missing)}; "
            f"unexpected: {listed(unexpected)}: name a checkpoint whose config.json belongs to its "
            "weights and names one of the classes that can be imported"
        )
    _require_shapes(twin, theirs, shapes)
    _require_finite({name: theirs[name] for name in twin.names | twin.tied.keys() & theirs.keys()})
    for copy, original in twin.tied.items():
        if copy in theirs and not torch.equal(theirs[copy], theirs[original]):
            raise InputError(f"{copy} differs from {original}: the decoder must be tied to it")
    for pair in twin.pairs:
        for names in pair.copies:
            for name, original in zip(names, pair.theirs, strict=True):
                if not torch.equal(theirs[name], theirs[original]):
                    raise InputError(f"{name} differs from {original}: the layers share it")
    return {pair.ours: torch.cat([theirs[name] for name in pair.theirs]) for pair in twin.pairs}


def _require_shapes(
    twin: Twin, theirs: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]]
) -> None:
    wrong = []
    for pair in twin.pairs:
        rows, *rest = shapes[pair.ours]
        expected = [rows // len(pair.theirs), *rest]
        for names in (pair.theirs, *pair.copies):
            wrong += [
                f"{name} is {list(theirs[name].shape)}, by config.json {expected}"
                for name in names
                if list(theirs[name].shape) != expected
            ]
            for name in names:
                _require_real(name, theirs[name].dtype)
    if wrong:
        raise InputError(
            f"config.json and the tensors disagree: {listed(wrong, '; ')}: one of the two belongs "
            "to another model"
        )


def _require_real(name: str, dtype: torch.dtype) -> None:
    if dtype in _REAL:
        return
    if dtype == torch.bool or dtype.is_complex:
        what = "weights are real numbers; the file holds something else under this name"
    else:
        what = "quantised weights cannot be trained; import the checkpoint that they were made from"
    raise InputError(f"{name} is of {dtype}: {what}")


def _require_finite(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in sorted(tensors.items()):
        if tensor.layout is not torch.strided or tensor.is_meta:
            kind = "has no values (device meta)" if tensor.is_meta else f"is {tensor.layout}"
            raise InputError(f"{name} {kind}: save the weights as dense tensors")
        broken = int((~tensor.isfinite()).sum())
        if broken:
            raise InputError(
                f"{name} has NaN or infinite values ({broken} of {tensor.numel()}): its training "
                "diverged; take an earlier checkpoint"
            )
        broken = int((~tensor.float().isfinite()).sum())
        if broken:
            raise InputError(
                f"{name} has values beyond float32 ({broken} of {tensor.numel()}, {tensor.dtype}): "
                "ours are float32; take a checkpoint whose weights fit"
            )


def listed(names: Iterable[str], separator: str = ", ") -> str:
    """Return the names for a message: all, or the first ones and how many more there are."""
    names = list(names)
    shown = separator.join(names[:_SHOWN]) or "none"
    return shown + (f"{separator}and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
