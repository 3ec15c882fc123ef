"""One Ray Train worker: who it is and what it computes on; the run itself knows no Ray."""

from __future__ import annotations

from typing import Any

import ray.train
import ray.train.torch
from torch import distributed as dist

from trainer.cluster.notices import REQUESTS
from trainer.pretrain import pretrain
from trainer.ranks import Worker


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
        pretrain(settings["config"], settings["generation"], settings["sources"], worker)
    finally:
        REQUESTS.close()
