"""What an attempt of a run begins from: its newest good checkpoint, or one to go back to."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.commit import Generation
from pipeline.errors import CorruptError
from trainer.attempt_fence import AttemptFence
from trainer.checkpoint import (
    CheckpointRef,
    adopt,
    had_checkpoints,
    latest,
    load,
    missing_newest,
    withdraw,
)
from trainer.data.plan import DataPlan, LoaderState
from trainer.divergence import DivergenceError
from trainer.journal import read_journal
from trainer.models.encoder_model import EncoderForPreTraining
from trainer.optim import load_optimizer_tensors
from trainer.progress import Progress, Rollback
from trainer.ranks import Worker, from_rank_zero
from trainer.retention import read_best


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An attempt that ended because a step went wrong."""

    error: DivergenceError
    progress: Progress
    """Before that step."""
    data: DataPlan
    position: LoaderState
    """After the data of that step."""
    leftovers: ExitStack
    """What is still to be closed: it may have to wait for a checkpoint to be written."""

    def condemns(self, step: int) -> bool:
        """Whether the weights after `step` updates are what went wrong: their evaluation did."""
        return self.error.sequences == 0 and self.progress.step == step

    def taken_back_to(self, good: Progress) -> Progress:
        """Return the progress of a run that goes on from `good` without the data since then."""
        step = good.step
        position = self.position
        start = good.loader or self.data.start(None)
        if start.phase != position.phase:
            position = self.data.skip(start, self.progress.step - step + 1)
        handed_out = self.progress.sequences_seen + self.error.sequences
        rollback = Rollback(
            from_step=self.progress.step,
            to_step=step,
            skipped_sequences=handed_out - good.sequences_seen,
            reason=str(self.error),
        )
        return dataclasses.replace(
            good,
            loader=dataclasses.replace(position, step=step),
            rollbacks=[*self.progress.rollbacks, rollback],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """Where an attempt begins."""

    progress: Progress
    fence: AttemptFence | None = None
    """On rank 0."""
    passed_over: tuple[str, ...] = ()
    """On rank 0: why newer checkpoints were not taken."""
    is_evaluated: bool = True
    """Whether the journal has an evaluation of these weights; so of the initial ones."""


def restore(
    generation: Generation,
    worker: Worker,
    model: EncoderForPreTraining,
    optimizer: torch.optim.Optimizer,
    failed: Failure | None,
) -> Restored:
    """Load the newest checkpoint that verifies, or stay at the initial weights; all ranks call it.

    After a failure it may be an earlier one, see `_to_go_back_to`. Rank 0 picks it for every rank,
    and takes the fence. Raises CorruptError if there are checkpoints and none verifies: to begin
    anew would be to lose the run.
    """
    fence: AttemptFence | None = None
    passed_over: tuple[str, ...] = ()

    def choose() -> tuple[dict[str, Any], bool] | None:
        nonlocal fence, passed_over
        if failed is not None:
            failed.leftovers.close()
        # The fence first: no earlier attempt then commits a checkpoint that is not seen here.
        fence = AttemptFence.take(generation)
        while True:
            ref, passed_over = latest(generation)
            passed_over = (*missing_newest(generation), *passed_over)
            if ref is not None and failed is not None:
                if failed.condemns(ref.step):  # None before it: the initial weights
                    ref, _ = latest(generation, before=ref.step)
                else:
                    ref = _to_go_back_to(generation, ref, failed.progress)
            if ref is None or adopt(fence, ref):
                break
            withdraw(generation, ref.step, ref.attempt)
        if ref is None and failed is None and had_checkpoints(generation):
            raise CorruptError(
                f"{generation.root}/{generation.prefix}: no checkpoint verifies: "
                f"{'; '.join(passed_over)}. Put one back, or remove checkpoints/ to begin anew"
            )
        if ref is None:
            return None
        return ref.to_json(), _is_evaluated(generation, ref.step)

    chosen = from_rank_zero(worker, choose)
    progress, is_evaluated = Progress(), True
    if chosen is not None:
        ref, is_evaluated = chosen
        checkpoint = load(generation, CheckpointRef.from_json(ref))
        model.load_state_dict(checkpoint.model)
        load_optimizer_tensors(optimizer, model, checkpoint.optimizer)
        progress = Progress.from_json(checkpoint.state)
    if failed is not None:
        progress = failed.taken_back_to(progress)
    return Restored(
        progress=progress, fence=fence, passed_over=passed_over, is_evaluated=is_evaluated
    )


def _is_evaluated(generation: Generation, step: int) -> bool:
    """Whether the weights of a checkpoint were evaluated, and best.json is what it was to be."""
    losses = {
        one["step"]: one["mlm_loss_nats"]
        for one in read_journal(generation)
        if one["kind"] == "evaluation"
    }
    best = read_best(generation)
    # It comes last, so that a kill may have come before.
    return step in losses and best is not None and best.mlm_loss_nats <= losses[step]


def _to_go_back_to(
    generation: Generation, newest: CheckpointRef, progress: Progress
) -> CheckpointRef:
    """Return the newest checkpoint, or the one before where a run went wrong from it twice.

    It did where it is the one that the last rollback went to. The one before is of the same phase,
    since in another the data that are to be skipped would come again; is there none, it is the
    newest once more, and more data are skipped.
    """
    if not progress.rollbacks or progress.rollbacks[-1].to_step != newest.step:
        return newest
    earlier, _ = latest(generation, since=progress.phase_starts[-1], before=newest.step)
    return earlier or newest
