"""The models beside transformers: `python -m tests.benchmarks.models [CASE ...]`.

A step is forward, backward and AdamW (fused for both) at the published dropout of 0.1. Ours and
the twin (attn_implementation="sdpa") have a process of two threads each and take turns, step by
step. Both keep the memory they free (trainer/freed_memory.py), as a training worker of ours does;
with --malloc-defaults neither does. Printed are medians, and model FLOP utilisation: the arithmetic
that the real tokens need, beside a matrix product that is measured between the steps. The ratio of
the processor seconds is what to go by where other work shares the machine.

It needs torch alone: without transformers the twin is left out. On a CUDA device it measures
BERT-Base and -Large there instead, see _models_cuda.py.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator
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
    ours.recv()

    def ask(request: str) -> float:
        ours.send(request)
        return float(ours.recv())

    yield ask
    ours.send("end")
    process.join()


def measure(name: str, rounds: int) -> dict[str, Any]:
    case = CASES[name]
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
        "case": name,
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--malloc-defaults", action="store_true", help="neither side keeps the memory it frees"
    )
    arguments = parser.parse_args()
    if torch.cuda.is_available():
        results = _models_cuda.measure(arguments.rounds)
    else:
        results = []
        # Threads that spin while they wait would take what other work needs, and count as work.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        if arguments.malloc_defaults:
            print("freed memory: glibc's defaults on both sides", flush=True)
        else:
            print("freed memory: kept by both sides", flush=True)
            os.environ.update(KEEP_FREED_MEMORY)
        for name in arguments.cases or CASES:
            results.append(measure(name, arguments.rounds))
            _models_cuda.print_result(results[-1])
    folder = Path("runs/bench")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "models.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
