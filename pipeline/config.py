"""The data half of a run's TOML as frozen dataclasses: TOML key = flag = field.

Every field is `Identity` (it shapes bytes, so it is part of a fingerprint) or `Operational`
(it says how or where the work runs and never changes a result).
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from pipeline.config_fields import STRICT, Identity, Operational, require
from pipeline.documents_config import CleaningConfig, DocumentsConfig
from pipeline.errors import ConfigError
from pipeline.instances_config import InstancesConfig, MaskingConfig
from pipeline.presets import lay_over_preset
from pipeline.source_config import SourceConfig
from pipeline.vocabulary_config import VocabularyConfig

__all__ = [
    "STRICT",
    "CleaningConfig",
    "ClusterConfig",
    "DocumentsConfig",
    "Identity",
    "InstancesConfig",
    "MaskingConfig",
    "Operational",
    "PipelineConfig",
    "SourceConfig",
    "VocabularyConfig",
    "from_table",
    "identity_fields",
    "load",
    "read_toml",
    "require",
]

T = TypeVar("T")

_UNION_TYPES = ("int", "tuple[int, ...]")

# Tables of the trainer's half; pipeline commands skip them, trainer commands read both halves.
TRAINER_TABLES = (
    "model",
    "optimizer",
    "schedule",
    "training",
    "phases",
    "divergence",
    "evaluation",
    "export",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Where the work runs; changes no result."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    workers: Operational[int] = 0
    """Data tasks at once; 0 means every CPU of the cluster."""
    object_store_bytes: Operational[int] = 200_000_000
    """Object store of a local Ray."""
    metrics_port: Operational[int] = 0
    """Port of the Prometheus exporter; 0 means none."""

    def __post_init__(self) -> None:
        require(
            0 <= self.workers <= 100_000,
            "cluster.workers",
            self.workers,
            "must be in [0, 100000]",
        )
        require(
            self.object_store_bytes >= 80_000_000,
            "cluster.object_store_bytes",
            self.object_store_bytes,
            "must be at least 80000000 (Ray's minimum)",
        )
        require(
            0 <= self.metrics_port <= 65535,
            "cluster.metrics_port",
            self.metrics_port,
            "must be in [0, 65535]",
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    """The data half of a run."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    root: Operational[str] = "runs/default"
    """Directory or s3:// prefix that everything of the run lies under."""
    working_storage: Operational[str] = ""
    """Local directory (on every machine) for what a command needs only while it runs: objects that
    a local Ray spills, files unpacked to be read; empty: the system's own for temporary files."""
    seed: Identity[int] = 0
    """Seed of every random choice."""
    ray_address: Operational[str] = ""
    """Ray cluster to join ("auto" or host:port); empty: RAY_ADDRESS, else a local Ray of its
    own."""
    documents: Identity[DocumentsConfig] = DocumentsConfig()
    vocabulary: Identity[VocabularyConfig] = VocabularyConfig()
    instances: Identity[InstancesConfig] = InstancesConfig()
    masking: Identity[MaskingConfig] = MaskingConfig()
    cluster: Operational[ClusterConfig] = ClusterConfig()

    def __post_init__(self) -> None:
        remedy = "name a directory or s3://bucket/prefix"
        bucket = not self.root.startswith("s3:") or re.match(r"s3://[^/]+", self.root)
        require(bool(self.root and bucket and "\0" not in self.root), "root", self.root, remedy)
        require(
            "://" not in self.working_storage and "\0" not in self.working_storage,
            "working_storage",
            self.working_storage,
            "name a local directory",
        )
        require(0 <= self.seed < 1 << 63, "seed", self.seed, "must be in [0, 2**63)")


def identity_fields(config: object) -> dict[str, Any]:
    """Return the identity fields of a config dataclass, nested ones too, as JSON-able values."""
    hints = get_type_hints(type(config), include_extras=True)
    result: dict[str, Any] = {}
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        hint = hints[field.name]
        marker = get_args(hint)[1] if get_origin(hint) is Annotated else None
        if marker not in ("identity", "operational"):
            raise TypeError(f"{type(config).__name__}.{field.name} has no identity marker")
        if marker == "identity":
            result[field.name] = _jsonable(getattr(config, field.name))
    return result


def _jsonable(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return identity_fields(value)
    if isinstance(value, tuple):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # "inf" turns clipping off, say; JSON has no number for it
    return value


def read_toml(path: str) -> dict[str, Any]:
    """Read a TOML file, laid over the preset it names.

    Raises ConfigError that names the file (and the line) otherwise.
    """
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(
            f"--config {path}: cannot read it: {error.strerror}; name a run's TOML file"
        ) from None
    # A ValueError too: a number of more digits than Python turns into an integer.
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ConfigError(f"--config {path}: not valid TOML: {error}; correct the file") from None
    return lay_over_preset(table, path, read_toml)


def from_table(cls: type[T], table: Mapping[str, Any], origin: str) -> T:
    """Validate a TOML table against a config dataclass.

    Raises ConfigError with one line for every wrong key: key, value, what is expected.
    """
    _refuse_extremes(table, origin, "")
    try:
        # By way of JSON: strict mode then takes arrays for tuples and 1 for 1.0, "1" for neither.
        return TypeAdapter(cls).validate_json(json.dumps(table), strict=True)
    except ValidationError as errors:
        found: dict[str, str] = {}
        for error in errors.errors():
            # A path names the type of a union that was tried as well; one value is told of once.
            path = [str(part) for part in error["loc"] if part not in _UNION_TYPES]
            key = ".".join(path)
            message = _explain(error, key, origin)
            found[key] = f"{found[key]}, or {error['msg']}" if key in found else message
        raise ConfigError("\n".join(found.values())) from None


def _refuse_extremes(value: Any, origin: str, key: str) -> None:
    """Refuse what TOML can say and no key means: dates, and integers beyond 64 bits."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _refuse_extremes(inner, origin, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            _refuse_extremes(inner, origin, f"{key}.{number}")
    elif isinstance(value, int):
        if not -(1 << 64) <= value <= 1 << 64:
            raise ConfigError(f"{origin}: {key}: far beyond 64 bits; write a smaller one")
    elif not isinstance(value, str | float):
        raise ConfigError(f"{origin}: {key} = {value}: a date or time; write a string or a number")


def _explain(error: Any, key: str, origin: str) -> str:
    if error["type"] == "value_error":
        return f"{origin}: {error['ctx']['error']}"
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{origin}: {key}: unknown key; remove it or correct its spelling"
    if error["type"] in ("missing", "missing_argument"):
        return f"{origin}: {key}: missing; set it"
    return f"{origin}: {key} = {json.dumps(error['input'], default=str)}: {error['msg']}"


def load(path: str) -> PipelineConfig:
    """Load the data half of a run's TOML; the trainer's tables are left to the trainer."""
    table = {key: value for key, value in read_toml(path).items() if key not in TRAINER_TABLES}
    return from_table(PipelineConfig, table, path)
