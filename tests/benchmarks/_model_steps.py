"""One training step of ours and of the twin in transformers, over the same random batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch

from trainer.data.batch import Batch, as_tensor, to_tensors
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


def make_batch(rows: int, length: int, *, full: bool) -> Batch:
    """Random tokens, 15 % of each row masked; not full: lengths even between 5 and 95 %."""
    draw = np.random.default_rng(0)
    lengths = np.full(rows, length)
    if not full:
        lengths = draw.permutation(np.linspace(0.05, 0.95, rows) * length).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    tokens = int(starts[-1])
    in_row = np.arange(tokens) - np.repeat(starts[:-1], lengths)
    positions = np.concatenate(
        [
            start + np.sort(draw.choice(np.arange(1, one - 1), round(0.15 * one), replace=False))
            for start, one in zip(starts, lengths, strict=False)
        ]
    )
    return Batch(
        input_ids=draw.integers(1_000, VOCAB_SIZE, tokens),
        token_type_ids=(in_row >= np.repeat(lengths, lengths) // 2).astype(np.int64),
        cu_seqlens=starts.astype(np.int32),
        masked_positions=positions,
        masked_lm_ids=draw.integers(1_000, VOCAB_SIZE, positions.size),
        pair_labels=draw.integers(0, 2, rows),
    )


def our_step(
    size: Size,
    batch: Batch,
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
    inputs = to_tensors(batch, device)
    assert batch.pair_labels is not None
    masked_labels = as_tensor(batch.masked_lm_ids, device)
    pair_labels = as_tensor(batch.pair_labels, device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            states, pair_logits = model.states(inputs)
            bias = model.masked_lm_head.decoder_bias
            mlm, _ = masked_lm_loss(states, model.decoder_weight, bias, masked_labels)
        assert pair_logits is not None
        pair, _ = pair_loss(pair_logits, pair_labels)
        torch.autograd.backward(mlm / masked_labels.numel() + pair / pair_labels.numel())
        optimizer.step()

    return step


def their_step(
    size: Size, batch: Batch, length: int, precision: Precision, device: torch.device
) -> Callable[[], None]:
    import transformers

    hidden, layers, heads = SIZES[size]
    config = transformers.BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
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


def padded(batch: Batch, length: int) -> dict[str, torch.Tensor]:
    """Return a flat batch as transformers takes it: grids, and labels of -100 where none is."""
    lengths = np.diff(batch.cu_seqlens)
    real = np.arange(length) < lengths[:, None]
    labels = np.full(batch.input_ids.size, -100)
    labels[batch.masked_positions] = batch.masked_lm_ids
    columns: dict[str, tuple[Any, int]] = {
        "attention_mask": (1, 0),
        "input_ids": (batch.input_ids, 0),
        "token_type_ids": (batch.token_type_ids, 0),
        "labels": (labels, -100),
    }
    tensors = {"next_sentence_label": torch.from_numpy(batch.pair_labels)}
    for name, (values, empty) in columns.items():
        grid = np.full(real.shape, empty)
        grid[real] = values
        tensors[name] = torch.from_numpy(grid)
    return tensors


def model_flops(size: Size, batch: Batch) -> float:
    """Return the floating point operations of a step that the real tokens need.

    Two for each multiply-add, forward once and backward twice: the products with weights,
    attention inside each sequence, the decoder at masked positions. Norms, activations, the
    optimizer and what is computed again are not counted.
    """
    hidden, layers, _ = SIZES[size]
    lengths = np.diff(batch.cu_seqlens).astype(float)
    masked, rows = batch.masked_positions.size, lengths.size
    encoder = layers * (12 * hidden**2 * lengths.sum() + 2 * hidden * (lengths**2).sum())
    heads = masked * (hidden**2 + hidden * VOCAB_SIZE) + rows * (hidden**2 + 2 * hidden)
    return float(6.0 * (encoder + heads))
