"""Tells a loss that has jumped from one that falls as it should."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from statistics import median

from pipeline.errors import TrainingError
from trainer.settings.divergence import DivergenceConfig


class DivergenceError(TrainingError):
    """Loss or gradient of a step is not finite, or the loss has jumped; no update was done."""

    sequences: int = 0
    """Of the step's global batch; 0 where it was no step that went wrong."""


class LossWatch:
    """The losses of the last steps, and the highest that the next one may have.

    The rule is that of DivergenceConfig. All ranks have the same losses, so they judge alike.
    """

    def __init__(self, config: DivergenceConfig, losses: Iterable[float] = ()) -> None:
        self._config = config
        self._losses = deque(losses, maxlen=config.window_steps)

    @property
    def losses(self) -> list[float]:
        """What a checkpoint keeps, oldest first."""
        return list(self._losses)

    @property
    def limit(self) -> float:
        """The highest loss that is no jump, in nats; inf while there are too few to compare."""
        config = self._config
        if len(self._losses) < config.window_steps or math.isinf(config.margin_nats):
            return math.inf
        middle = median(self._losses)
        deviation = median(abs(loss - middle) for loss in self._losses)
        return middle + max(config.margin_nats, config.deviations * deviation)

    def add(self, loss: float) -> None:
        """Take in the loss of a step that was done."""
        self._losses.append(loss)

    def clear(self) -> None:
        """Forget all: another phase has another level of loss."""
        self._losses.clear()
