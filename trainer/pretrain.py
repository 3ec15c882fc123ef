"""The pre-training run of one worker: restore, step, record, evaluate, save. No Ray."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from pipeline.commit import Generation
from pipeline.errors import TrainingError
from pipeline.instance_set import InstanceSet
from pipeline.metrics import TrainingMetrics
from trainer.config import TrainerConfig
from trainer.data.batch import Batch
from trainer.data.phases import Source
from trainer.data.record_cache import RecordCache
from trainer.divergence import DivergenceError, LossWatch
from trainer.loader import Loader, StepBatches, evaluation_batches
from trainer.models.encoder_model import EncoderForPreTraining
from trainer.optim import make_optimizer
from trainer.progress import Progress
from trainer.ranks import Worker, from_rank_zero
from trainer.recorder import Recorder, training_metrics
from trainer.restore import Failure, restore
from trainer.run_plan import loader_phases, step_plan
from trainer.step import EvalResult, StepResult, evaluate, train_step
from trainer.step_plan import StepPlan
from trainer.training_run import initial_model

# Every token count of a flat batch makes oneDNN primitives of its own: the 1,024 it keeps by
# default took 0.7 GB, and fewer are no slower (measured). Read at the first operation.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What does not change over the attempts of a run on one worker."""

    config: TrainerConfig
    generation: Generation
    sources: Sequence[tuple[Source, ...]]
    """The instance sets of each phase."""
    plan: StepPlan
    worker: Worker
    metrics: TrainingMetrics | None
    """On rank 0."""

    def phase(self, step: int) -> int:
        """Return the phase of the last of `step` updates, from 0."""
        return self.plan.phase(max(step - 1, 0))

    def instances(self, step: int) -> InstanceSet:
        """Return the set that an evaluation after `step` updates is on: that of its phase."""
        return self.sources[self.phase(step)][0].instances

    def stays(self, step: int) -> bool:
        """Whether the checkpoint after `step` updates is one that stays for good."""
        every = self.config.training.keep_every_steps
        return every > 0 and step % every == 0


def pretrain(
    config: TrainerConfig,
    generation: Generation,
    sources: Sequence[tuple[Source, ...]],
    worker: Worker,
) -> None:
    """Train from the newest verified checkpoint to the last step, and leave result.json.

    `sources` are the instance sets of each phase, those that `generation` is named after, whatever
    became current since. A step that goes wrong takes the run back to its last good checkpoint, and
    on without the data up to that step, divergence.max_rollbacks times at most.

    Every rank of the group calls it. Raises what its parts raise: TrainingError, CorruptError.
    """
    worker.use_device()
    torch.set_num_threads(config.training.threads_per_worker)
    run = Run(
        config=config,
        generation=generation,
        sources=sources,
        plan=step_plan(config, sources),
        worker=worker,
        metrics=training_metrics(config) if worker.rank == 0 else None,
    )
    failure = _attempt(run, None)
    while failure is not None:
        done = len(failure.progress.rollbacks)
        if done >= config.divergence.max_rollbacks:
            failure.leftovers.close()
            raise TrainingError(
                f"{failure.error}; the run went back {done} times already "
                f"(divergence.max_rollbacks = {config.divergence.max_rollbacks}): lower "
                "optimizer.learning_rate, lengthen the warm-up, or look at the data there"
            ) from failure.error
        failure = _attempt(run, failure)


def _attempt(run: Run, failed: Failure | None) -> Failure | None:
    """Train from the last good checkpoint to the end; a failure is what the next one goes on from.

    Every attempt has a fence of its own, so that it never writes what the one before has written.
    """
    config, worker = run.config, run.worker
    model = initial_model(config, run.sources[-1][0].instances).to(worker.device)
    model.encoder.activation_checkpointing = config.training.activation_checkpointing
    if config.training.compile:
        model.encoder.compile_blocks()
    optimizer = make_optimizer(model, config.optimizer)
    restored = restore(run.generation, worker, model, optimizer, failed)
    progress = restored.progress
    with ExitStack() as stack:
        recorder = None
        if restored.fence is not None and run.metrics is not None:
            recorder = stack.enter_context(
                Recorder(config, restored.fence, progress, run.metrics, workers=worker.world_size)
            )
            for reason in restored.passed_over:
                recorder.warn(progress.step, f"a checkpoint was passed over: {reason}")
            if failed is not None:
                recorder.rollback(model, optimizer, progress)
        with _loader(run, progress) as loader:
            failure = _train(
                run, loader, model, optimizer, progress, recorder, restored.is_evaluated
            )
        if failure is None:
            return None
        return dataclasses.replace(failure, leftovers=stack.pop_all())


def _train(
    run: Run,
    loader: Loader,
    model: EncoderForPreTraining,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    recorder: Recorder | None,
    is_evaluated: bool,
) -> Failure | None:
    """Do the updates that are left, evaluate and save; `progress` goes along."""
    watch = LossWatch(run.config.divergence, progress.losses)
    steps = run.plan.total_steps
    handed_out = 0
    try:
        # A run that was stopped before the evaluation of its last step does it now.
        is_late = not is_evaluated and _evaluate_when_due(run, model, progress.step, recorder)
        if is_late:
            _save_when_due(run, recorder, model, optimizer, progress, may_wait=True)
        while progress.step < steps:
            started = time.monotonic()
            batches = next(loader)
            handed_out = 1
            wait_seconds = time.monotonic() - started
            request = run.worker.requests.newest()
            result = _update(run, model, optimizer, batches, progress.step, watch.limit, request)
            handed_out = 0
            epochs = loader.plan.epochs(progress.loader or loader.plan.start(None))
            _advance(run.plan, progress, batches, result, watch)
            if recorder:
                recorder.step(
                    result,
                    progress,
                    rate=run.plan.learning_rate(progress.step - 1),
                    wait_seconds=wait_seconds,
                    seconds=time.monotonic() - started,
                    phase=batches.phase + 1,
                    epochs=epochs,
                    is_last=progress.step == steps,
                )
            urgent = result.checkpoint_asked
            if urgent:
                # Before an evaluation, which takes longer than there may be time.
                _save_when_due(run, recorder, model, optimizer, progress, urgent=True)
            run.worker.requests.answer(request)
            is_evaluated = _evaluate_when_due(run, model, progress.step, recorder)
            # At the start of a phase too: a failure then never goes back to other data. And at the
            # end, before the evaluation.
            now = progress.step in (*run.plan.phase_starts, steps) or run.stays(progress.step)
            now = now and not urgent
            _save_when_due(
                run, recorder, model, optimizer, progress, now=now, may_wait=is_evaluated
            )
        evaluation = _evaluate(run, model, steps)
    except DivergenceError as error:
        before = progress.loader or loader.plan.start(None)
        return Failure(
            error=error.with_traceback(None),  # which holds on to the model
            progress=progress,
            data=loader.plan,
            position=loader.plan.skip(before, handed_out),
            leftovers=ExitStack(),
        )
    if recorder:
        recorder.evaluation(steps, run.phase(steps), evaluation)
        recorder.finish(model, optimizer, progress, evaluation, run.instances(steps))
    return None


def _save_when_due(
    run: Run,
    recorder: Recorder | None,
    model: EncoderForPreTraining,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    *,
    now: bool = False,
    urgent: bool = False,
    may_wait: bool = False,
) -> None:
    """Save as the recorder does; all ranks call it, with the same arguments.

    Where rank 0 may wait for the store the others wait for it by notices: in a collective they
    would give up after a while, and the run would lose what is being written.
    """

    def save() -> None:
        if recorder:
            recorder.save_when_due(model, optimizer, progress, now=now, urgent=urgent)

    if now or urgent or may_wait or run.config.training.checkpoint_seconds == 0.0:
        from_rank_zero(run.worker, save)
    else:
        save()


def _evaluate_when_due(
    run: Run, model: EncoderForPreTraining, step: int, recorder: Recorder | None
) -> bool:
    """Evaluate the weights after `step` updates if it is their turn; say whether it was.

    Those of the last step have it in any case, elsewhere.
    """
    every = run.config.evaluation.every_steps
    if every == 0 or step % every or not 0 < step < run.plan.total_steps:
        return False
    evaluation = _evaluate(run, model, step)
    if recorder:
        recorder.evaluation(step, run.phase(step), evaluation)
    return True


def _update(
    run: Run,
    model: EncoderForPreTraining,
    optimizer: torch.optim.Optimizer,
    batches: StepBatches,
    step: int,
    loss_limit: float,
    request: int,
) -> StepResult:
    config, worker = run.config, run.worker
    return train_step(
        model,
        optimizer,
        batches.micro_batches,
        step=step,
        seed=config.seed,
        rank=worker.rank,
        learning_rate=run.plan.learning_rate(step),
        clip_norm=config.optimizer.clip_norm,
        precision=config.training.precision,
        device=worker.device,
        group=worker.group,
        loss_limit=loss_limit,
        checkpoint_asked=worker.requests.is_waiting(request),
    )


def _advance(
    plan: StepPlan, progress: Progress, batches: StepBatches, result: StepResult, watch: LossWatch
) -> None:
    """Take an update that was done into `progress`."""
    progress.step += 1
    progress.sequences_seen += result.sequences
    progress.tokens_seen += result.tokens
    progress.loader = batches.state_after
    watch.add(result.loss)
    if progress.step in plan.phase_starts:
        progress.phase_starts.append(progress.step)
        # Another length of rows has another level of loss.
        watch.clear()
    progress.losses = watch.losses


def _loader(run: Run, progress: Progress) -> Loader:
    training = run.config.training
    cache = None
    if training.cache_directory:
        cache = RecordCache(training.cache_directory, training.cache_bytes)
    return Loader(
        loader_phases(run.config, run.sources, run.plan),
        seed=run.config.seed,
        rules=run.config.masking,
        lanes=training.lanes,
        window_batches=training.window_batches,
        rank=run.worker.rank,
        world_size=run.worker.world_size,
        state=progress.loader,
        prefetch=training.prefetch_steps,
        read_ahead_bytes=training.read_ahead_bytes,
        read_threads=training.read_threads,
        cache=cache,
    )


def _evaluate(run: Run, model: EncoderForPreTraining, step: int) -> EvalResult:
    config, worker = run.config, run.worker
    rules = config.masking
    if config.evaluation.masking_probability:
        rules = dataclasses.replace(rules, probability=config.evaluation.masking_probability)
    sets = [source.instances for source in run.sources[run.phase(step)]]
    names = [
        # By place, since nothing else tells the sets of other runs apart but where they lie.
        [name if place == 1 else f"{place}/{name}" for name in one.sources]
        for place, one in enumerate(sets, 1)
    ]

    def batches() -> Iterator[tuple[int, Batch]]:
        before = 0
        for one in sets:
            for source, batch in evaluation_batches(
                one,
                seed=config.seed,
                rules=rules,
                rank=worker.rank,
                world_size=worker.world_size,
                batch_size=config.evaluation.batch_size,
                max_instances=config.evaluation.max_instances,
            ):
                yield before + source, batch
            before += len(one.sources)

    return evaluate(
        model,
        batches(),
        device=worker.device,
        group=worker.group,
        sources=names[0],
        mixed_sources=[name for of_set in names[1:] for name in of_set],
    )
