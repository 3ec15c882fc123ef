"""The models on a CUDA device; tests/benchmarks/models.py calls it where there is one."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Callable
from typing import Any

import torch

from tests.benchmarks._model_steps import Size, make_batch, model_flops, our_step, their_step

TOKENS = 32_768  # of a step at full rows
_PRODUCT = 8_192


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


def measure(rounds: int) -> list[dict[str, Any]]:
    """Measure BERT-Base and -Large in bfloat16, rows full (packed) or of all lengths.

    Dropout of the hidden states is the published 0.1; that of the attention weights is 0, because
    the varlen kernel has none.
    """
    device = torch.device("cuda")
    peak = product_flops(device)
    has_twin = importlib.util.find_spec("transformers") is not None
    sizes: tuple[Size, ...] = ("base", "large")
    results = []
    for size in sizes:
        for length in (128, 512):
            for full in (True, False):
                batch = make_batch(TOKENS // length, length, full=full)
                tokens, flops = batch.input_ids.size, model_flops(size, batch)
                steps: dict[str, Callable[[], Callable[[], None]]] = {
                    kind: lambda compiled=kind == "compiled", size=size, batch=batch: our_step(
                        size,
                        batch,
                        "bf16",
                        device,
                        attention_dropout=0.0,
                        compiled=compiled,
                    )
                    for kind in ("plain", "compiled")
                }
                if has_twin:
                    steps["transformers"] = lambda size=size, batch=batch, length=length: (
                        their_step(size, batch, length, "bf16", device)
                    )
                for kind, make in steps.items():
                    torch.cuda.reset_peak_memory_stats()
                    step = make()
                    seconds = seconds_of(step, rounds)
                    results.append(
                        {
                            "case": f"{size}-{TOKENS // length}x{length}-"
                            f"{'packed' if full else 'half full'}-bf16-{kind}",
                            "step_ms": 1e3 * seconds,
                            "tokens_per_second": tokens / seconds,
                            "mfu": flops / seconds / peak,
                            "product_tflops": peak / 1e12,
                            "peak_memory_gb": torch.cuda.max_memory_allocated() / 1e9,
                        }
                    )
                    print_result(results[-1])
                    del step
                    torch.cuda.empty_cache()
    return results


def print_result(result: dict[str, Any]) -> None:
    """Print one line of a measurement."""
    shown = (
        f"{key} {value:.4g}" if isinstance(value, float) else str(value)
        for key, value in result.items()
    )
    print(", ".join(shown), flush=True)
