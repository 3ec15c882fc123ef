"""One training step of ours and of the twin in transformers, over the same random batch.

Nothing here needs numpy: a bare GPU machine may have torch alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from trainer.data.batch import TensorBatch, sequence_layout
from trainer.losses import masked_lm_loss, pair_loss
from trainer.models.encoder_model import EncoderForPreTraining
from trainer.optim import make_optimizer
from trainer.settings.model import ModelConfig
from trainer.settings.optimizer import OptimizerConfig

Precision = Literal["fp32", "bf16"]
Size = Literal["small", "base", "large"]
VOCAB_SIZE = 30_522
SIZES: dict[Size, tuple[int, int, int]] = {  # H, L, A
    "small": (512, 4, 8),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """What both sides are given: flat int64 tensors on the CPU, named as those of data.Batch."""

    lengths: Tensor
    """[B]."""
    input_ids: Tensor
    token_type_ids: Tensor
    masked_positions: Tensor
    masked_lm_ids: Tensor
    pair_labels: Tensor


def make_batch(rows: int, length: int, *, full: bool) -> StepBatch:
    """Random tokens, 15 % of each row masked; not full: lengths even between 5 and 95 %."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.full((rows,), length)
    if not full:
        shares = torch.linspace(0.05, 0.95, rows, dtype=torch.float64)
        lengths = (shares * length).long()[torch.randperm(rows, generator=draw)]
    starts = lengths.cumsum(0) - lengths
    tokens = int(lengths.sum())
    in_row = torch.arange(tokens) - starts.repeat_interleave(lengths)
    positions = torch.cat(
        [
            start + 1 + torch.randperm(one - 2, generator=draw)[: round(0.15 * one)].sort().values
            for start, one in zip(starts.tolist(), lengths.tolist(), strict=True)
        ]
    )

    def ids(count: int, low: int = 1_000, high: int = VOCAB_SIZE) -> Tensor:
        return torch.randint(low, high, (count,), generator=draw)

    return StepBatch(
        lengths=lengths,
        input_ids=ids(tokens),
        token_type_ids=(in_row >= lengths.repeat_interleave(lengths) // 2).long(),
        masked_positions=positions,
        masked_lm_ids=ids(positions.numel()),
        pair_labels=ids(rows, 0, 2),
    )


def our_step(
    size: Size,
    batch: StepBatch,
    precision: Precision,
    device: torch.device,
    *,
    attention_dropout: float = 0.1,
    compiled: bool = False,
) -> Callable[[], None]:
    hidden, layers, heads = SIZES[size]
    config = ModelConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        attention_probs_dropout_prob=attention_dropout,
    )
    model = EncoderForPreTraining(config, VOCAB_SIZE, 0, pair_head="nsp", seed=0)
    model.to(device).train()
    if compiled:
        model.encoder.compile_blocks()
    optimizer = make_optimizer(model, OptimizerConfig())
    cu_seqlens = torch.nn.functional.pad(batch.lengths.cumsum(0), (1, 0))
    inputs = TensorBatch(
        input_ids=batch.input_ids.to(device),
        token_type_ids=batch.token_type_ids.to(device),
        masked_positions=batch.masked_positions.to(device),
        layout=sequence_layout(cu_seqlens, device),
    )
    masked_labels = batch.masked_lm_ids.to(device)
    pair_labels = batch.pair_labels.to(device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            states, pair_logits = model.states(inputs)
            bias = model.masked_lm_head.decoder_bias
            mlm, _ = masked_lm_loss(states, model.decoder_weight_of_loss(), bias, masked_labels)
        assert pair_logits is not None
        pair, _ = pair_loss(pair_logits, pair_labels)
        torch.autograd.backward(mlm / masked_labels.numel() + pair / pair_labels.numel())
        optimizer.step()

    return step


def their_step(
    size: Size,
    batch: StepBatch,
    length: int,
    precision: Precision,
    device: torch.device,
    *,
    attention_dropout: float = 0.1,
) -> Callable[[], None]:
    import transformers

    hidden, layers, heads = SIZES[size]
    config = transformers.BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        attention_probs_dropout_prob=attention_dropout,
        attn_implementation="sdpa",
    )
    model = transformers.BertForPreTraining(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    inputs = {name: tensor.to(device) for name, tensor in padded(batch, length).items()}

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            loss = model(**inputs).loss
        loss.backward()
        optimizer.step()

    return step


def padded(batch: StepBatch, length: int) -> dict[str, Tensor]:
    """Return a flat batch as transformers takes it: grids, and labels of -100 where none is."""
    real = torch.arange(length) < batch.lengths[:, None]
    labels = torch.full_like(batch.input_ids, -100)
    labels[batch.masked_positions] = batch.masked_lm_ids

    def grid(values: Tensor, padding: int) -> Tensor:
        return torch.full(real.shape, padding).masked_scatter(real, values)

    return {
        "attention_mask": real.long(),
        "input_ids": grid(batch.input_ids, 0),
        "token_type_ids": grid(batch.token_type_ids, 0),
        "labels": grid(labels, -100),
        "next_sentence_label": batch.pair_labels,
    }


def model_flops(size: Size, batch: StepBatch) -> float:
    """Return the floating point operations of a step that the real tokens need.

    Two for each multiply-add, forward once and backward twice: the products with weights,
    attention inside each sequence, the decoder at masked positions. Norms, activations, the
    optimizer and what is computed again are not counted.
    """
    hidden, layers, _ = SIZES[size]
    lengths = batch.lengths.double()
    masked, rows = batch.masked_positions.numel(), lengths.numel()
    tokens, attended = float(lengths.sum()), float((lengths**2).sum())
    encoder = layers * (12 * hidden**2 * tokens + 2 * hidden * attended)
    heads = masked * (hidden**2 + hidden * VOCAB_SIZE) + rows * (hidden**2 + 2 * hidden)
    return 6.0 * (encoder + heads)
