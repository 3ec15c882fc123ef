"""The [model] table of a run's TOML as a frozen dataclass."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from pydantic import ConfigDict

from pipeline.config import STRICT, Identity, require


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Architecture of the encoder; the defaults are BERT-Base (Devlin et al. 2019, 3)."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    hidden_size: Identity[int] = 768
    """Width of a token's vector (H)."""
    num_hidden_layers: Identity[int] = 12
    """Transformer layers (L)."""
    num_attention_heads: Identity[int] = 12
    """Attention heads of a layer (A); hidden_size is a multiple of it."""
    intermediate_size: Identity[int] = 3_072
    """Inner width of the feed-forward block, 4 H in the papers."""
    hidden_act: Identity[Literal["gelu", "gelu_new"]] = "gelu"
    """gelu: exact, with erf; gelu_new: its tanh approximation (ALBERT, Google's released BERT)."""
    hidden_dropout_prob: Identity[float] = 0.1
    """Dropout of the embeddings and of each block's output."""
    attention_probs_dropout_prob: Identity[float] = 0.1
    """Dropout of the attention weights."""
    max_position_embeddings: Identity[int] = 512
    """Rows of the position table: the longest sequence in tokens."""
    type_vocab_size: Identity[int] = 2
    """Rows of the segment table."""
    layer_norm_eps: Identity[float] = 1e-12
    """Added to the variance in every LayerNorm."""
    initializer_range: Identity[float] = 0.02
    """Standard deviation of the truncated normal of the initial weights."""

    def __post_init__(self) -> None:
        for name in (
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
            "type_vocab_size",
        ):
            value = getattr(self, name)
            require(1 <= value <= 1 << 20, f"model.{name}", value, "must be in [1, 1048576]")
        require(
            self.hidden_size % self.num_attention_heads == 0,
            "model.hidden_size",
            self.hidden_size,
            f"must be a multiple of model.num_attention_heads = {self.num_attention_heads}",
        )
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            value = getattr(self, name)
            require(0.0 <= value < 1.0, f"model.{name}", value, "must be in [0, 1)")
        for name in ("layer_norm_eps", "initializer_range"):
            value = getattr(self, name)
            require(0.0 < value < 1.0, f"model.{name}", value, "must be in (0, 1)")
