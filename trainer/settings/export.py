"""The [export] table of a run's TOML."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from pydantic import ConfigDict

from pipeline.config import STRICT, Identity


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    """The trained model as a folder of transformers, and what lies beside it."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    onnx: Identity[Literal["none", "last_hidden_state", "logits"]] = "none"
    """What an onnx/model.onnx in the folder answers for padded batches: the last layer's output,
    the masked-LM logits of every token, or no such file. It needs the packages of the extra
    onnx."""
