"""The models beside transformers: `python -m tests.benchmarks.models [CASE ...]`.

A step is forward, backward and AdamW (fused for both) at the published dropout of 0.1. Ours and
the twin (attn_implementation="sdpa") have a process of two threads each and take turns, step by
step. Both keep the memory they free (trainer/freed_memory.py), as a training worker of ours does;
with --malloc-defaults neither does. Printed are medians, and model FLOP utilisation: the arithmetic
that the real tokens need, beside a matrix product that is measured between the steps. The ratio of
the processor seconds is what to go by where other work shares the machine.

On a CUDA device it measures BERT-Base and -Large there instead, see _models_cuda.py, and needs
torch alone; on a CPU it needs numpy as well. Without transformers the twin is left out. A case that
fails has its error in the place of its figures, and the exit status is then 1.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib.util
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks import _models_cuda
from tests.benchmarks._model_steps import (
    Precision,
    Size,
    make_batch,
    model_flops,
    our_step,
    their_step,
)
from trainer.freed_memory import KEEP_FREED_MEMORY

THREADS = 2
RESULTS = Path("runs/bench/models.json")
_PRODUCT = 2_048


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """`rows` sequences a step, full or of all lengths up to `length`, and the ratio to reach."""

    size: Size
    rows: int
    length: int
    full: bool
    precision: Precision
    twin_precision: Precision
    goal: float | None


CASES = {
    "small-fp32": Case("small", 16, 128, True, "fp32", "fp32", 1.9),
    "small-bf16": Case("small", 16, 128, True, "bf16", "fp32", 3.4),
    "small-bf16-both": Case("small", 16, 128, True, "bf16", "bf16", None),
    "base-fp32": Case("base", 8, 128, True, "fp32", "fp32", 1.4),
    "base-bf16": Case("base", 8, 128, True, "bf16", "fp32", 2.2),
    "half-full-fp32": Case("small", 8, 512, False, "fp32", "fp32", 3.0),
    "half-full-bf16": Case("small", 8, 512, False, "bf16", "fp32", None),
}


def product_seconds(precision: Precision) -> float:
    """Return the time of a product of two 2,048 x 2,048 matrices."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left = torch.ones(_PRODUCT, _PRODUCT, dtype=dtype)
    started = time.perf_counter()
    _ = left @ left
    return time.perf_counter() - started


def serve(pipe: Connection, side: str, case: Case) -> None:
    """Be one side: answer requests with seconds, the processor's seconds so far or peak bytes."""
    torch.set_num_threads(THREADS)
    batch, cpu = make_batch(case.rows, case.length, full=case.full), torch.device("cpu")
    if side == "ours":
        step = our_step(case.size, batch, case.precision, cpu)
    else:
        step = their_step(case.size, batch, case.length, case.twin_precision, cpu)
    step()  # which makes the optimizer's state
    pipe.send(0.0)
    while (request := pipe.recv()) != "end":
        if request == "product":
            pipe.send(min(product_seconds(case.precision) for _ in range(3)))
            continue
        if request == "peak":
            pipe.send(1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
            continue
        if request == "processor":
            pipe.send(time.process_time())
            continue
        started = time.perf_counter()
        step()
        pipe.send(time.perf_counter() - started)


@contextlib.contextmanager
def process_of(side: str, case: Case) -> Iterator[Callable[[str], float]]:
    """Yield a function that has one side do a request and returns its answer."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, side, case), daemon=True)
    process.start()
    theirs.close()

    def ask(request: str) -> float:
        ours.send(request)
        return float(ours.recv())

    try:
        ours.recv()
        yield ask
        ours.send("end")
    finally:
        ours.close()  # which ends a process that was not told to
        process.join()


def measure(case: Case, rounds: int) -> dict[str, Any]:
    batch = make_batch(case.rows, case.length, full=case.full)
    products = []
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    processor: dict[str, list[float]] = {"ours": [], "theirs": []}
    with contextlib.ExitStack() as stack:
        sides = {"ours": stack.enter_context(process_of("ours", case))}
        if importlib.util.find_spec("transformers") is not None:
            sides["theirs"] = stack.enter_context(process_of("theirs", case))
        for _ in range(rounds):
            for side, ask in sides.items():
                before = ask("processor")
                times[side].append(ask("step"))
                processor[side].append(ask("processor") - before)
            products.append(sides["ours"]("product"))
        peaks = {side: ask("peak") for side, ask in sides.items()}
    seconds = statistics.median(times["ours"])
    peak = 2.0 * _PRODUCT**3 / statistics.median(products)
    result: dict[str, Any] = {
        "step_ms": 1e3 * seconds,
        "tokens_per_second": batch.input_ids.size / seconds,
        "mfu": model_flops(case.size, batch) / seconds / peak,
        "product_gflops": peak / 1e9,
        "peak_resident_gb": peaks["ours"] / 1e9,
    }
    if "theirs" in sides:
        twin = statistics.median(times["theirs"])
        result |= {
            "twin_step_ms": 1e3 * twin,
            "twin_peak_resident_gb": peaks["theirs"] / 1e9,
            "ratio": twin / seconds,
            "processor_ratio": statistics.median(processor["theirs"])
            / statistics.median(processor["ours"]),
            "goal": case.goal,
        }
    return result


def print_result(result: Mapping[str, Any]) -> None:
    """Print one line of a measurement."""
    shown = (
        f"{key} {value:.4g}" if isinstance(value, float) else str(value)
        for key, value in result.items()
        if value is not None
    )
    print(", ".join(shown), flush=True)


def run(measurements: Mapping[str, Callable[[], dict[str, Any]]], file: Path) -> int:
    """Do each, print it and write all so far to `file`; returns how many failed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    for name, measurement in measurements.items():
        result: dict[str, Any] = {"case": name}
        try:
            result |= measurement()
        # Whatever it is (no memory, no compiler), it must not cost the other cases their figures.
        except Exception as error:
            text = " ".join(str(error).split())
            result["error"] = f"{type(error).__name__}: {text[:500]}"
        results.append(result)
        print_result(result)
        file.write_text(json.dumps(results, indent=2) + "\n")
    return sum("error" in result for result in results)


def main(argv: Sequence[str] | None = None) -> int:
    on_cuda = torch.cuda.is_available()
    cases: Mapping[str, Any] = _models_cuda.cases() if on_cuda else CASES
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.models", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(cases)}")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--malloc-defaults", action="store_true", help="neither side keeps the memory it frees"
    )
    arguments = parser.parse_args(argv)
    for name in arguments.cases:
        if name not in cases:
            parser.error(f"{name}: no such case on this device; must be of {', '.join(cases)}")
    if arguments.rounds < 1:
        parser.error(f"--rounds {arguments.rounds}: must be at least 1")
    if on_cuda and arguments.malloc_defaults:
        parser.error("--malloc-defaults: has no meaning on a CUDA device, where torch keeps memory")
    if not on_cuda:
        # Threads that spin while they wait would take what other work needs, and count as work.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        if arguments.malloc_defaults:
            print("freed memory: glibc's defaults on both sides", flush=True)
        else:
            print("freed memory: kept by both sides", flush=True)
            os.environ.update(KEEP_FREED_MEMORY)
    measure_case: Callable[..., dict[str, Any]] = _models_cuda.measure if on_cuda else measure
    failed = run(
        {
            name: functools.partial(measure_case, cases[name], arguments.rounds)
            for name in arguments.cases or cases
        },
        RESULTS,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
