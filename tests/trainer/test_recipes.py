"""Each recipe has its paper's numbers, and trains as a plain loop over transformers' model does.

`python -m tests.trainer.test_recipes` writes the stored curves anew.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.recipes import RECIPES, RUNS, instances_of, miniature, reference_curve
from tests.trainer.small_training import records, train
from trainer import config as trainer_config
from trainer.config import TrainerConfig

GOLDEN = Path(__file__).parents[1] / "golden" / "recipe_curves.json"

# Devlin et al. 2019, A.2; Liu et al. 2019, table 9; Lan et al. 2020, 4.1; google-research/bert.
BERT_OPTIMIZER = ("adamw", 1e-4, (0.9, 0.999), 1e-6, 0.01, 1.0)
PUBLISHED: dict[str, dict[str, Any]] = {
    "bert-2018": {
        "optimizer": BERT_OPTIMIZER,
        "length": (1_000_000, 0, 10_000, "linear"),
        "phases": [(128, 0.9, 256), (512, 0.1, 256)],
        "data": ("nsp", "static", "token", 0.15, 10),
        "dropout": 0.1,
    },
    "wwm": {
        "optimizer": BERT_OPTIMIZER,
        "length": (1_000_000, 0, 10_000, "linear"),
        "phases": [(128, 0.9, 256), (512, 0.1, 256)],
        "data": ("nsp", "dynamic", "whole_word", 0.15, 1),
        "dropout": 0.1,
    },
    "roberta": {
        "optimizer": ("adamw", 6e-4, (0.9, 0.98), 1e-6, 0.01, math.inf),
        "length": (500_000, 0, 24_000, "linear"),
        "phases": [(512, 1.0, 8_192)],
        "data": ("full_sentences", "dynamic", "token", 0.15, 1),
        "dropout": 0.1,
    },
    "albert": {
        "optimizer": ("lamb", 1.76e-3, (0.9, 0.999), 1e-6, 0.01, 1.0),
        "length": (125_000, 0, 3_125, "polynomial"),
        "phases": [(512, 1.0, 4_096)],
        "data": ("sop", "dynamic", "ngram", 0.15, 1),
        "dropout": 0.0,
    },
    "budget": {
        "optimizer": ("adamw", 8e-4, (0.9, 0.98), 1e-6, 0.01, 1.0),
        "length": (0, 10_000_000_000, 0, "wsd"),
        "phases": [(128, 0.9, 4_096), (512, 0.1, 1_024)],
        "data": ("full_sentences", "dynamic", "token", 0.3, 1),
        "dropout": 0.0,
    },
}


def test_there_is_a_table_of_published_values_for_every_recipe() -> None:
    assert set(PUBLISHED) == set(RECIPES)
    assert {path.stem for path in RUNS.glob("*.toml")} >= set(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_valid_run_with_its_papers_values(name: str) -> None:
    config = trainer_config.load(str(RUNS / f"{name}.toml"))
    optimizer, training, masking = config.optimizer, config.training, config.masking
    found = {
        "optimizer": (
            optimizer.name,
            optimizer.learning_rate,
            optimizer.betas,
            optimizer.eps,
            optimizer.weight_decay,
            optimizer.clip_norm,
        ),
        "length": (
            training.total_steps,
            training.total_tokens,
            config.schedule.warmup_steps,
            config.schedule.decay,
        ),
        "phases": [
            (phase.max_seq_length, phase.share, phase.batch_size)
            for phase in config.resolved_phases
        ],
        "data": (
            config.instances.objective,
            masking.mode,
            masking.unit,
            masking.probability,
            config.instances.duplicate_factor,
        ),
        "dropout": config.model.hidden_dropout_prob,
    }
    assert found == PUBLISHED[name]
    assert config.evaluation.masking_probability == (0.15 if name == "budget" else 0.0)


def our_curve(config: TrainerConfig) -> list[float]:
    """The loss of every step of a whole training, both objectives added."""
    generation = train(config, instances_of(config))
    return [one["mlm_loss"] + one.get("pair_loss", 0.0) for one in records(generation, "train")]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_in_miniature_trains_as_the_plain_loop_and_the_stored_curve(
    name: str, tmp_path: Path
) -> None:
    config = miniature(name, tmp_path)
    curve = our_curve(config)
    instances = instances_of(config)
    assert curve == pytest.approx(reference_curve(name, config, instances), abs=1e-4)
    assert curve == pytest.approx(json.loads(GOLDEN.read_text())[name], abs=1e-2)
    assert min(curve[-5:]) < 0.97 * curve[0]


def write_golden() -> None:
    curves = {}
    for name in RECIPES:
        with tempfile.TemporaryDirectory() as root:
            curves[name] = [round(loss, 4) for loss in our_curve(miniature(name, Path(root)))]
    GOLDEN.write_text(json.dumps(curves, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(write_golden())
