"""What rank 0 leaves of a run: metrics, checkpoints, and the result at the end."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
import torch

from pipeline.contract import PAIR_LABELS, canonical_json
from pipeline.errors import ClozelineError
from pipeline.instance_set import InstanceSet
from pipeline.metrics import TrainingMetrics
from trainer.attempt_fence import AttemptFence
from trainer.background_saver import BackgroundSaver
from trainer.config import TrainerConfig, run_identity
from trainer.journal import Journal
from trainer.models.encoder_model import EncoderForPreTraining
from trainer.optim import optimizer_tensors
from trainer.progress import Progress
from trainer.retention import BEST, Evaluated, read_best
from trainer.step import EvalResult, StepResult

# What the metrics call the loss of an objective's pairs.
_PAIR_OBJECTIVES = {
    objective: label.removesuffix("_label") for objective, label in PAIR_LABELS.items()
}
# Of a step's time, from which on waiting for data is worth a warning.
_WAIT_SHARE = 0.1

_log = logging.getLogger(__name__)

RESULT = "result.json"
METRICS_TEXT = "metrics.prom"


@dataclass(slots=True)
class Window:
    """Sums since the last record of metrics.jsonl."""

    started: float = field(default_factory=time.monotonic)
    steps: int = 0
    tokens: int = 0
    mlm_loss: float = 0.0
    pair_loss: float | None = None
    mlm_correct: int = 0
    masked_tokens: int = 0
    data_wait_seconds: float = 0.0

    def add(self, result: StepResult, wait_seconds: float) -> None:
        """Count one step."""
        self.steps += 1
        self.tokens += result.tokens
        self.mlm_loss += result.mlm_loss
        if result.pair_loss is not None:
            self.pair_loss = (self.pair_loss or 0.0) + result.pair_loss
        self.mlm_correct += result.mlm_correct
        self.masked_tokens += result.masked_tokens
        self.data_wait_seconds += wait_seconds

    def record(self) -> dict[str, Any]:
        """Return the means of the steps counted; no pair_loss where there are no pairs."""
        seconds = time.monotonic() - self.started
        pairs = {} if self.pair_loss is None else {"pair_loss": self.pair_loss / self.steps}
        return {
            "data_wait_seconds": self.data_wait_seconds / self.steps,
            "masked_share": self.masked_tokens / self.tokens,
            "mlm_accuracy": self.mlm_correct / self.masked_tokens,
            "mlm_loss": self.mlm_loss / self.steps,
            "step_seconds": seconds / self.steps,
            "steps": self.steps,
            "tokens_per_second": self.tokens / seconds,
            **pairs,
        }


def training_metrics(config: TrainerConfig) -> TrainingMetrics:
    """Return the metrics of this process, served where the config says so."""
    metrics = TrainingMetrics()
    if config.cluster.metrics_port:
        metrics.serve(config.cluster.metrics_port)
    return metrics


class Recorder:
    """Journal, Prometheus metrics and checkpoints of one attempt; used on rank 0 only."""

    def __init__(
        self,
        config: TrainerConfig,
        fence: AttemptFence,
        progress: Progress,
        metrics: TrainingMetrics,
        *,
        workers: int,
    ) -> None:
        self._config = config
        self._workers = workers
        self._generation = fence.generation
        self._fence = fence
        self._saver = BackgroundSaver(
            fence,
            keep=config.training.keep_checkpoints,
            keep_every_steps=config.training.keep_every_steps,
        )
        self._best = read_best(fence.generation)
        self._evaluated: Evaluated | None = None
        rollbacks = [one.to_json() for one in progress.rollbacks]
        self._journal = Journal(fence, progress.step, rollbacks)
        self._metrics = metrics
        self._pair_objective = _PAIR_OBJECTIVES.get(config.instances.objective, "")
        self._window = Window()
        self._started = self._saved = time.monotonic()
        self._is_started = self._is_evaluated = self._told_of_waiting = False
        best = fence.generation.name(BEST)
        if self._best is None and fence.generation.storage.size(best) is not None:
            self.warn(progress.step, f"{BEST} names no checkpoint that is there: the best is anew")

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._journal.close()
        except ClozelineError as failure:
            if error is None:
                raise
            # What ended the training comes first.
            error.add_note(f"its last records could not be written: {failure}")
        finally:
            self._saver.__exit__(kind, error, trace)

    def step(
        self,
        result: StepResult,
        progress: Progress,
        *,
        rate: float,
        wait_seconds: float,
        seconds: float,
        phase: int,
        epochs: list[float],
        is_last: bool,
    ) -> None:
        """Count one step; every `training.log_steps`, and the last, a record goes to the journal.

        `phase` counts from 1; `epochs` says how often each of its sources was gone through.
        """
        self._window.add(result, wait_seconds)
        metrics = self._metrics
        metrics.loss.labels("masked_lm").set(result.mlm_loss)
        if result.pair_loss is not None:
            metrics.loss.labels(self._pair_objective).set(result.pair_loss)
        metrics.step.set(progress.step)
        metrics.tokens.inc(result.tokens)
        metrics.sequences.inc(result.sequences)
        metrics.step_seconds.observe(seconds)
        metrics.data_wait_seconds.inc(wait_seconds)
        metrics.masked_share.set(result.masked_tokens / result.tokens)
        metrics.phase.set(phase)
        if progress.step % self._config.training.log_steps and not is_last:
            return
        record = {
            "kind": "train",
            "attempt": self._fence.attempt,
            "epochs": epochs,
            "grad_norm": result.grad_norm,
            "learning_rate": rate,
            "phase": phase,
            "seconds": time.monotonic() - self._started,
            "sequences": result.sequences,
            "sequences_seen": progress.sequences_seen,
            "step": progress.step,
            "tokens_seen": progress.tokens_seen,
            "workers": self._workers,
            **self._window.record(),
        }
        self._journal.add(record)
        self._tell_of_waiting(record)
        self._window = Window()

    def _tell_of_waiting(self, record: dict[str, Any]) -> None:
        """Warn once where steps wait for data; the first record has the loader's start in it."""
        share = record["data_wait_seconds"] / record["step_seconds"]
        if share > _WAIT_SHARE and self._is_started and not self._told_of_waiting:
            self.warn(
                record["step"],
                f"steps wait for data {share:.0%} of their time; raise training.prefetch_steps, "
                "read_ahead_bytes or read_threads, or give training.cache_directory",
            )
            self._told_of_waiting = True
        self._is_started = True

    def evaluation(self, step: int, phase: int, result: EvalResult) -> None:
        """Record an evaluation of the weights after `step` updates; phases count from 0."""
        self._evaluated = Evaluated(step=step, phase=phase, mlm_loss_nats=result.mlm_loss_nats)
        self._metrics.evaluation_loss.labels("masked_lm").set(result.mlm_loss_nats)
        if result.pair_loss is not None:
            self._metrics.evaluation_loss.labels(self._pair_objective).set(result.pair_loss)
        for source in result.not_evaluated if not self._is_evaluated else ():
            self.warn(step, f"nothing is held out of source {source}: it has no figures of its own")
        self._is_evaluated = True
        for source, figures in result.by_source.items():
            self._metrics.evaluation_source_loss.labels(source).set(figures.mlm_loss_nats)
        self._journal.add({"kind": "evaluation", "step": step, **asdict(result)})
        # Evaluation is no part of the next record's step time.
        self._window = Window()

    def warn(self, step: int, text: str) -> None:
        """Tell whoever watches the run: the journal is what its command and its report read."""
        _log.warning("step %d: %s", step, text)
        attempt = self._fence.attempt
        self._journal.add({"kind": "warning", "attempt": attempt, "step": step, "text": text})

    def rollback(
        self,
        model: EncoderForPreTraining,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
    ) -> None:
        """Record that the run went back to where this attempt begins, say so, and save that.

        So a run that is stopped now knows of it, and takes no later checkpoint for its newest.
        """
        rollback = progress.rollbacks[-1]
        if self._best is not None and self._best.step > progress.step:
            self._best = None  # it is withdrawn with the others
        self._metrics.rollbacks.inc()
        self._metrics.skipped_sequences.inc(rollback.skipped_sequences)
        self._journal.add(
            {
                "kind": "rollback",
                "attempt": self._fence.attempt,
                "step": rollback.to_step,
                **rollback.to_json(),
            }
        )
        _log.warning(
            "%s; back to step %d, and on without %d sequences",
            rollback.reason,
            rollback.to_step,
            rollback.skipped_sequences,
        )
        self._save(model, optimizer, progress, abandons_later=True)

    def save_when_due(
        self,
        model: EncoderForPreTraining,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
        *,
        now: bool = False,
        urgent: bool = False,
    ) -> None:
        """Start a checkpoint where `training.checkpoint_seconds` have passed since the last.

        And where the weights were evaluated as better than those of every checkpoint so far.
        One that is still being written puts the former off: the other ranks would wait in a
        collective until that has ended, which takes as long as the store does. The best weights
        will be others then, so they wait, as with `now`. (With 0 seconds every step makes one, and
        waits.) An `urgent` one is committed on return: who asked for it may end this process at any
        moment, so nothing else is to compete with the writing.
        """
        self._saver.raise_failure()
        seconds = self._config.training.checkpoint_seconds
        is_best = self._new_best(progress.step) is not None
        waits = now or urgent or is_best or seconds == 0.0
        is_due = waits or time.monotonic() - self._saved >= seconds
        if not is_due or (self._saver.is_busy and not waits):
            return
        # An update can leave weights that are not finite; the next step will tell, and go back.
        if not _is_finite(model):
            return
        self._save(model, optimizer, progress)
        self._saved = time.monotonic()
        if urgent:
            self._saver.wait()
            self.warn(progress.step, "a checkpoint was asked for and is committed")

    def _new_best(self, step: int) -> Evaluated | None:
        """Return the evaluation of the weights after `step`, if it is the best so far."""
        found = self._evaluated
        if found is None or found.step != step or found is self._best:
            return None
        return found if found.is_better_than(self._best) else None

    def _save(
        self,
        model: EncoderForPreTraining,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
        *,
        abandons_later: bool = False,
    ) -> None:
        best = self._new_best(progress.step)
        self._best = best or self._best
        # Before the checkpoint: a resume keeps the records up to it and writes none of them again.
        written = self._journal.write({METRICS_TEXT: self._metrics.text()})
        self._saver.save(
            step=progress.step,
            model=model.state_dict(),
            optimizer=optimizer_tensors(optimizer, model),
            state={"config": run_identity(self._config), **progress.to_json()},
            best=best,
            abandons_later=abandons_later,
            after=written,
        )

    def finish(
        self,
        model: EncoderForPreTraining,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
        evaluation: EvalResult,
        instances: InstanceSet,
    ) -> None:
        """Save the last checkpoint and write result.json, which the manifest is made from."""
        self._save(model, optimizer, progress)
        ref = self._saver.wait()
        assert ref is not None  # the one that `_save` has just put in flight
        result = {
            "checkpoint": ref.to_json(),
            "evaluation": asdict(evaluation),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "phase_starts": progress.phase_starts,
            "rollbacks": [one.to_json() for one in progress.rollbacks],
            "sequences_seen": progress.sequences_seen,
            "steps": progress.step,
            "tokens_seen": progress.tokens_seen,
            "unigram_entropy_nats": unigram_entropy_nats(instances),
        }
        self._generation.storage.replace(self._generation.name(RESULT), canonical_json(result))


def _is_finite(model: EncoderForPreTraining) -> bool:
    norms = torch._foreach_norm([parameter.detach() for parameter in model.parameters()])
    return bool(torch.isfinite(torch.stack(norms)).all())


def unigram_entropy_nats(instances: InstanceSet) -> float:
    """Return the entropy of the held-out tokens' frequencies, special tokens left out.

    It is the loss of the best model that knows word frequencies and nothing else.
    """
    counts = np.zeros(instances.vocab_size, dtype=np.int64)
    for shard in instances.shards("held_out"):
        for number in range(len(shard.batch_rows)):
            ids = instances.read_rows(shard, number).original_ids()
            counts += np.bincount(ids, minlength=instances.vocab_size)
    counts[list(instances.special_ids.values())] = 0
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
