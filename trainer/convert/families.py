"""The models of transformers that ours can be."""

from __future__ import annotations

from pipeline.errors import InputError
from trainer.convert import albert, bert, modernbert, roberta
from trainer.convert.config_json import ConfigJson
from trainer.convert.family import Family
from trainer.settings.model import Architecture

_FAMILIES = (bert.FAMILY, roberta.FAMILY, albert.FAMILY, modernbert.FAMILY)


def family_of(architecture: Architecture) -> Family:
    """Return the family of `model.architecture`; InputError for "custom", which has none."""
    for family in _FAMILIES:
        if family.architecture == architecture:
            return family
    choices = ", ".join(f'"{family.architecture}"' for family in _FAMILIES)
    raise InputError(
        f'model.architecture = "{architecture}": transformers has no such model, so it is not '
        f"exported; train one of {choices}"
    )


def family_of_checkpoint(table: ConfigJson) -> Family:
    """Return the family that a config.json names; InputError, naming it, for any other."""
    model_type = table.table.get("model_type")
    for family in _FAMILIES:
        if family.model_type == model_type:
            return family
    known = " or ".join(f'"{family.model_type}"' for family in _FAMILIES)
    raise table.error("model_type", f"a checkpoint of another architecture; must be {known}")
