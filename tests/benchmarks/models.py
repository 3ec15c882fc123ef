"""The models beside transformers: `python -m tests.benchmarks.models [CASE ...]`.

A step is forward, backward and AdamW (fused for both) with the published dropout of 0.1. Ours and
the twin (attn_implementation="sdpa") run in a process of their own each, two threads, and take
turns step by step; printed are the medians, and model FLOP utilisation: the arithmetic that the
real tokens need, against a matrix product measured between the steps.

Needs torch alone: without transformers the twin is left out. On a CUDA device
tests/benchmarks/models_cuda.py takes over.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from tests.benchmarks import models_cuda
from trainer.batch import Batch, as_tensor, to_tensors
from trainer.losses import masked_lm_loss, pair_loss
from trainer.model_config import ModelConfig
from trainer.models.encoder_model import EncoderForPreTraining
from trainer.optim import make_optimizer
from trainer.optimizer_config import OptimizerConfig

Precision = Literal["fp32", "bf16"]
THREADS = 2
VOCAB_SIZE = 30_522
SIZES = {  # H, L, A
    "small": (512, 4, 8),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is measured: `rows` sequences a step, of `length` tokens or of all lengths up to it."""

    size: str
    rows: int
    length: int
    full: bool
    precision: Precision
    twin_precision: Precision
    goal: float
    """Ratio that issue the project sets itself; 0 for none."""

    @property
    def name(self) -> str:
        fill = "full" if self.full else "half full"
        twin = "" if self.precision == self.twin_precision else f" (twin {self.twin_precision})"
        return f"{self.size}-{self.rows}x{self.length}-{fill}-{self.precision}{twin}"


CASES = {
    "small-fp32": Case(
        size="small",
        rows=16,
        length=128,
        full=True,
        precision="fp32",
        twin_precision="fp32",
        goal=1.9,
    ),
    "small-bf16": Case(
        size="small",
        rows=16,
        length=128,
        full=True,
        precision="bf16",
        twin_precision="fp32",
        goal=3.4,
    ),
    "small-bf16-both": Case(
        size="small",
        rows=16,
        length=128,
        full=True,
        precision="bf16",
        twin_precision="bf16",
        goal=0.0,
    ),
    "base-fp32": Case(
        size="base",
        rows=8,
        length=128,
        full=True,
        precision="fp32",
        twin_precision="fp32",
        goal=1.4,
    ),
    "base-bf16": Case(
        size="base",
        rows=8,
        length=128,
        full=True,
        precision="bf16",
        twin_precision="fp32",
        goal=2.2,
    ),
    "half-full-fp32": Case(
        size="small",
        rows=8,
        length=512,
        full=False,
        precision="fp32",
        twin_precision="fp32",
        goal=3.0,
    ),
}


def make_config(size: str, **changes: Any) -> ModelConfig:
    hidden, layers, heads = SIZES[size]
    return ModelConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        **changes,
    )


def make_batch(rows: int, length: int, *, full: bool, seed: int = 0) -> Batch:
    """Random tokens; 15 % of each row masked; half full: lengths even between 5 % and 95 %."""
    draw = np.random.default_rng(seed)
    lengths = np.full(rows, length)
    if not full:
        lengths = draw.permutation(np.linspace(0.05, 0.95, rows) * length).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    tokens = int(starts[-1])
    masked = [
        start + np.sort(draw.choice(np.arange(1, one - 1), round(0.15 * one), replace=False))
        for start, one in zip(starts, lengths, strict=False)
    ]
    positions = np.concatenate(masked)
    in_row = np.arange(tokens) - np.repeat(starts[:-1], lengths)
    return Batch(
        input_ids=draw.integers(1_000, VOCAB_SIZE, tokens),
        token_type_ids=(in_row >= np.repeat(lengths, lengths) // 2).astype(np.int64),
        cu_seqlens=starts.astype(np.int32),
        masked_positions=positions,
        masked_lm_ids=draw.integers(1_000, VOCAB_SIZE, positions.size),
        pair_labels=draw.integers(0, 2, rows),
    )


def our_step(case: Case) -> Callable[[], object]:
    config = make_config(case.size)
    model = EncoderForPreTraining(config, VOCAB_SIZE, 0, pair_head="nsp", seed=0).train()
    optimizer = make_optimizer(model, OptimizerConfig())
    batch, device = make_batch(case.rows, case.length, full=case.full), torch.device("cpu")
    assert batch.pair_labels is not None
    masked, pairs = batch.masked_lm_ids.size, batch.pair_labels.size

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=case.precision == "bf16"):
            states, pair_logits = model.states(to_tensors(batch, device))
            bias = model.masked_lm_head.decoder_bias
            labels = as_tensor(batch.masked_lm_ids, device)
            mlm, _ = masked_lm_loss(states, model.decoder_weight, bias, labels)
        assert pair_logits is not None and batch.pair_labels is not None
        pair, _ = pair_loss(pair_logits, as_tensor(batch.pair_labels, device))
        torch.autograd.backward(mlm / masked + pair / pairs)
        optimizer.step()

    return step


def their_step(case: Case) -> Callable[[], object]:
    import transformers

    hidden, layers, heads = SIZES[case.size]
    config = transformers.BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        attn_implementation="sdpa",
    )
    model = transformers.BertForPreTraining(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    inputs = padded(make_batch(case.rows, case.length, full=case.full), case.length)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=case.twin_precision == "bf16"):
            loss = model(**inputs).loss
        loss.backward()
        optimizer.step()

    return step


def padded(batch: Batch, length: int) -> dict[str, torch.Tensor]:
    """Return a flat batch as transformers takes it: a grid, and labels of -100 where none is."""
    lengths = np.diff(batch.cu_seqlens)
    real = np.arange(length) < lengths[:, None]
    labels = np.full(batch.input_ids.size, -100)
    labels[batch.masked_positions] = batch.masked_lm_ids
    grids = {"attention_mask": real.astype(np.int64)}
    for name, values, empty in (
        ("input_ids", batch.input_ids, 0),
        ("token_type_ids", batch.token_type_ids, 0),
        ("labels", labels, -100),
    ):
        grids[name] = np.full(real.shape, empty)
        grids[name][real] = values
    assert batch.pair_labels is not None
    tensors = {name: torch.from_numpy(grid) for name, grid in grids.items()}
    return {**tensors, "next_sentence_label": torch.from_numpy(batch.pair_labels)}


def model_flops(size: str, batch: Batch) -> float:
    """Return the floating point operations of a step that the real tokens need.

    Two for each multiply-add, forward once and backward twice; products with weights, attention
    inside each sequence, the decoder at masked positions. Norms and activations are not counted.
    """
    hidden, layers, _ = SIZES[size]
    lengths = np.diff(batch.cu_seqlens).astype(float)
    masked, rows = batch.masked_positions.size, lengths.size
    encoder = layers * (12 * hidden**2 * lengths.sum() + 2 * hidden * (lengths**2).sum())
    heads = masked * (hidden**2 + hidden * VOCAB_SIZE) + rows * (hidden**2 + 2 * hidden)
    return 6.0 * (encoder + heads)


def product_seconds(precision: Precision) -> float:
    """Return the time of a product of two 2,048 x 2,048 matrices."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left = torch.ones(2_048, 2_048, dtype=dtype)
    started = time.perf_counter()
    left @ left
    return time.perf_counter() - started


def serve(pipe: Connection, side: str, case: Case) -> None:
    """Be one side: answer each request with the seconds it took."""
    torch.set_num_threads(THREADS)
    import ctypes
    import os

    if side == "ours" and os.environ.get("MALLOC"):
        libc = ctypes.CDLL(None)
        libc.mallopt(-4, 0)
        libc.mallopt(-1, 2**31 - 1)
    step = our_step(case) if side == "ours" else their_step(case)
    for _ in range(2):
        step()
    pipe.send(0.0)
    while (request := pipe.recv()) != "end":
        if request == "product":
            pipe.send(product_seconds(case.precision))
            continue
        started = time.perf_counter()
        step()
        pipe.send(time.perf_counter() - started)


@contextlib.contextmanager
def side_process(side: str, case: Case) -> Any:
    """Yield a function that has one side do a request and returns its seconds."""
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=serve, args=(theirs, side, case), daemon=True)
    process.start()
    theirs.close()
    ours.recv()

    def ask(request: str) -> float:
        ours.send(request)
        seconds: float = ours.recv()
        return seconds

    yield ask
    ours.send("end")
    process.join()


def measure(case: Case, rounds: int) -> dict[str, Any]:
    batch = make_batch(case.rows, case.length, full=case.full)
    tokens, flops = batch.input_ids.size, model_flops(case.size, batch)
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(side_process("ours", case))
        has_twin = importlib.util.find_spec("transformers") is not None
        theirs = stack.enter_context(side_process("theirs", case)) if has_twin else None
        our_times, their_times, products = [], [], []
        for _ in range(rounds):
            our_times.append(ours("step"))
            if theirs is not None:
                their_times.append(theirs("step"))
            products.append(min(ours("product") for _ in range(3)))
    seconds = statistics.median(our_times)
    peak = 2.0 * 2_048**3 / statistics.median(products)
    result = {
        "case": case.name,
        "step_ms": 1e3 * seconds,
        "tokens_per_second": tokens / seconds,
        "mfu": flops / seconds / peak,
        "product_gflops": peak / 1e9,
    }
    if their_times:
        twin = statistics.median(their_times)
        result |= {"twin_step_ms": 1e3 * twin, "ratio": twin / seconds, "goal": case.goal}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    if torch.cuda.is_available():
        models_cuda.main()
        return
    results = []
    for name in arguments.cases or CASES:
        results.append(measure(CASES[name], arguments.rounds))
        shown = (
            f"{key} {value:.3g}" if isinstance(value, float) else str(value)
            for key, value in results[-1].items()
        )
        print(", ".join(shown), flush=True)
    folder = Path("runs/bench")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "models.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
