"""The [model] table of a run's TOML as a frozen dataclass."""

from __future__ import annotations

import dataclasses
import json
from typing import Literal

from pipeline.config_fields import STRICT, Identity, require

Architecture = Literal["bert", "roberta", "albert", "modern", "custom"]

_POST_NORM: dict[str, tuple[object, ...]] = {
    "feed_forward": ("mlp",),
    "bias": (True,),
    "norm_position": ("post",),
    "position_embedding_type": ("absolute",),
    "global_attention_every": (1,),
}
# What each Hugging Face model can be: switch -> the values its config.json can say.
TWIN_SWITCHES: dict[Architecture, dict[str, tuple[object, ...]]] = {
    "bert": {
        **_POST_NORM,
        "embedding_size": (0,),
        "parameter_sharing": ("none",),
        "position_offset": ("none",),
    },
    "roberta": {
        **_POST_NORM,
        "embedding_size": (0,),
        "parameter_sharing": ("none",),
        "position_offset": ("after_pad_token_id",),
        "pooler": (False,),
        # RobertaForMaskedLM's head is exact GELU whatever its config says.
        "hidden_act": ("gelu",),
    },
    "albert": {**_POST_NORM, "position_offset": ("none",)},
    "modern": {
        "embedding_size": (0,),
        "parameter_sharing": ("none",),
        "feed_forward": ("geglu",),
        "norm_position": ("pre",),
        "position_embedding_type": ("rotary",),
        "position_offset": ("none",),
        "type_vocab_size": (0,),
        "pooler": (False,),
        # Theirs drop the attention's output by attention_dropout and the MLP's inner values by
        # mlp_dropout: neither is a dropout of ours.
        "hidden_dropout_prob": (0.0,),
        "attention_probs_dropout_prob": (0.0,),
    },
    "custom": {},
}

# Far beyond any encoder there is: what is larger is a slip, and building it would take for ever.
_MOST, _MOST_LAYERS = 1 << 20, 1_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Architecture of the encoder; the defaults are BERT-Base (Devlin et al. 2019, 3)."""

    __pydantic_config__ = STRICT

    architecture: Identity[Architecture] = "bert"
    """The Hugging Face model that the export is: BertForPreTraining, RobertaForMaskedLM,
    AlbertForPreTraining or ModernBertForMaskedLM; a switch below that it does not have is refused.
    custom: any switches, and no export."""
    hidden_size: Identity[int] = 768
    """Width of a token's vector (H)."""
    num_hidden_layers: Identity[int] = 12
    """Transformer layers (L)."""
    num_attention_heads: Identity[int] = 12
    """Attention heads of a layer (A); hidden_size is a multiple of it."""
    intermediate_size: Identity[int] = 3_072
    """Inner width of the feed-forward block, 4 H in the papers."""
    embedding_size: Identity[int] = 0
    """Width of the embeddings (E), which a linear layer brings to hidden_size (Lan et al. 2020,
    3.1); 0: hidden_size, without that layer."""
    parameter_sharing: Identity[Literal["none", "attention", "ffn", "all"]] = "none"
    """What all layers have in common: nothing, the attention blocks, the feed-forward blocks, or
    both (Lan et al. 2020, 3.1)."""
    hidden_act: Identity[Literal["gelu", "gelu_new"]] = "gelu"
    """gelu: exact, with erf; gelu_new: its tanh approximation (ALBERT, Google's released BERT)."""
    feed_forward: Identity[Literal["mlp", "geglu"]] = "mlp"
    """mlp: W2 act(W1 x); geglu: W2 (act(W1 x) * W3 x) (Shazeer 2020)."""
    bias: Identity[bool] = True
    """Biases of the linear layers and of the norms; the decoder and the pair head always have
    theirs."""
    norm_position: Identity[Literal["post", "pre"]] = "post"
    """post: LayerNorm after each block's residual (BERT); pre: before each block, and once after
    the last layer. The first attention block then has none: the embeddings end in one."""
    hidden_dropout_prob: Identity[float] = 0.1
    """Dropout of each block's output; modern has none."""
    attention_probs_dropout_prob: Identity[float] = 0.1
    """Dropout of the attention weights, which keeps a GPU from the varlen kernel; modern has
    none."""
    embedding_dropout_prob: Identity[float | None] = None
    """Dropout of the embeddings. None: as hidden_dropout_prob, the one value that bert, roberta and
    albert take."""
    position_embedding_type: Identity[Literal["absolute", "rotary"]] = "absolute"
    """absolute: a learned vector for each position; rotary: queries and keys are turned by angles
    that grow with the position (Su et al. 2021)."""
    max_position_embeddings: Identity[int] = 512
    """Rows of the position table, and so the longest sequence in tokens, but for
    position_offset; with rotary positions the longest sequence."""
    position_offset: Identity[Literal["none", "after_pad_token_id"]] = "none"
    """Row of a sequence's first token: 0, or pad_token_id + 1 (RoBERTa), by which sequences must
    be shorter than max_position_embeddings."""
    global_rope_theta: Identity[float] = 160_000.0
    """Base of the rotary angles where attention is global."""
    local_rope_theta: Identity[float] = 10_000.0
    """Base of the rotary angles where attention is local."""
    global_attention_every: Identity[int] = 1
    """Layers 0, n, 2 n, ... attend to the whole sequence, the others to a window; 1: all to the
    whole."""
    local_attention_window: Identity[int] = 128
    """Width of that window in tokens: position i attends to j where |i - j| <= window / 2."""
    type_vocab_size: Identity[int] = 2
    """Rows of the segment table; 0: no segment embeddings."""
    pooler: Identity[bool] = True
    """tanh(dense) of a sequence's first token, which the pair head reads; made only where the
    objective has pairs, because nothing else trains it."""
    pad_vocab_size_to_multiple_of: Identity[int] = 1
    """The embeddings get more rows than the vocabulary has, up to a multiple of this; those are
    never predicted and never exported."""
    layer_norm_eps: Identity[float] = 1e-12
    """Added to the variance in every LayerNorm."""
    initializer_range: Identity[float] = 0.02
    """Standard deviation of the truncated normal of the initial weights."""
    scale_output_initializer: Identity[bool] = False
    """Divide it by sqrt(2 num_hidden_layers) for the layers that end a block, and the MLM head's
    (ModernBERT, as Megatron)."""

    def __post_init__(self) -> None:
        for name, least in (
            ("hidden_size", 1),
            ("num_hidden_layers", 1),
            ("num_attention_heads", 1),
            ("intermediate_size", 1),
            ("embedding_size", 0),
            ("max_position_embeddings", 1),
            ("global_attention_every", 1),
            ("local_attention_window", 1),
            ("type_vocab_size", 0),
            ("pad_vocab_size_to_multiple_of", 1),
        ):
            value = getattr(self, name)
            most = _MOST_LAYERS if name == "num_hidden_layers" else _MOST
            require(least <= value <= most, f"model.{name}", value, f"must be in [{least}, {most}]")
        require(
            self.hidden_size % self.num_attention_heads == 0,
            "model.hidden_size",
            self.hidden_size,
            f"must be a multiple of model.num_attention_heads = {self.num_attention_heads}",
        )
        head_size = self.hidden_size // self.num_attention_heads
        require(
            self.position_embedding_type == "absolute" or head_size % 2 == 0,
            "model.hidden_size",
            self.hidden_size,
            f"gives heads of {head_size}: rotary positions turn pairs, so it must be even",
        )
        for name in (
            "hidden_dropout_prob",
            "attention_probs_dropout_prob",
            "embedding_dropout_prob",
        ):
            value = getattr(self, name)
            require(
                value is None or 0.0 <= value < 1.0, f"model.{name}", value, "must be in [0, 1)"
            )
        for name in ("layer_norm_eps", "initializer_range"):
            value = getattr(self, name)
            require(0.0 < value < 1.0, f"model.{name}", value, "must be in (0, 1)")
        for name in ("global_rope_theta", "local_rope_theta"):
            value = getattr(self, name)
            require(1.0 < value < 1e12, f"model.{name}", value, "must be in (1, 1e12)")
        self._require_twin()

    def _require_twin(self) -> None:
        """Refuse a switch that the Hugging Face model of `architecture` does not have."""
        for name, allowed in TWIN_SWITCHES[self.architecture].items():
            value = getattr(self, name)
            require(
                value in allowed,
                f"model.{name}",
                value,
                f'model.architecture = "{self.architecture}" has '
                f"{' or '.join(json.dumps(one) for one in allowed)}; "
                'architecture = "custom" takes any, and is not exported',
            )
        require(
            self.architecture in ("modern", "custom")
            or self.embedding_dropout == self.hidden_dropout_prob,
            "model.embedding_dropout_prob",
            self.embedding_dropout_prob,
            f'model.architecture = "{self.architecture}" has one dropout for embeddings and hidden '
            f"states: leave it out, or give hidden_dropout_prob = {self.hidden_dropout_prob}; "
            'architecture = "custom" takes any, and is not exported',
        )
        require(
            self.architecture != "albert" or self.embedding_size > 0,
            "model.embedding_size",
            self.embedding_size,
            'model.architecture = "albert" projects its embeddings: give their width, 128 in the '
            "paper",
        )
        require(
            self.architecture not in ("bert", "roberta", "albert") or self.type_vocab_size > 0,
            "model.type_vocab_size",
            self.type_vocab_size,
            f'model.architecture = "{self.architecture}" has segment embeddings: at least 1',
        )

    @property
    def embedding_width(self) -> int:
        """E, the width of the embedding tables."""
        return self.embedding_size or self.hidden_size

    @property
    def embedding_dropout(self) -> float:
        """Dropout of the embeddings."""
        if self.embedding_dropout_prob is None:
            return self.hidden_dropout_prob
        return self.embedding_dropout_prob

    def first_position(self, pad_token_id: int) -> int:
        """Return the row of the position table that a sequence's first token has."""
        return 0 if self.position_offset == "none" else pad_token_id + 1

    def padded_vocab_size(self, vocab_size: int) -> int:
        """Return the rows of the embeddings for a vocabulary of `vocab_size`."""
        multiple = self.pad_vocab_size_to_multiple_of
        return -(-vocab_size // multiple) * multiple

    def is_global(self, layer: int) -> bool:
        """Tell whether a layer (the first is 0) attends to the whole sequence."""
        return layer % self.global_attention_every == 0
