"""Presets: what a run's TOML can start from, `preset = "bert-base"`, each a TOML of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError

FOLDER = Path(__file__).resolve().parents[1] / "deploy" / "models"


def preset_names() -> list[str]:
    """Return the names of the presets there are, in order."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def preset_path(name: object, origin: str) -> str:
    """Return the file of a preset; raises ConfigError with the names there are otherwise."""
    names = preset_names()
    if name not in names:
        raise ConfigError(f"{origin}: preset = {name!r}: must be one of {', '.join(names)}")
    return str(FOLDER / f"{name}.toml")


def lay_over_preset(
    table: Mapping[str, Any], origin: str, read: Callable[[str], dict[str, Any]]
) -> dict[str, Any]:
    """Return a run's table laid over the preset it names, which `read` reads; keys of the run win.

    Tables are laid over each other key by key, anything else is replaced whole. What comes out
    is validated as any table is: a preset can say nothing that a run's TOML cannot.
    """
    own = {key: value for key, value in table.items() if key != "preset"}
    if "preset" not in table:
        return own
    return _laid_over(read(preset_path(table["preset"], origin)), own)


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if isinstance(under, Mapping) and isinstance(value, Mapping):
            value = _laid_over(under, value)
        merged[key] = value
    return merged
