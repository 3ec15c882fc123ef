"""Which curves a run has: its metrics as plots over optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trainer.report.figures import Plot, Points
from trainer.report.finished_run import Metrics, Record, series

_COIN_TOSS_NATS = math.log(2.0)


_PAIR_TITLES = {"nsp": "Next sentence prediction", "sop": "Sentence order prediction"}


def run_plots(metrics: Metrics, unigram_entropy_nats: float, objective: str) -> list[Plot]:
    """Return the plots of a run; one of quantities that were never recorded is left out."""

    def plot(name: str, title: str, y_label: str, train: Points, **options: Any) -> Plot:
        return Plot(
            name=name,
            title=title,
            y_label=y_label,
            train=train,
            restarts=metrics.restarts,
            **options,
        )

    train, held_out = metrics.train, metrics.evaluation
    # Of an objective without pairs no such quantity was recorded.
    pairs = _PAIR_TITLES.get(objective, "Pairs")
    plots = [
        plot(
            "mlm-loss",
            "Masked language modelling: loss",
            "nats per masked token",
            series(train, "mlm_loss"),
            held_out=series(held_out, "mlm_loss_nats"),
            baseline=(f"unigram entropy, {unigram_entropy_nats:.2f} nats", unigram_entropy_nats),
        ),
        plot(
            "mlm-accuracy",
            "Masked language modelling: accuracy",
            "masked tokens guessed (%)",
            series(train, "mlm_accuracy"),
            held_out=series(held_out, "mlm_accuracy"),
            percent=True,
            from_zero=True,
        ),
        plot(
            "pair-loss",
            f"{pairs}: loss",
            "nats per pair",
            series(train, "pair_loss"),
            held_out=series(held_out, "pair_loss"),
            baseline=(f"coin toss, {_COIN_TOSS_NATS:.2f} nats", _COIN_TOSS_NATS),
        ),
        plot(
            "pair-accuracy",
            f"{pairs}: accuracy",
            "pairs told right (%)",
            series(train, "pair_accuracy"),
            held_out=series(held_out, "pair_accuracy"),
            baseline=("coin toss, 50%", 0.5),
            percent=True,
        ),
        plot(
            "learning-rate",
            "Learning rate",
            "learning rate (no unit)",
            series(train, "learning_rate"),
            from_zero=True,
        ),
        plot(
            "gradient-norm",
            "Gradient norm before clipping",
            "Euclidean norm (no unit)",
            series(train, "grad_norm"),
            from_zero=True,
        ),
        plot(
            "throughput",
            "Throughput of all workers",
            "tokens per second",
            series(train, "tokens_per_second"),
            from_zero=True,
        ),
        plot(
            "data-wait",
            "Time spent waiting for data",
            "share of a step's time (%)",
            series([_with_wait_share(one) for one in train], "data_wait_share"),
            percent=True,
            from_zero=True,
            at_least=0.05,
        ),
    ]
    return [one for one in plots if one.train[0] or one.held_out[0]]


def _with_wait_share(record: Record) -> Mapping[str, Any]:
    """Add the wait's share of step_seconds, which are a step's whole time, the wait included."""
    wait, step = record.get("data_wait_seconds"), record.get("step_seconds")
    if wait is None or not step:
        return record
    return {**record, "data_wait_share": wait / step}
