"""The models of transformers, small and with random weights: the oracles of ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.modernbert import modeling_modernbert as modern

from tests.trainer.batches import VOCAB_SIZE
from tests.trainer.padded_batches import PaddedBatch
from trainer.data.batch import Batch

SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BERT = {**SIZES, **NO_DROPOUT, "max_position_embeddings": 80, "type_vocab_size": 2}
ALBERT = {**BERT, "embedding_size": 16, "classifier_dropout_prob": 0.0}
# Positions start behind the pad id.
ROBERTA = {**BERT, "max_position_embeddings": 82, "pad_token_id": 1, "layer_norm_eps": 1e-5}
MODERN = {
    **SIZES,
    "max_position_embeddings": 80,
    "global_attn_every_n_layers": 2,
    "local_attention": 10,
    "pad_token_id": 0,
}

Change = Callable[[nn.Module], None]


def _unchanged(twin: nn.Module) -> None:
    pass


def share(part: str) -> Change:
    """Give every ALBERT group the first one's modules whose names begin with `part`."""

    def copy_first_group(twin: nn.Module) -> None:
        groups = twin.get_submodule("albert.encoder.albert_layer_groups").children()
        layers = [group.get_submodule("albert_layers.0") for group in groups]
        first = layers[0].state_dict()
        for layer in layers[1:]:
            for name, value in layer.named_parameters():
                if name.startswith("attention") == (part == "attention"):
                    value.data.copy_(first[name])

    return copy_first_group


@dataclass(frozen=True)
class Case:
    """One class of transformers and the settings it is tried with."""

    name: str
    class_name: str
    settings: dict[str, Any] = field(hash=False)
    pairs: str | None = None
    """The argument of the pair labels."""
    pair_logits: str = ""
    logits: str = "logits"
    segments: bool = True
    change: Change = _unchanged
    sharing: str = "none"

    def __str__(self) -> str:
        return self.name

    @property
    def model_class(self) -> Any:
        return getattr(transformers, self.class_name)

    @property
    def encoder_only(self) -> bool:
        return not self.logits

    def twin(self, dtype: torch.dtype = torch.float32) -> Any:
        """Return the class with random weights; biases and norms are random as well."""
        config = self.model_class.config_class(**self.settings, architectures=[self.class_name])
        twin = self.model_class(config).eval()
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
            self.change(twin)
        return twin.to(dtype)

    def rotate_exactly(self, patch: pytest.MonkeyPatch) -> None:
        """Let ModernBERT turn queries and keys in their own dtype.

        transformers rounds float64 ones to float32 there, and the gradient with them: equality to
        1e-9 could not be seen.
        """

        def apply(
            q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int
        ) -> tuple[Tensor, Tensor]:
            cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
            return q * cos + modern.rotate_half(q) * sin, k * cos + modern.rotate_half(k) * sin

        patch.setattr(modern, "apply_rotary_pos_emb", apply)

    def config_json(self, twin: Any) -> dict[str, Any]:
        """Return what save_pretrained writes."""
        table: dict[str, Any] = twin.config.to_diff_dict()
        return {**table, "architectures": [self.class_name]}

    def run(self, twin: Any, batch: Batch, padded: PaddedBatch) -> TwinOutput:
        inputs = padded.inputs(pad_token_id=twin.config.pad_token_id, segments=self.segments)
        if self.encoder_only:
            output = twin(**inputs)
            hidden = padded.real(output.last_hidden_state)
            pooled = output.get("pooler_output")
            return TwinOutput(loss=hidden_loss(hidden, pooled), hidden=hidden)
        labels = {"labels": padded.label_tensor}
        if self.pairs:
            labels[self.pairs] = torch.from_numpy(batch.pair_labels)
        output = twin(**inputs, **labels)
        logits, loss = output[self.logits], output.loss
        if loss.dtype != logits.dtype:  # ModernBERT's is of the logits rounded to float32
            loss = functional.cross_entropy(logits.flatten(0, 1), padded.label_tensor.flatten())
        return TwinOutput(
            loss=loss,
            masked_logits=logits[padded.label_tensor != -100],
            pair_logits=output[self.pair_logits] if self.pairs else None,
        )


def hidden_loss(hidden_TH: Tensor, pooled_BH: Tensor | None) -> Tensor:
    """A loss for a class that has none, in which every output counts differently."""
    loss = (hidden_TH * torch.linspace(-1, 1, hidden_TH.numel()).view_as(hidden_TH)).sum()
    return loss if pooled_BH is None else loss + (pooled_BH**2).sum()


@dataclass(frozen=True, kw_only=True)
class TwinOutput:
    loss: Tensor
    hidden: Tensor | None = None
    """Of a class without heads."""
    masked_logits: Tensor | None = None
    pair_logits: Tensor | None = None


def _bert(name: str, class_name: str = "BertForPreTraining", **changed: Any) -> Case:
    return Case(
        name,
        class_name,
        {**BERT, **changed},
        pairs="next_sentence_label",
        pair_logits="seq_relationship_logits",
        logits="prediction_logits",
    )


def _albert(name: str, groups: int, sharing: str, change: Change = _unchanged) -> Case:
    return Case(
        name,
        "AlbertForPreTraining",
        {**ALBERT, "num_hidden_groups": groups},
        pairs="sentence_order_label",
        pair_logits="sop_logits",
        logits="prediction_logits",
        sharing=sharing,
        change=change,
    )


def _modern(name: str, **changed: Any) -> Case:
    return Case(name, "ModernBertForMaskedLM", {**MODERN, **changed}, segments=False)


LAYERS = int(SIZES["num_hidden_layers"])
CASES = [
    _bert("bert"),
    _bert("bert-gelu-new", hidden_act="gelu_new"),
    Case("bert-masked-lm", "BertForMaskedLM", BERT),
    Case("bert-encoder", "BertModel", BERT, logits=""),
    Case("roberta", "RobertaForMaskedLM", ROBERTA),
    Case(
        "roberta-pad-0-one-segment",
        "RobertaForMaskedLM",
        {**ROBERTA, "pad_token_id": 0, "max_position_embeddings": 81, "type_vocab_size": 1},
        segments=False,
    ),
    Case("roberta-encoder", "RobertaModel", ROBERTA, logits=""),
    _albert("albert", 1, "all"),
    _albert("albert-not-shared", LAYERS, "none"),
    _albert("albert-attention-shared", LAYERS, "attention", share("attention")),
    _albert("albert-ffn-shared", LAYERS, "ffn", share("ffn")),
    _modern("modern"),
    _modern("modern-one-layer", num_hidden_layers=1),
    _modern("modern-all-global", global_attn_every_n_layers=1, local_attention=10),
    _modern(
        "modern-biases",
        **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), True),
    ),
    Case("modern-encoder", "ModernBertModel", MODERN, logits="", segments=False),
    Case("albert-encoder", "AlbertModel", ALBERT, logits="", sharing="all"),
]
