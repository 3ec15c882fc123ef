"""Joining a Ray cluster, or starting a local one that ends with the command."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
import ray
import ray.data
import ray.exceptions

from pipeline.errors import ClozelineError, ClusterError
from pipeline.progress import progress

LOCAL = "local"


@contextmanager
def ray_cluster(address: str, *, workers: int, object_store_bytes: int) -> Iterator[None]:
    """Connect to `address`, RAY_ADDRESS or a local Ray of its own, and disconnect at the end.

    Raises ClusterError if the address does not answer; a failure inside a task comes out as the
    ClozelineError it was.
    """
    address = address or os.environ.get("RAY_ADDRESS") or LOCAL
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        # A bare ray.init would join whatever cluster runs on this machine.
        quiet |= {"include_dashboard": False, "object_store_memory": object_store_bytes}
        quiet |= {"num_cpus": max(workers, os.cpu_count() or 1)}
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ClusterError(
            f"ray_address = {address}: cannot join: {error}; start a cluster with "
            "`ray start --head`, correct the address, or leave it out for a local Ray"
        ) from None
    # A failure is told once, by us: Ray Data logs every task's traceback as well.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    try:
        yield
    except Exception as error:
        ours = our_error(error)
        if ours is None or ours is error:
            raise
        raise ours from error
    finally:
        ray.shutdown()


def our_error(error: BaseException) -> ClozelineError | None:
    """Find the ClozelineError that a Ray exception wraps, None if there is none."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        if isinstance(one, ClozelineError):
            return one
        seen.add(id(one))
        pending += [getattr(one, "cause", None), one.__cause__, one.__context__]
    return None


def run_units(
    work: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    units: Sequence[Mapping[str, Any]],
    *,
    description: str,
    workers: int,
) -> list[dict[str, Any]]:
    """Run `work` on every unit as a Ray Data job and return its results in the units' order.

    A unit and a result are JSON objects. `unit["bytes"]`, if there, is what the progress bar
    counts. The first failure ends the job and is raised; a killed worker's unit is run again.
    """
    if not units:
        return []
    weights = [int(unit.get("bytes", 0)) for unit in units]
    rows = [{"number": number, "unit": json.dumps(unit)} for number, unit in enumerate(units)]

    def call(row: dict[str, Any]) -> dict[str, Any]:
        return {"number": row["number"], "result": json.dumps(work(json.loads(row["unit"])))}

    data = ray.data.from_items(rows, override_num_blocks=len(rows))
    # Without a limit Ray Data fills every CPU of the cluster.
    data = data.map(call, num_cpus=1, concurrency=workers or None)
    results: list[dict[str, Any]] = [{} for _ in units]
    total = sum(weights)
    with progress(description, total or len(units), "bytes" if total else "units") as advance:
        for row in data.iter_rows():
            results[row["number"]] = json.loads(row["result"])
            advance(weights[row["number"]] if total else 1)
    return results
