"""A checkpoint's config.json, read key by key; what our encoder has no switch for is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipeline.errors import ConfigError, InputError
from trainer.settings.model import ModelConfig


class ConfigJson:
    """The settings of a config.json; every error names the file, the key and the value."""

    def __init__(self, table: Mapping[str, Any], uri: str) -> None:
        self.table = table
        self.uri = uri

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a whole number; InputError if it is none, or absent without a default."""
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(key, "must be a whole number")
        return value

    def number(self, key: str, default: float) -> float:
        """Return a number; InputError if it is none."""
        value = self._value(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(key, "must be a number")
        try:
            return float(value)
        except OverflowError:
            raise self.error(key, "is beyond any float") from None

    def yes_or_no(self, key: str, default: bool) -> bool:
        """Return true or false; InputError if it is neither, 1 and 0 included."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false")
        return value

    def one_of(self, key: str, allowed: tuple[Any, ...], default: Any) -> Any:
        """Return a value that must be one of `allowed`, which are all our encoder can be."""
        value = self._value(key, default)
        if value not in allowed:
            choices = " or ".join(json.dumps(one) for one in allowed)
            raise self.error(key, f"only {choices} can be imported")
        return value

    def model_config(self, **fields: Any) -> ModelConfig:
        """Return the ModelConfig of these fields; InputError, naming the file, if it refuses."""
        try:
            return ModelConfig(**fields)
        except ConfigError as error:
            raise InputError(f"{self.uri}: {error}") from None

    def error(self, key: str, remedy: str) -> InputError:
        """Return the error that a key's value is not what it must be."""
        return InputError(f"{self.uri}: {key} = {json.dumps(self.table.get(key))}: {remedy}")

    def _value(self, key: str, default: Any) -> Any:
        value = self.table.get(key)
        if value is None:
            value = default
        if value is None:
            raise InputError(f"{self.uri}: {key} is missing: the tensors need it to be understood")
        return value
