"""One optimizer update, and an evaluation. No Ray, no I/O.

The sum over all ranks and micro-batches of a step is the update of the undivided batch: the
counts of targets are reduced before the first backward pass, so each loss is divided by its
own global denominator, and what has no targets adds zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.distributed import ProcessGroup, all_reduce

from pipeline.derived_keys import derive_key
from pipeline.errors import TrainingError
from trainer.data.batch import Batch, as_tensor, to_tensors
from trainer.divergence import DivergenceError
from trainer.losses import masked_lm_loss, pair_loss
from trainer.models.encoder_model import EncoderForPreTraining
from trainer.reduction import GradientReduction

Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one update did, summed over all ranks, the same on each of them."""

    mlm_loss: float
    """Nats, mean over the masked tokens."""
    pair_loss: float | None
    """Nats, mean over the pairs; None where the objective has none."""
    mlm_correct: int
    masked_tokens: int
    pairs: int
    sequences: int
    tokens: int
    grad_norm: float
    """Global norm of the gradient before clipping."""
    checkpoint_asked: bool
    """Whether any rank was asked for a checkpoint."""

    @property
    def loss(self) -> float:
        """The sum of both losses, which the gradient is of."""
        return self.mlm_loss + (self.pair_loss or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalFigures:
    """Means over the targets of all ranks, the same on each of them."""

    mlm_loss_nats: float
    mlm_accuracy: float
    mlm_perplexity: float
    """exp of the loss, at most e^700."""
    pair_loss: float | None
    """Nats; None, like the accuracy, where the objective has no pairs."""
    pair_accuracy: float | None
    masked_tokens: int
    pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult(EvalFigures):
    """Of all instances of the set, and of each source."""

    by_source: dict[str, EvalFigures]
    """Where there are several; without those that have no masked token."""
    not_evaluated: list[str]
    """Those."""


def train_step(
    model: EncoderForPreTraining,
    optimizer: torch.optim.Optimizer,
    micro_batches: Sequence[Batch],
    *,
    step: int,
    seed: int,
    rank: int,
    learning_rate: float,
    clip_norm: float,
    precision: Precision,
    device: torch.device,
    group: ProcessGroup | None,
    loss_limit: float = math.inf,
    checkpoint_asked: bool = False,
) -> StepResult:
    """Do update number `step` with this rank's micro-batches (there may be none).

    Every rank of `group` calls it with its own micro-batches, its own `checkpoint_asked`, which is
    reduced along with the counts, and the same other arguments; then the weights stay equal to the
    bit. With no dropout the result does not depend on how the
    global batch is divided, but for rounding.

    Without a pair label in the whole step the masked LM is trained alone; the pair head keeps a
    gradient of zero.

    Raises TrainingError on a batch the model cannot take, on a step without a masked token and for
    a parameter that no loss reaches; DivergenceError when loss or gradient is not finite or the
    loss is above `loss_limit`. Weights and optimizer are then as before, on every rank.
    """
    where = f"step {step}"
    for batch in micro_batches:
        model.check(batch)
    masked, pairs, sequences, tokens, asked = _reduce_counts(
        micro_batches, checkpoint_asked, device, group
    )
    _require_targets(where, masked)
    model.train()
    optimizer.zero_grad(set_to_none=True)
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    reduction = GradientReduction(model.parameters(), group)
    for number, batch in enumerate(micro_batches):
        is_last = number + 1 == len(micro_batches)
        # Dropout is the one draw that takes no key of ours: torch's generator is set for it.
        torch.manual_seed(derive_key(seed, "dropout", step, rank, number) & (2**63 - 1))
        mlm, mlm_correct, pair, _ = _losses(model, batch, precision, device)
        with reduction.overlapping() if is_last else nullcontext():
            torch.autograd.backward(mlm / masked + pair / max(pairs, 1))
        sums += torch.stack([mlm.detach().double(), pair.detach().double(), mlm_correct.double()])
    if micro_batches:
        _require_gradients(where, model)
    reduction.send_rest()
    _reduce(sums, group)
    gradients = reduction.wait()
    mlm_sum, pair_sum, correct = sums.tolist()
    mean_pair_loss = pair_sum / pairs if pairs else None
    try:
        require_finite(where, masked_lm_loss=mlm_sum / masked, pair_loss=mean_pair_loss or 0.0)
        _require_no_jump(where, mlm_sum / masked + (mean_pair_loss or 0.0), loss_limit)
        grad_norm = _clip(gradients, clip_norm)
        require_finite(where, gradient_norm=grad_norm)
    except DivergenceError as error:
        error.sequences = sequences
        raise
    for parameters in optimizer.param_groups:
        parameters["lr"] = learning_rate
    optimizer.step()
    return StepResult(
        mlm_loss=mlm_sum / masked,
        pair_loss=mean_pair_loss,
        mlm_correct=int(correct),
        masked_tokens=masked,
        pairs=pairs,
        sequences=sequences,
        tokens=tokens,
        grad_norm=grad_norm,
        checkpoint_asked=asked > 0,
    )


def evaluate(
    model: EncoderForPreTraining,
    batches: Iterable[tuple[int, Batch]],
    *,
    device: torch.device,
    group: ProcessGroup | None,
    sources: Sequence[str] = ("",),
    mixed_sources: Sequence[str] = (),
) -> EvalResult:
    """Return losses and accuracies over the batches of all ranks, in float32, without dropout.

    Before each batch stands the number of its source: of `sources`, which the figures over all are
    of, or after these of `mixed_sources`, which have figures of their own only.

    Raises TrainingError when no rank has a masked token, DivergenceError for a loss that is not
    finite.
    """
    was_training = model.training
    model.eval()
    names = [*sources, *mixed_sources]
    sums_N6 = torch.zeros(len(names), 6, dtype=torch.float64, device=device)
    with torch.inference_mode():
        for source, batch in batches:
            model.check(batch)
            losses = _losses(model, batch, "fp32", device)
            masked_tokens, pairs, _, _ = _counts(batch)
            sums_N6[source, :4] += torch.stack([value.double() for value in losses])
            sums_N6[source, 4] += masked_tokens
            sums_N6[source, 5] += pairs
        _reduce(sums_N6, group)
    model.train(was_training)
    by_source = {
        name: _figures(sums.tolist())
        for name, sums in zip(names, sums_N6, strict=True)
        if len(names) > 1 and sums[4] > 0
    }
    whole = _figures(sums_N6[: len(sources)].sum(0).tolist())
    missing = [name for name in names if len(names) > 1 and name not in by_source]
    return EvalResult(**asdict(whole), by_source=by_source, not_evaluated=missing)


def _figures(sums: Sequence[float]) -> EvalFigures:
    """Return the means of sums over masked tokens and over pairs."""
    mlm, mlm_correct, pair, pair_correct, masked_tokens, pairs = sums
    _require_targets("evaluation", int(masked_tokens))
    loss = mlm / masked_tokens
    require_finite("evaluation", masked_lm_loss=loss, pair_loss=pair / max(pairs, 1.0))
    return EvalFigures(
        mlm_loss_nats=loss,
        mlm_accuracy=mlm_correct / masked_tokens,
        mlm_perplexity=math.exp(min(loss, 700.0)),
        pair_loss=pair / pairs if pairs else None,
        pair_accuracy=pair_correct / pairs if pairs else None,
        masked_tokens=int(masked_tokens),
        pairs=int(pairs),
    )


def _counts(batch: Batch) -> tuple[int, int, int, int]:
    pairs = 0 if batch.pair_labels is None else batch.pair_labels.size
    return batch.masked_positions.size, pairs, batch.cu_seqlens.size - 1, batch.input_ids.size


def _reduce_counts(
    micro_batches: Sequence[Batch],
    checkpoint_asked: bool,
    device: torch.device,
    group: ProcessGroup | None,
) -> tuple[int, int, int, int, int]:
    """Return masked tokens, pairs, sequences, tokens and askers of the step over all ranks."""
    local = np.zeros(5, dtype=np.int64)
    for batch in micro_batches:
        local[:4] += _counts(batch)
    local[4] = checkpoint_asked
    counts = torch.from_numpy(local).to(device)
    _reduce(counts, group)
    masked, pairs, sequences, tokens, asked = counts.tolist()
    return masked, pairs, sequences, tokens, asked


def _losses(
    model: EncoderForPreTraining, batch: Batch, precision: Precision, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the sums of a micro-batch: MLM loss and correct, pair loss and correct."""
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        transformed_MH, pair_logits_B2 = model.states(to_tensors(batch, device))
        mlm, mlm_correct = masked_lm_loss(
            transformed_MH,
            model.decoder_weight_of_loss(),
            model.masked_lm_head.decoder_bias,
            as_tensor(batch.masked_lm_ids, device),
            model.vocab_size,
        )
    if pair_logits_B2 is None:
        return mlm, mlm_correct, mlm.new_zeros(()), mlm_correct.new_zeros(())
    if batch.pair_labels is None:
        return mlm, mlm_correct, pair_logits_B2.sum() * 0.0, mlm_correct.new_zeros(())
    return mlm, mlm_correct, *pair_loss(pair_logits_B2, as_tensor(batch.pair_labels, device))


def _reduce(values: Tensor, group: ProcessGroup | None) -> None:
    if group is not None:
        all_reduce(values, group=group)


def _clip(gradients: list[Tensor], clip_norm: float) -> float:
    """Scale the gradients to a global norm of `clip_norm` at most; return their norm before."""
    norms = torch.stack(torch._foreach_norm(gradients))
    norm = float(torch.linalg.vector_norm(norms).item())
    if clip_norm < norm < math.inf:
        torch._foreach_mul_(gradients, clip_norm / norm)
    return norm


def _require_targets(where: str, masked: int) -> None:
    if masked == 0:
        raise TrainingError(
            f"{where}: no masked token in the whole batch; the MLM head would learn nothing: "
            "check masking.probability and the shards, and raise a training.batch_size of few rows"
        )


def _require_gradients(where: str, model: EncoderForPreTraining) -> None:
    missing = [name for name, one in model.named_parameters() if one.grad is None]
    if missing:
        raise TrainingError(
            f"{where}: no loss reaches {', '.join(missing[:4])} ({len(missing)} parameters): they "
            "would only decay; leave out the part of the model that the objective does not train"
        )


def _require_no_jump(where: str, loss: float, limit: float) -> None:
    if loss > limit:
        raise DivergenceError(
            f"{where}: loss = {loss:.4g} nats: jumped above {limit:.4g}, the limit that "
            "[divergence] sets by the steps before"
        )


def require_finite(where: str, **values: float) -> None:
    """Raise DivergenceError that names the first value which is not finite."""
    for name, value in values.items():
        if not math.isfinite(value):
            raise DivergenceError(f"{where}: {name} = {value}: not finite")
