"""Joining a Ray cluster, or starting a local one that ends with the command.

Both halves need it, and only their shells may import ray: they hand the module in.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline.errors import ClozelineError, ClusterError

LOCAL = "local"
_CONNECT_SECONDS = 10.0
# A container's microseconds of CPU in so many of time: control groups' second version, the first.
_QUOTAS = (
    ("/sys/fs/cgroup/cpu.max",),
    ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)


@contextmanager
def ray_session(
    ray: ModuleType, address: str, *, cpus: int, object_store_bytes: int, working_storage: str
) -> Iterator[None]:
    """Connect to `address`, RAY_ADDRESS or a local Ray of its own, and disconnect at the end.

    A local Ray has `cpus` CPUs at least and spills objects into `working_storage`, if there is
    one; where a cluster spills was said when it was started. Raises ClusterError if the address
    does not answer; a failure inside a task or worker comes out as the ClozelineError it was.
    """
    address = address or os.environ.get("RAY_ADDRESS") or LOCAL
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        # A bare ray.init would join whatever cluster runs on this machine.
        options |= {"include_dashboard": False, "object_store_memory": object_store_bytes}
        options |= {"num_cpus": max(cpus, _usable_cpus())}
        if working_storage:
            options["object_spilling_directory"] = working_storage
    try:
        _require_listener(address)
        ray.init(address=address, **options)
    except Exception as error:  # Ray raises many kinds, a bare Exception among them
        remedy = (
            "its processes did not start in time, or lack memory or disk; free some and run the "
            "command again"
            if address == LOCAL
            else "start a cluster with `ray start --head`, correct the address, or leave it out "
            "for a local Ray"
        )
        verb = "start" if address == LOCAL else "join"
        raise ClusterError(f"ray_address = {address}: cannot {verb}: {error}; {remedy}") from error
    try:
        yield
    except Exception as error:
        ours = our_error(error)
        if ours is None or ours is error:
            raise
        raise ours from error
    finally:
        ray.shutdown()


def _usable_cpus() -> int:
    """Return how many CPUs this process may use: of those it may run on, its container's share."""
    allowed = len(os.sched_getaffinity(0))
    for names in _QUOTAS:
        try:
            quota, period = " ".join(Path(name).read_text() for name in names).split()
        except OSError:
            continue
        if quota.isdigit():  # neither "max" nor -1, which are no limit
            return min(allowed, max(1, int(quota) // int(period)))
    return allowed


def _require_listener(address: str) -> None:
    """Raise OSError unless somebody listens at a host:port; Ray would try for eight minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()


def our_error(error: BaseException) -> ClozelineError | None:
    """Find the ClozelineError that Ray's exceptions wrap, None if there is none."""
    seen: set[int] = set()
    pending: list[Any] = [error]
    while pending:
        one = pending.pop()
        if not isinstance(one, BaseException) or id(one) in seen:
            continue
        if isinstance(one, ClozelineError):
            return one
        seen.add(id(one))
        # RayTaskError has `cause`, Ray Train's errors those of its controller and workers.
        pending += [getattr(one, "cause", None), getattr(one, "controller_failure", None)]
        pending += [one.__cause__, one.__context__]
        failures = getattr(one, "worker_failures", None)
        pending += list(failures.values()) if isinstance(failures, dict) else []
    return None
