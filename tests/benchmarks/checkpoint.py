"""What a checkpoint costs the step loop: `python -m tests.benchmarks.checkpoint`.

BERT-Base with AdamW's state (1.3 GB) on two threads: the call that copies it and leaves the writing
to a thread, beside `torch.save` of the same tensors to the same disk, which a loop waits for.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import torch

from pipeline.commit import Generation
from tests.benchmarks.harness import save
from trainer.attempt_fence import AttemptFence
from trainer.background_saver import BackgroundSaver
from trainer.models.encoder_model import EncoderForPreTraining
from trainer.optim import make_optimizer, optimizer_tensors
from trainer.settings.model import ModelConfig
from trainer.settings.optimizer import OptimizerConfig

THREADS = 2
ROUNDS = 5
VOCAB_SIZE = 30_522


def main(folder: Path) -> None:
    model = EncoderForPreTraining(ModelConfig(), VOCAB_SIZE, 0, pair_head="nsp", seed=0)
    optimizer = make_optimizer(model, OptimizerConfig())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # makes its state
    tensors = model.state_dict(), optimizer_tensors(optimizer, model)
    fence = AttemptFence.take(Generation(str(folder), "training", "a" * 20))
    copies, dumps = [], []
    with BackgroundSaver(fence, keep=1) as saver:
        for step in range(1, ROUNDS + 2):
            started = time.perf_counter()
            saver.save(step=step, model=tensors[0], optimizer=tensors[1], state={})
            copies.append(time.perf_counter() - started)
            saver.wait()  # the writing is not to meet torch.save
            started = time.perf_counter()
            torch.save(tensors, folder / "torch.pt")
            dumps.append(time.perf_counter() - started)
    # A run's first save also takes the copy's memory.
    first, copy, dump = copies[0], statistics.median(copies[1:]), statistics.median(dumps[1:])
    print(f"copy {copy:.2f} s (the first {first:.2f} s); torch.save {dump:.2f} s")
    result = {
        "case": "BERT-Base with AdamW's state, the wait of the step loop",
        "value": copy,
        "unit": "seconds",
        "peer": "torch.save",
        "peer_value": dump,
        "ratio": dump / copy,
    }
    save("checkpoint", [result])


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
