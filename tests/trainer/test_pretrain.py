"""The run of one worker over instances with and without pairs, from step to summary."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.commit import Generation
from pipeline.config import InstancesConfig
from pipeline.contract import Objective
from pipeline.instance_set import InstanceSet
from tests.trainer.instance_fixture import VOCABULARY, commit_instances, make_rows
from trainer.config import EvaluationConfig, TrainerConfig, TrainingConfig
from trainer.journal import read_journal
from trainer.loader import Loader, StepBatches
from trainer.pretrain import pretrain
from trainer.ranks import Worker
from trainer.report.curves import run_plots
from trainer.report.finished_run import metrics_of
from trainer.run_plan import open_sources
from trainer.settings.model import ModelConfig
from trainer.settings.schedule import ScheduleConfig
from trainer.training_run import training_manifest

MODEL = ModelConfig(
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=64,
)
STEPS = 4


def instance_set(root: Path, objective: Objective) -> InstanceSet:
    """Two shards of the fixture's rows; without pairs each row is one segment."""
    shards = []
    for number, split in enumerate(("train", "held_out")):
        rows = make_rows(range(40 * number, 40 * number + 40), None)
        if objective not in ("nsp", "sop"):
            whole = np.diff(rows.offsets).astype(np.uint16)
            rows = replace(rows, pair_labels=None, first_segment_length=whole)
        shards.append((split, rows))
    return commit_instances(root, VOCABULARY, shards, rows_per_batch=8, objective=objective)


def train(root: Path, objective: Objective, model: ModelConfig = MODEL) -> Generation:
    config = TrainerConfig(
        root=str(root),
        instances=InstancesConfig(objective=objective, max_seq_length=64),
        model=model,
        schedule=ScheduleConfig(warmup_steps=1),
        training=TrainingConfig(
            total_steps=STEPS, batch_size=8, micro_batch_size=4, lanes=4, log_steps=1
        ),
        evaluation=EvaluationConfig(batch_size=8, every_steps=2),
    )
    instances = instance_set(root, objective)
    generation = Generation(str(root), "training", "a" * 20)
    sources = open_sources(config, instances)
    pretrain(config, generation, sources, Worker(0, 1, torch.device("cpu"), None))
    generation.commit(training_manifest(config, generation, instances), {})
    return generation


@pytest.mark.parametrize("objective", ["full_sentences", "doc_sentences", "sentence"])
def test_an_objective_without_pairs_trains_the_masked_lm_alone(
    tmp_path: Path, objective: Objective
) -> None:
    generation = train(tmp_path, objective, replace(MODEL, type_vocab_size=1))
    manifest = generation.manifest()
    assert manifest is not None
    evaluation = manifest["evaluation"]
    assert evaluation["pair_loss"] is None and evaluation["pair_accuracy"] is None
    assert evaluation["pairs"] == 0 and evaluation["masked_tokens"] > 0
    assert manifest["sequences_seen"] == STEPS * 8
    records = read_journal(generation)
    train_records = [one for one in records if one["kind"] == "train"]
    assert len(train_records) == STEPS
    assert all("pair_loss" not in one for one in train_records)
    names = {plot.name for plot in run_plots(metrics_of(records, manifest), 4.0, objective)}
    assert "mlm-loss" in names and not {"pair-loss", "pair-accuracy"} & names
    metrics = (tmp_path / generation.name("metrics.prom")).read_text()
    assert 'objective="masked_lm"' in metrics and "sequences_total 32.0" in metrics
    assert "next_sentence" not in metrics


@pytest.mark.parametrize(
    ("objective", "name", "title"),
    [
        ("nsp", "next_sentence", "Next sentence prediction: loss"),
        ("sop", "sentence_order", "Sentence order prediction: loss"),
    ],
)
def test_the_loss_of_pairs_carries_its_objectives_name(
    tmp_path: Path, objective: Objective, name: str, title: str
) -> None:
    generation = train(tmp_path, objective)
    manifest = generation.manifest()
    assert manifest is not None and manifest["evaluation"]["pairs"] == 40
    records = read_journal(generation)
    plots = {plot.name: plot for plot in run_plots(metrics_of(records, manifest), 4.0, objective)}
    assert plots["pair-loss"].title == title
    assert len(plots["pair-loss"].train[0]) == STEPS
    metrics = (tmp_path / generation.name("metrics.prom")).read_text()
    assert f'clozeline_training_loss_nats{{objective="{name}"}}' in metrics
    assert f'clozeline_evaluation_loss_nats{{objective="{name}"}}' in metrics
    json.dumps(manifest, allow_nan=False)


class SlowLoader(Loader):
    """A loader that takes far longer than a step of these."""

    def __next__(self) -> StepBatches:
        time.sleep(0.1)
        return super().__next__()


def test_a_run_that_waits_for_its_data_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trainer.pretrain.Loader", SlowLoader)
    with caplog.at_level(logging.WARNING):
        generation = train(tmp_path, "nsp")
    told = [one for one in caplog.messages if "steps wait for data" in one]
    assert len(told) == 1 and "raise training.prefetch_steps" in told[0]
    waits = [one["data_wait_seconds"] for one in read_journal(generation) if one["kind"] == "train"]
    assert min(waits) >= 0.1
