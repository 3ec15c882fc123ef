"""Prometheus metrics of both halves and their exporter.

Names follow Prometheus' conventions: a clozeline_ prefix, base units, _total for counters.
"""

from __future__ import annotations

import errno
import time

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    start_http_server,
)

from pipeline.errors import ClusterError

# How long a process that was killed may still hold its port: its memory is freed first.
_PORT_SECONDS = 30.0
_STEP_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class TrainingMetrics:
    """What a training worker exports; one registry, so that two runs in a process never mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.loss = Gauge(
            "clozeline_training_loss_nats",
            "Loss of the last step, mean over the whole batch's targets.",
            ["objective"],
            registry=self.registry,
        )
        self.evaluation_loss = Gauge(
            "clozeline_evaluation_loss_nats",
            "Loss of the last evaluation on held-out instances.",
            ["objective"],
            registry=self.registry,
        )
        self.evaluation_source_loss = Gauge(
            "clozeline_evaluation_source_loss_nats",
            "Masked LM loss of the last evaluation by source, where there are several.",
            ["source"],
            registry=self.registry,
        )
        self.step = Gauge(
            "clozeline_training_step",
            "Optimizer updates done.",
            registry=self.registry,
        )
        self.tokens = Counter(
            "clozeline_training_tokens_total",
            "Tokens trained on by this attempt, over all workers.",
            registry=self.registry,
        )
        self.sequences = Counter(
            "clozeline_training_sequences_total",
            "Sequences trained on by this attempt, over all workers.",
            registry=self.registry,
        )
        self.step_seconds = Histogram(
            "clozeline_training_step_seconds",
            "Wall time of one step, waiting for data included.",
            buckets=_STEP_BUCKETS,
            registry=self.registry,
        )
        self.masked_share = Gauge(
            "clozeline_training_masked_share",
            "Masked tokens of all tokens of the last step, special ones included.",
            registry=self.registry,
        )
        self.phase = Gauge(
            "clozeline_training_phase",
            "Number of the phase, the first being 1.",
            registry=self.registry,
        )
        self.rollbacks = Counter(
            "clozeline_training_rollbacks_total",
            "Times this process went back to a checkpoint, loss or gradient being bad.",
            registry=self.registry,
        )
        self.skipped_sequences = Counter(
            "clozeline_training_skipped_sequences_total",
            "Sequences that the run went on without after such a return.",
            registry=self.registry,
        )
        self.data_wait_seconds = Counter(
            "clozeline_training_data_wait_seconds_total",
            "Time that steps waited for their batches.",
            registry=self.registry,
        )

    def serve(self, port: int) -> None:
        """Export on a port until the process ends; raises ClusterError if it stays taken."""
        deadline = time.monotonic() + _PORT_SECONDS
        while True:
            try:
                start_http_server(port, registry=self.registry)
                return
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                    raise ClusterError(
                        f"cluster.metrics_port = {port}: cannot listen: {error.strerror}; choose a "
                        "free port, or 0 for none"
                    ) from None
            time.sleep(0.2)

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format, for a textfile collector."""
        return generate_latest(self.registry)
