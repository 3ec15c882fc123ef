"""The models on a CUDA device; tests/benchmarks/models.py calls it where there is one.

BERT-Base and -Large in bfloat16, at 128 and 512 tokens, rows full (packed) or of all lengths,
compiled and not. Dropout of the hidden states is the published 0.1; that of the attention weights
is 0 on both sides, because the varlen kernel has none.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib.util
import itertools
import statistics
from collections.abc import Callable
from typing import Any, Literal

import torch

from tests.benchmarks._model_steps import Size, make_batch, model_flops, our_step, their_step

TOKENS = 32_768  # of a step at full rows
_PRODUCT = 8_192

Kind = Literal["plain", "compiled", "transformers"]


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One row of the table: ours, plain or compiled, or the twin's."""

    size: Size
    length: int
    full: bool
    kind: Kind

    @property
    def name(self) -> str:
        rows = f"{TOKENS // self.length}x{self.length}"
        return f"{self.size}-{rows}-{'packed' if self.full else 'half-full'}-bf16-{self.kind}"

    @property
    def mfu_goal(self) -> float | None:
        """On hardware of the class of an H100."""
        ours = self.kind != "transformers"
        return 0.55 if ours and self.full and (self.size, self.length) == ("large", 512) else None

    def step(self, device: torch.device) -> tuple[Callable[[], None], int, float]:
        """Return the step, the real tokens it takes, and the operations these need."""
        batch = make_batch(TOKENS // self.length, self.length, full=self.full)
        if self.kind == "transformers":
            step = their_step(self.size, batch, self.length, "bf16", device, attention_dropout=0.0)
        else:
            compiled = self.kind == "compiled"
            step = our_step(
                self.size, batch, "bf16", device, attention_dropout=0.0, compiled=compiled
            )
        return step, batch.input_ids.numel(), model_flops(self.size, batch)


def cases() -> dict[str, Case]:
    """Return every case by its name; those of the twin where transformers is installed."""
    sizes: tuple[Size, ...] = ("base", "large")
    kinds: list[Kind] = ["plain", "compiled"]
    if importlib.util.find_spec("transformers") is not None:
        kinds.append("transformers")
    found = itertools.starmap(Case, itertools.product(sizes, (128, 512), (True, False), kinds))
    return {case.name: case for case in found}


def seconds_of(work: Callable[[], object], rounds: int) -> float:
    """Return the median seconds of `work` on the device's own clock, after two runs of it."""
    for _ in range(2):
        work()
    taken = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end) / 1e3)
    return statistics.median(taken)


def product_flops(device: torch.device) -> float:
    """Return the operations a second of a product of two 8,192 x 8,192 bfloat16 matrices."""
    left, right = (
        torch.randn(_PRODUCT, _PRODUCT, dtype=torch.bfloat16, device=device) for _ in range(2)
    )
    return 2.0 * _PRODUCT**3 / seconds_of(lambda: left @ right, 20)


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Measure one case, and the matrix product while the device is as warm as the step made it."""
    device = torch.device("cuda")
    # What an earlier case left: compiled blocks hold their model in a cycle of references.
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step, tokens, flops = case.step(device)
    seconds = seconds_of(step, rounds)
    peak_memory = torch.cuda.max_memory_allocated()
    product = product_flops(device)
    return {
        "step_ms": 1e3 * seconds,
        "tokens_per_second": tokens / seconds,
        "mfu": flops / seconds / product,
        "mfu_goal": case.mfu_goal,
        "product_tflops": product / 1e12,
        "peak_memory_gb": peak_memory / 1e9,
    }
