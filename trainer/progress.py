"""How far a run is: what a checkpoint keeps beside the tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.errors import CorruptError
from trainer.data.plan import LoaderState


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """One return to an earlier checkpoint, because a step went wrong."""

    from_step: int
    """The update that went wrong; it was not done."""
    to_step: int
    """Updates done at the checkpoint; 0: the initial weights."""
    skipped_sequences: int
    """Sequences of the updates between them, which the run goes on without."""
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the form a checkpoint and the journal keep."""
        return asdict(self)


@dataclass(slots=True, kw_only=True)
class Progress:
    """Where a run stands after `step` updates."""

    step: int = 0
    sequences_seen: int = 0
    """Sequences the weights were trained on."""
    tokens_seen: int = 0
    loader: LoaderState | None = None
    """Where the data go on; None: at their start."""
    phase_starts: list[int] = field(default_factory=lambda: [0])
    """The step at which each phase so far began."""
    losses: list[float] = field(default_factory=list)
    """Of the last steps, which a jump is told by."""
    rollbacks: list[Rollback] = field(default_factory=list)
    """Those that these weights have behind them."""

    def to_json(self) -> dict[str, Any]:
        """Return the form a checkpoint keeps."""
        return {
            "step": self.step,
            "sequences_seen": self.sequences_seen,
            "tokens_seen": self.tokens_seen,
            "loader": self.loader.to_json() if self.loader else None,
            "phase_starts": list(self.phase_starts),
            "losses": list(self.losses),
            "rollbacks": [one.to_json() for one in self.rollbacks],
        }

    @staticmethod
    def from_json(state: Mapping[str, Any]) -> Progress:
        """Rebuild from `to_json`; CorruptError if its keys are others."""
        try:
            return Progress(
                step=int(state["step"]),
                sequences_seen=int(state["sequences_seen"]),
                tokens_seen=int(state["tokens_seen"]),
                loader=LoaderState.from_json(state["loader"]) if state["loader"] else None,
                phase_starts=[int(one) for one in state["phase_starts"]],
                losses=[float(one) for one in state["losses"]],
                rollbacks=[Rollback(**one) for one in state["rollbacks"]],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptError(
                f"checkpoint's state has other keys than this clozeline writes ({error!r}); resume "
                "with the version that wrote it, or start a new run"
            ) from None
