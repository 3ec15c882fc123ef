"""Which checkpoints stay: the newest ones, those of every N steps, and the best one.

best.json, beside latest.json, names the checkpoint whose weights had the lowest held-out loss of
those that were saved after an evaluation.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from pipeline.commit import Generation
from pipeline.config import require
from pipeline.contract import canonical_json
from trainer.attempt_fence import AttemptFence
from trainer.checkpoint import (
    MANIFEST,
    checkpoint_folder,
    committed,
    latest,
    newest_first,
    withdraw,
)

BEST = "best.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A held-out loss, of the weights after `step` updates."""

    step: int
    phase: int
    """Of the run, from 0: rows of another length have another level of loss."""
    mlm_loss_nats: float
    checkpoint: str = ""
    """The folder of the checkpoint, once there is one."""

    def is_better_than(self, best: Evaluated | None) -> bool:
        """Whether it takes the place of `best`, the best so far; that of a later phase always.

        And where the step was done again: the run went back, since something was wrong.
        """
        if best is None or self.phase != best.phase:
            return best is None or self.phase > best.phase
        return self.mlm_loss_nats < best.mlm_loss_nats or self.step == best.step


def read_best(generation: Generation) -> Evaluated | None:
    """Return the best checkpoint so far.

    None if there is none yet, or if best.json was damaged or its checkpoint is none any more: the
    next evaluation then makes one.
    """
    storage = generation.storage
    name = generation.name(BEST)
    if storage.size(name) is None:
        return None
    try:
        best = Evaluated(**json.loads(storage.read(name)))
    except (TypeError, ValueError):
        return None
    kinds = (best.step, int), (best.phase, int), (best.mlm_loss_nats, float)
    if not all(isinstance(value, kind) for value, kind in kinds):
        return None
    manifest = generation.name(f"{best.checkpoint}/{MANIFEST}")
    return None if storage.size(manifest) is None else best


def set_best(fence: AttemptFence, best: Evaluated) -> None:
    """Let best.json name the checkpoint that this attempt has committed after `best.step`."""
    generation = fence.generation
    named = replace(best, checkpoint=checkpoint_folder(best.step, fence.attempt))
    generation.storage.replace(generation.name(BEST), canonical_json(asdict(named)))


def abandon(fence: AttemptFence, *, after: int) -> None:
    """Withdraw the checkpoints of later steps than `after`, to which the run has gone back.

    They would be taken for the newest. The one that was made last goes last, so that a run that is
    killed in between finds it. best.json goes with what it names.
    """
    for step, attempt in reversed(committed(fence.generation)):
        if step > after:
            withdraw(fence.generation, step, attempt)
    if read_best(fence.generation) is None:
        fence.generation.storage.delete(fence.generation.name(BEST))


def retain(fence: AttemptFence, *, keep: int, keep_every_steps: int = 0) -> tuple[str, ...]:
    """Delete the older committed checkpoints; return the names of those.

    The newest `keep` stay, those of multiples of `keep_every_steps` (0: none), and the best; of
    several of one step that of the last attempt. The newest is read back and verified first;
    nothing is deleted unless it, or one before it, verifies, and never that one. Left-overs of
    saves that did not end go with the old ones.
    Raises ConfigError for keep < 1, ConflictError if a later attempt has begun.
    """
    require(keep >= 1, "training.keep_checkpoints", keep, "must be at least 1")
    generation = fence.generation
    storage = generation.storage
    newest, _ = latest(generation)
    if newest is None:
        return ()
    fence.require_newest(storage)
    best = read_best(generation)
    kept = 1
    seen = {newest.step}
    removed = []
    for step, attempt in newest_first(storage, generation):
        if (step, attempt) >= (newest.step, newest.attempt):
            continue
        name = checkpoint_folder(step, attempt)
        path = generation.name(name)
        if storage.size(f"{path}/{MANIFEST}") is not None:
            is_pinned = keep_every_steps > 0 and step % keep_every_steps == 0
            is_best = best is not None and name == best.checkpoint
            if is_best or (step not in seen and (kept < keep or is_pinned)):
                kept += step not in seen
                seen.add(step)
                continue
        # The manifest first: from then on it is no checkpoint, at a kill in between too.
        storage.delete(f"{path}/{MANIFEST}")
        for object_name, _ in list(storage.list(f"{path}/")):
            storage.delete(object_name)
        removed.append(name)
    return tuple(removed)
