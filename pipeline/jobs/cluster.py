"""Running a stage's units as a Ray Data job."""

from __future__ import annotations

import json
import logging
import os
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
import ray
import ray.data
from ray.data._internal.execution import streaming_executor_state
from ray.data._internal.execution.resource_manager import ResourceManager

from pipeline.config import PipelineConfig
from pipeline.contract import byte_shaping_versions, require_versions
from pipeline.errors import ClozelineError
from pipeline.progress import progress
from pipeline.ray_session import ray_session
from pipeline.stage import Stage
from pipeline.storage import storage_retries


@contextmanager
def data_session(config: PipelineConfig) -> Iterator[None]:
    """Join the configured cluster with Ray Data set to be quiet."""
    with ray_session(
        ray,
        config.ray_address,
        cpus=config.cluster.workers,
        object_store_bytes=config.cluster.object_store_bytes,
        working_storage=config.working_storage,
    ):
        # A failure is told once, by us: Ray Data logs every task's traceback as well.
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        # Ray Data 2.60 looks once a second how large the cluster is, and at first sees none: every
        # pass ran one unit at a time for its first one to two seconds. And it looks ten times a
        # second which tasks have ended, unless all have: a worker waited 0.2 s for its next unit
        # (both measured). Neither has a public setting.
        ResourceManager.GLOBAL_LIMITS_UPDATE_INTERVAL_S = 0.05
        streaming_executor_state.WAIT_FOR_TASK_COMPLETION_TIMEOUT_S = 0.03
        yield


def run_units(
    stage: Stage,
    work: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    units: Sequence[Mapping[str, Any]],
    *,
    description: str,
    workers: int,
) -> list[dict[str, Any]]:
    """Run `work` on every unit as a Ray Data job and return the units' facts in their order.

    A unit and its facts are JSON objects. Where the marker `unit["marker"]` exists its facts are
    taken and nothing is done; else `work` leaves it. `unit["bytes"]`, if there, is what the
    progress bar counts. The first failure ends the job and is raised; a killed worker's unit is
    run again.
    """
    if not units:
        return []
    weights = [int(unit.get("bytes", 0)) for unit in units]
    rows = [{"number": number, "unit": json.dumps(unit)} for number, unit in enumerate(units)]

    generation = stage.generation
    versions = byte_shaping_versions()

    def call(row: dict[str, Any]) -> dict[str, Any]:
        unit = json.loads(row["unit"])
        retries = storage_retries()
        result = {"number": row["number"], "facts": "", "done_before": False, "error": b""}
        result["storage_retries"] = 0
        try:
            require_versions(versions)
            found = generation.marker(unit["marker"])
            facts = work(unit) if found is None else found
        except ClozelineError as error:
            # As a value: what a task raises reaches the driver wrapped in Ray's own texts. The
            # note is what --debug shows.
            error.add_note(traceback.format_exc())
            return {**result, "error": pickle.dumps(error)}
        return {
            **result,
            "facts": json.dumps(facts),
            "done_before": found is not None,
            "storage_retries": storage_retries() - retries,
        }

    data = ray.data.from_items(rows, override_num_blocks=len(rows))
    # Without a limit Ray Data fills every CPU of the cluster.
    data = data.map(call, num_cpus=1, concurrency=min(workers, len(rows)) or None)
    results: list[dict[str, Any]] = [{} for _ in units]
    total = sum(weights)
    with progress(description, total or len(units), "bytes" if total else "units") as advance:
        for row in data.iter_rows():
            if row["error"]:
                raise pickle.loads(row["error"])
            number = row["number"]
            results[number] = json.loads(row["facts"])
            stage.count_unit(
                units[number]["marker"],
                done_before=row["done_before"],
                storage_retries=row["storage_retries"],
            )
            advance(weights[number] if total else 1)
    return results
