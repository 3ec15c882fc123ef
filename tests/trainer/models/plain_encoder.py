"""The encoder written plainly, one sequence after the other; the oracle of the switches' tests."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from trainer.data.batch import Batch
from trainer.models.encoder_model import EncoderForPreTraining
from trainer.settings.model import ModelConfig


def plain_logits(model: EncoderForPreTraining, batch: Batch) -> tuple[Tensor, Tensor | None]:
    """Return (masked logits, pair logits), from the model's parameters and config alone."""
    plain = _Plain(model)
    logits, pairs = [], []
    for start, end in zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False):
        ids = torch.from_numpy(batch.input_ids[start:end])
        types = torch.from_numpy(batch.token_type_ids[start:end])
        hidden = plain.encode(ids, types)
        in_row = [p - start for p in batch.masked_positions if start <= p < end]
        logits.append(plain.masked_lm(hidden[in_row]))
        pairs.append(plain.pair(hidden[0]))
    return torch.cat(logits), None if model.pair_head is None else torch.stack(pairs)


class _Plain:
    def __init__(self, model: EncoderForPreTraining) -> None:
        self.p = dict(model.named_parameters())
        self.config: ModelConfig = model.config
        self.vocab_size, self.pad_token_id = model.vocab_size, model.pad_token_id

    def linear(self, x: Tensor, name: str) -> Tensor:
        y = x @ self.p[f"{name}.weight"].T
        return y + self.p[f"{name}.bias"] if f"{name}.bias" in self.p else y

    def norm(self, x: Tensor, name: str) -> Tensor:
        if f"{name}.weight" not in self.p:
            return x
        centred = x - x.mean(-1, keepdim=True)
        variance = (centred**2).mean(-1, keepdim=True)
        y = centred / (variance + self.config.layer_norm_eps).sqrt() * self.p[f"{name}.weight"]
        return y + self.p[f"{name}.bias"] if f"{name}.bias" in self.p else y

    def act(self, x: Tensor) -> Tensor:
        tanh = self.config.hidden_act == "gelu_new"
        return functional.gelu(x, approximate="tanh" if tanh else "none")

    def encode(self, ids: Tensor, types: Tensor) -> Tensor:
        config = self.config
        x = self.p["embeddings.word_embeddings.weight"][ids]
        if config.type_vocab_size:
            x = x + self.p["embeddings.token_type_embeddings.weight"][types]
        if config.position_embedding_type == "absolute":
            first = self.pad_token_id + 1 if config.position_offset != "none" else 0
            table = self.p["embeddings.position_embeddings.weight"]
            x = x + table[first : first + len(ids)]
        x = self.norm(x, "embeddings.layer_norm")
        if config.embedding_size:
            x = self.linear(x, "embeddings.projection")
        for layer in range(config.num_hidden_layers):
            attention = 0 if config.parameter_sharing in ("attention", "all") else layer
            feed_forward = 0 if config.parameter_sharing in ("ffn", "all") else layer
            block = f"encoder.attention.{attention}"
            x = self.residual(x, block, lambda y, b=block, i=layer: self.attend(y, b, i))
            block = f"encoder.feed_forward.{feed_forward}"
            x = self.residual(x, block, lambda y, b=block: self.feed(y, b))
        return self.norm(x, "encoder.final_norm")

    def residual(self, x: Tensor, block: str, function) -> Tensor:  # type: ignore[no-untyped-def]
        if self.config.norm_position == "pre":
            return x + function(self.norm(x, f"{block}.layer_norm"))
        return self.norm(x + function(x), f"{block}.layer_norm")

    def attend(self, x: Tensor, block: str, layer: int) -> Tensor:
        config = self.config
        length, heads = len(x), config.num_attention_heads
        size = config.hidden_size // heads
        query, key, value = (
            part.view(length, heads, size).transpose(0, 1)
            for part in self.linear(x, f"{block}.qkv").chunk(3, -1)
        )
        is_global = layer % config.global_attention_every == 0
        if config.position_embedding_type == "rotary":
            theta = config.global_rope_theta if is_global else config.local_rope_theta
            query, key = (turned(one, theta) for one in (query, key))
        scores = query @ key.transpose(1, 2) / math.sqrt(size)
        if not is_global:
            places = torch.arange(length)
            far = (places[:, None] - places).abs() > config.local_attention_window / 2
            scores = scores.masked_fill(far, -math.inf)
        context = (scores.softmax(-1) @ value).transpose(0, 1).reshape(length, -1)
        return self.linear(context, f"{block}.output")

    def feed(self, x: Tensor, block: str) -> Tensor:
        inner = self.linear(x, f"{block}.intermediate")
        if self.config.feed_forward == "geglu":
            activated, gate = inner.chunk(2, -1)
            return self.linear(self.act(activated) * gate, f"{block}.output")
        return self.linear(self.act(inner), f"{block}.output")

    def masked_lm(self, hidden: Tensor) -> Tensor:
        x = self.act(self.linear(hidden, "masked_lm_head.dense"))
        x = self.norm(x, "masked_lm_head.layer_norm")
        logits = x @ self.p["embeddings.word_embeddings.weight"].T
        return (logits + self.p["masked_lm_head.decoder_bias"])[:, : self.vocab_size]

    def pair(self, first: Tensor) -> Tensor:
        if "pair_head.weight" not in self.p:
            return first
        if "pooler.dense.weight" in self.p:
            first = self.linear(first, "pooler.dense").tanh()
        return self.linear(first, "pair_head")


def turned(x: Tensor, theta: float) -> Tensor:
    """Turn each pair (x_i, x_{i + D/2}) at position m by m * theta^(-2 i / D), as a rotation."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[1])[:, None] * theta ** (-torch.arange(half) / half)
    pairs = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
        torch.ones_like(angles), angles
    ).to(torch.complex128 if x.dtype == torch.float64 else torch.complex64)
    return torch.cat([pairs.real, pairs.imag], -1)
