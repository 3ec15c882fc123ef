"""Both sides of tests/benchmarks/pretraining.py, each run in a process of its own.

A curve is a list of (seconds of training, held-out masked LM loss in nats); evaluations, the same
on both sides, do not count as training.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from pipeline.instance_set import InstanceSet
from trainer.config import TrainerConfig
from trainer.convert import SpecialIds, export_config, import_state_dict
from trainer.journal import read_journal
from trainer.loader import evaluation_batches
from trainer.models.encoder_model import EncoderForPreTraining
from trainer.pretrain import pretrain
from trainer.ranks import Worker
from trainer.run_plan import open_sources
from trainer.step import evaluate
from trainer.training_run import initial_model, open_instances, training_generation

THREADS = 2
_LOG_STEPS = 5
Curve = list[tuple[float, float]]
"""(Seconds, nats.)"""


def ours(config: TrainerConfig, steps: int, evaluations: int, output: Path) -> None:
    """Train with the product's own loop, one worker of two threads; write the curve as JSON."""
    every = _interval(steps, evaluations)
    config = dataclasses.replace(
        config,
        training=dataclasses.replace(
            config.training,
            total_steps=steps,
            workers=1,
            threads_per_worker=THREADS,
            checkpoint_seconds=3_600,
            log_steps=_LOG_STEPS,
        ),
        evaluation=dataclasses.replace(config.evaluation, every_steps=every),
        schedule=dataclasses.replace(config.schedule, warmup_steps=_warmup(config, steps)),
    )
    instances = open_instances(config)
    generation = training_generation(config, instances)
    worker = Worker(0, 1, torch.device("cpu"), None)
    pretrain(config, generation, open_sources(config, instances), worker)
    output.write_text(json.dumps(_our_curve(read_journal(generation))))


def _our_curve(records: list[dict[str, Any]]) -> Curve:
    curve: Curve = []
    seconds, done = 0.0, 0
    for record in records:
        if record["kind"] == "train":
            seconds += record["step_seconds"] * (record["step"] - done)
            done = record["step"]
        elif record["kind"] == "evaluation":
            curve.append((seconds, record["mlm_loss_nats"]))
    return curve


def theirs(config: TrainerConfig, steps: int, evaluations: int, output: Path) -> None:
    """Train with transformers' Trainer and its masked LM collator; write the curve as JSON.

    The same sequences, tokenizer, architecture, batches of sequences, optimizer and schedule.
    """
    from transformers import (
        DataCollatorForLanguageModeling,
        PreTrainedTokenizerFast,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    torch.set_num_threads(THREADS)
    instances = open_instances(config)
    every = _interval(steps, evaluations)
    model = _their_model(config, instances)
    curve: Curve = []
    started = time.monotonic()
    evaluating = 0.0

    class Evaluate(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            nonlocal started
            started = time.monotonic()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            nonlocal evaluating
            if state.global_step % every and state.global_step != steps:
                return
            begun = time.monotonic()
            seconds = begun - started - evaluating
            curve.append((seconds, _held_out_loss(config, instances, _as_ours(model))))
            evaluating += time.monotonic() - begun

    rules = config.masking
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=_tokenizer_file(instances, output.parent),
        pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]",
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir=str(output.parent / "trainer"),
        max_steps=steps,
        per_device_train_batch_size=config.training.batch_size,
        learning_rate=config.optimizer.learning_rate,
        adam_beta1=config.optimizer.betas[0],
        adam_beta2=config.optimizer.betas[1],
        weight_decay=config.optimizer.weight_decay,
        max_grad_norm=config.optimizer.clip_norm,
        warmup_steps=_warmup(config, steps),
        lr_scheduler_type="linear",
        save_strategy="no",
        logging_steps=every,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=config.seed,
    )
    Trainer(
        model=model,
        args=arguments,
        train_dataset=_Rows(instances),
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=rules.probability),
        callbacks=[Evaluate()],
    ).train()
    output.write_text(json.dumps(curve))


def _interval(steps: int, evaluations: int) -> int:
    """Return the steps between evaluations, a multiple of those between records."""
    return max(steps // evaluations // _LOG_STEPS, 1) * _LOG_STEPS


def _warmup(config: TrainerConfig, steps: int) -> int:
    return min(config.schedule.warmup_steps, steps // 2)


def _their_model(config: TrainerConfig, instances: InstanceSet) -> Any:
    from transformers import BertConfig, BertForMaskedLM

    ids = instances.special_ids
    special = SpecialIds(pad=ids["[PAD]"], cls=ids["[CLS]"], sep=ids["[SEP]"])
    settings = export_config(initial_model(config, instances), special)
    config_of_theirs = BertConfig(**settings)
    config_of_theirs._attn_implementation = "sdpa"
    return BertForMaskedLM(config_of_theirs)


class _Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """The training instances as the collator takes them, all in memory."""

    def __init__(self, instances: InstanceSet) -> None:
        tables = [table["input_ids"].combine_chunks() for table in _tables(instances)]
        self._ids = pa.chunked_array(tables).combine_chunks()
        self._values = np.asarray(self._ids.flatten())
        self._offsets = np.asarray(self._ids.offsets)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"input_ids": self._values[self._offsets[row] : self._offsets[row + 1]].tolist()}


def _tables(instances: InstanceSet) -> Iterator[pa.Table]:
    for shard in instances.shards("train"):
        data = instances.generation.read(shard.object)
        yield pa.ipc.open_file(pa.py_buffer(data)).read_all()


def _tokenizer_file(instances: InstanceSet, folder: Path) -> str:
    path = folder / "tokenizer.json"
    path.write_bytes(instances.tokenizer_json)
    return str(path)


def _as_ours(model: Any) -> EncoderForPreTraining:
    config = {**model.config.to_dict(), "architectures": ["BertForMaskedLM"]}
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    imported = import_state_dict(state, config).model()
    assert isinstance(imported, EncoderForPreTraining)
    return imported


def _held_out_loss(
    config: TrainerConfig, instances: InstanceSet, model: EncoderForPreTraining
) -> float:
    batches = evaluation_batches(
        instances,
        seed=config.seed,
        rules=config.masking,
        rank=0,
        world_size=1,
        batch_size=config.evaluation.batch_size,
        max_instances=config.evaluation.max_instances,
    )
    return evaluate(model, batches, device=torch.device("cpu"), group=None).mlm_loss_nats
