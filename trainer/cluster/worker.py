"""One Ray Train worker: who it is and what it computes on; the run itself knows no Ray."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray.train
import ray.train.torch
from torch import distributed as dist

from pipeline.errors import ClozelineError, TrainingError
from trainer.cluster.notices import REQUESTS
from trainer.pretrain import pretrain
from trainer.ranks import Worker

# What a program's fault raises, and no lost worker, node or connection.
_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    StopIteration,
    TypeError,
    ValueError,
)


def train_worker(settings: dict[str, Any]) -> None:
    """Run a rank of the training; called by Ray Train on every worker of the group."""
    context = ray.train.get_context()
    worker = Worker(
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        device=ray.train.torch.get_device(),
        group=dist.group.WORLD,
        requests=REQUESTS,
    )
    try:
        with faults_told(worker.rank):
            pretrain(settings["config"], settings["generation"], settings["sources"], worker)
    finally:
        REQUESTS.close()


@contextmanager
def faults_told(rank: int) -> Iterator[None]:
    """Raise a fault of the program as a TrainingError that names the rank and the place.

    For anything else that is unforeseen Ray Train starts the workers anew: it may be a lost one.
    """
    try:
        yield
    except ClozelineError:
        raise
    except _FAULTS as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise TrainingError(
            f"rank {rank}: {type(error).__name__}: {error}\nThis was not foreseen, in {place.name} "
            f"({place.filename}:{place.lineno}); nothing committed is lost, and a restart would "
            "meet it again"
        ) from error
