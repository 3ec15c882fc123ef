"""What one model of transformers is to us: its classes, its settings, its tensors' names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from pipeline.errors import InputError
from trainer.convert.config_json import ConfigJson
from trainer.convert.names import Heads, Pair, Twin
from trainer.settings.model import Architecture, ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialIds:
    """The vocabulary's ids that a config.json names."""

    pad: int
    cls: int
    sep: int


def _unchanged(config: ModelConfig, theirs: Mapping[str, Tensor], base: str) -> ModelConfig:
    return config


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One model_type of transformers."""

    architecture: Architecture
    model_type: str
    base: str
    """What precedes the names of embeddings and layers in a class that has heads."""
    classes: Mapping[str, Heads]
    """The classes we read and write, and their heads; one without heads may have a pooler."""
    head_prefixes: Mapping[str, str]
    """Field of Heads -> how its tensors' names begin."""
    tied: Mapping[str, str]
    default_pad_token_id: int
    pairs: Callable[[ModelConfig, Heads, str], Iterator[Pair]]
    """(config, heads, base) -> the tensors."""
    write_config: Callable[[ModelConfig, SpecialIds], dict[str, Any]]
    read_config: Callable[[ConfigJson], ModelConfig]
    refine_config: Callable[[ModelConfig, Mapping[str, Tensor], str], ModelConfig] = _unchanged
    """(config, tensors by plain names, base) -> the config, where only the weights can tell."""

    def class_of(self, heads: Heads) -> str:
        """Return the class that has exactly these heads; InputError if there is none."""
        wanted = heads if heads.masked_lm else Heads()
        for name, theirs in self.classes.items():
            if theirs == wanted:
                return name
        raise InputError(
            f'model.architecture = "{self.architecture}": transformers has no class of it with '
            f"{heads}; train with a pooler and another instances.objective, or with "
            'architecture = "custom", which is not exported'
        )

    def twin(self, config: ModelConfig, heads: Heads, base: str) -> Twin:
        """Return the tensors of the class that has these heads."""
        return Twin(
            class_name=self.class_of(heads),
            pairs=tuple(self.pairs(config, heads, base)),
            tied=self.tied if heads.masked_lm else {},
            ignored=frozenset({f"{base}embeddings.position_ids"}),
            left_out=self._left_out(config, heads, base),
        )

    def _left_out(self, config: ModelConfig, heads: Heads, base: str) -> frozenset[str]:
        """Return the names of a pooler that a class with an MLM head alone does not read.

        Files of early versions have one, and so have the released ALBERTs, whose pair head was not
        saved (transformers issue 9319).
        """
        if not heads.masked_lm or heads.pooler or "pooler" not in self.head_prefixes:
            return frozenset()
        pairs = self.pairs(config, replace(heads, pooler=True), base)
        return frozenset(
            name for pair in pairs if pair.ours.startswith("pooler.") for name in pair.theirs
        )

    def base_of(self, names: Mapping[str, Tensor]) -> str:
        """Return what precedes names in a file: nothing where a class without heads wrote it."""
        heads = [prefix for head, prefix in self.head_prefixes.items() if head != "pooler"]
        prefixed = (self.base, *heads)
        return self.base if any(name.startswith(prefixed) for name in names) else ""

    def heads_of(self, names: Mapping[str, Tensor], said: Heads, base: str) -> Heads:
        """Return the heads a file has or must have: those its class says and those it shows."""

        def has(head: str) -> bool:
            if getattr(said, head):
                return True
            prefix = self.head_prefixes.get(head)
            return prefix is not None and any(
                name.startswith(prefix.format(base=base)) for name in names
            )

        pair = has("pair")
        masked_lm = has("masked_lm") or pair
        # An MLM head and a pooler come with the pair head alone: without it the pooler is left out.
        pooler = pair or (has("pooler") and not masked_lm)
        return Heads(masked_lm=masked_lm, pooler=pooler, pair=pair)


def modules(names: Mapping[str, str]) -> Iterator[Pair]:
    """Yield weight and bias of each module, ours -> theirs; the weight alone of an embedding."""
    for ours, theirs in names.items():
        yield Pair(
            ours=f"{ours}.weight",
            theirs=(f"{theirs}.weight",),
            by_token=ours.endswith("word_embeddings"),
        )
        if not ours.endswith("_embeddings"):
            yield Pair(ours=f"{ours}.bias", theirs=(f"{theirs}.bias",))
