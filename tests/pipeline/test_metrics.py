"""The exporter's port: one that is about to be free is waited for, another is refused."""

from __future__ import annotations

import socket
import threading
from urllib.request import urlopen

import pytest

from pipeline import metrics
from pipeline.errors import ClusterError
from pipeline.metrics import TrainingMetrics


@pytest.fixture
def taken() -> socket.socket:
    listener = socket.socket()
    listener.bind(("0.0.0.0", 0))
    listener.listen()
    return listener


def test_a_port_that_a_killed_worker_still_holds_is_waited_for(taken: socket.socket) -> None:
    port = taken.getsockname()[1]
    threading.Timer(0.5, taken.close).start()
    served = TrainingMetrics()
    served.step.set(7)
    served.serve(port)
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert "clozeline_training_step 7.0" in answer.read().decode()


def test_a_port_that_stays_taken_is_refused(
    taken: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_PORT_SECONDS", 0.0)
    port = taken.getsockname()[1]
    with taken, pytest.raises(ClusterError, match=f"metrics_port = {port}: .* in use; choose"):
        TrainingMetrics().serve(port)
