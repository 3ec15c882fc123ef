"""Write configuration.md from the config dataclasses; run it after a change of theirs."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import sys
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from pipeline.config import CleaningConfig, SourceConfig
from trainer.config import TrainerConfig
from trainer.settings.phase import MixedSourceConfig, PhaseConfig

PAGE = Path(__file__).with_name("configuration.md")
HEAD = """\
# Configuration

Every key of a run's TOML, made from the config dataclasses. A key is a flag as well:
`--instances.max_seq_length 128`. **identity** keys shape bytes and are part of fingerprints;
**operational** ones never change a result. The last column is the default.
"""


def field_docs(cls: type) -> dict[str, str]:
    """Return the one-line docstring below each field of a dataclass and its bases."""
    docs: dict[str, str] = {}
    for one in reversed([base for base in cls.__mro__ if dataclasses.is_dataclass(base)]):
        body = ast.parse(inspect.getsource(one)).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                assert isinstance(field.target, ast.Name)
                docs[field.target.id] = " ".join(ast.literal_eval(below.value).split())
    return docs


def rows(cls: type, docs: dict[str, str]) -> list[str]:
    """Return the table rows of a config table's own keys."""
    hints = get_type_hints(cls, include_extras=True)
    made = []
    for field in dataclasses.fields(cls):
        kind, marker = get_args(hints[field.name])[:2]
        if dataclasses.is_dataclass(kind) or field.name in ("sources", "phases"):
            continue
        made.append(
            f"| `{field.name}` | {shown_type(kind)} | {marker} | {docs[field.name]} "
            f"| {shown_default(field.default)} |"
        )
    return made


def shown_type(kind: Any) -> str:
    """Return a type as a reader of TOML knows it: what is None is left out of a file."""
    if get_origin(kind) is Literal:
        return " or ".join(f'`"{value}"`' for value in get_args(kind))
    if NoneType in get_args(kind):
        return " or ".join(shown_type(one) for one in get_args(kind) if one is not NoneType)
    return {str: "string", int: "integer", float: "number", bool: "boolean"}.get(kind, "array")


def shown_default(value: Any) -> str:
    """Return a default as TOML writes it; empty for a key that must be given."""
    return "required" if value is dataclasses.MISSING else f"`{json.dumps(value)}`"


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    tables: list[tuple[str, type]] = [("top level", TrainerConfig)]
    hints = get_type_hints(TrainerConfig)
    for field in dataclasses.fields(TrainerConfig):
        if dataclasses.is_dataclass(hints[field.name]):
            tables.append((f"[{field.name}]", hints[field.name]))
        if field.name == "documents":
            tables.append(("[[documents.sources]]", SourceConfig))
            tables.append(("[documents.cleaning]", CleaningConfig))
        if field.name == "phases":
            tables.append(("[[phases]]", PhaseConfig))
            tables.append(("[[phases.sources]]", MixedSourceConfig))
    for name, cls in tables:
        about = "" if cls is TrainerConfig else f"{(cls.__doc__ or '').strip()}\n\n"
        parts.append(
            f"## {name}\n\n{about}"
            "| key | type | kind | meaning | default |\n|---|---|---|---|---|\n"
            + "\n".join(rows(cls, field_docs(cls)))
            + "\n"
        )
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
