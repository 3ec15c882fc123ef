"""What every config dataclass is made of: markers of fields, strictness, one form of refusal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, TypeVar

from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import ConfigDict

T = TypeVar("T")
Identity = Annotated[T, "identity"]
Operational = Annotated[T, "operational"]

STRICT: ConfigDict = {"extra": "forbid", "strict": True}


def require(condition: bool, key: str, value: object, remedy: str) -> None:
    """Raise ConfigError "key = value: remedy" unless `condition` holds."""
    if not condition:
        shown = json.dumps(value) if isinstance(value, str) else value
        raise ConfigError(f"{key} = {shown}: {remedy}")
