"""The recipes of deploy/runs in miniature, and a plain loop that does what each of them says.

The loop is transformers' model with our initial weights, torch's AdamW or LAMB written plainly,
torch's clipping and each recipe's schedule by its formula; of ours it takes the batches alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from pipeline.config import MaskingConfig, from_table, read_toml
from pipeline.instance_set import InstanceSet
from tests.trainer.lamb_reference import PlainLamb
from tests.trainer.small_training import commit_sets, make_rows
from trainer.config import TrainerConfig
from trainer.convert import SpecialIds, export_config, export_state_dict
from trainer.data.batch import Batch
from trainer.loader import Loader
from trainer.run_plan import loader_phases, open_sources, step_plan
from trainer.training_run import initial_model

RUNS = Path(__file__).parents[2] / "deploy" / "runs"
RECIPES = ("albert", "bert-2018", "budget", "roberta", "wwm")
STEPS = 50
WARMUP = 2
FASTER = 20.0
"""Times the recipe's learning rate, so that fifty steps learn something."""
SHORT, LONG = 16, 32
MODEL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def miniature(name: str, root: Path) -> TrainerConfig:
    """The recipe with its lengths, sizes and batches scaled down and without dropout."""
    table = read_toml(str(RUNS / f"{name}.toml"))
    training, schedule = table["training"], table["schedule"]
    table["root"] = str(root)
    table["model"] |= MODEL | ({"embedding_size": 16} if name == "albert" else {})
    two = isinstance(table["instances"]["max_seq_length"], list)
    table["instances"]["max_seq_length"] = [SHORT, LONG] if two else LONG
    table["optimizer"]["learning_rate"] *= FASTER
    for phase, length in zip(table.get("phases", []), (SHORT, LONG), strict=False):
        phase["max_seq_length"] = length
        phase["batch_size"] = 8 if length == SHORT else 4
    if name == "budget":
        scale = 4_200 / training["total_tokens"]
        training |= {"total_tokens": 4_200, "initial_batch_size": 2}
        for key in ("warmup_tokens", "batch_size_warmup_tokens"):
            schedule[key] = round(schedule[key] * scale)
    else:
        training["total_steps"] = STEPS
        schedule["warmup_steps"] = WARMUP
    training |= {
        "batch_size": 8,
        "micro_batch_size": 3,
        "lanes": 2,
        "workers": 1,
        "log_steps": 1,
        "precision": "fp32",
    }
    table["evaluation"]["every_steps"] = 0
    return from_table(TrainerConfig, table, name)


def instances_of(config: TrainerConfig) -> InstanceSet:
    """Small sets of the recipe's objective and lengths."""
    pairs = config.instances.objective in ("nsp", "sop")
    static = config.masking.mode == "static"
    return commit_sets(
        Path(config.root),
        {
            length: {
                "train": make_rows(320, length, seed=length, pairs=pairs),
                "held_out": make_rows(16, length, seed=1, pairs=pairs),
            }
            for length in config.instances.max_seq_lengths
        },
        objective=config.instances.objective,
        static_rules=MaskingConfig(mode="static") if static else None,
    )


def global_batches(config: TrainerConfig, instances: InstanceSet) -> Iterator[list[Batch]]:
    """The parts of each step's batch."""
    sources = open_sources(config, instances)
    plan = step_plan(config, sources)
    with Loader(
        loader_phases(config, sources, plan),
        seed=config.seed,
        rules=config.masking,
        lanes=config.training.lanes,
        window_batches=config.training.window_batches,
        rank=0,
        world_size=1,
    ) as loader:
        for _ in range(plan.total_steps):
            yield next(loader).micro_batches


def padded(parts: Sequence[Batch], pair_name: str) -> dict[str, Tensor]:
    """One batch as transformers takes it."""
    rows = []
    labels = []
    for part in parts:
        targets = np.full(part.input_ids.size, -100)
        targets[part.masked_positions] = part.masked_lm_ids
        columns = np.stack([part.input_ids, part.token_type_ids, targets])
        rows += np.split(columns, part.cu_seqlens[1:-1], axis=1)
        labels += [] if part.pair_labels is None else part.pair_labels.tolist()
    grid = np.zeros((3, len(rows), max(row.shape[1] for row in rows)), np.int64)
    grid[2] = -100
    mask = np.zeros(grid.shape[1:], np.int64)
    for number, row in enumerate(rows):
        grid[:, number, : row.shape[1]] = row
        mask[number, : row.shape[1]] = 1
    batch = {
        "input_ids": grid[0],
        "token_type_ids": grid[1],
        "labels": grid[2],
        "attention_mask": mask,
        **({pair_name: np.array(labels)} if labels else {}),
    }
    return {name: torch.from_numpy(values) for name, values in batch.items()}


def twin(config: TrainerConfig, instances: InstanceSet) -> Any:
    """transformers' model with our initial weights."""
    ours = initial_model(config, instances)
    ids = instances.special_ids
    table = export_config(ours, SpecialIds(pad=ids["[PAD]"], cls=ids["[CLS]"], sep=ids["[SEP]"]))
    (class_name,) = table["architectures"]
    model_class = getattr(transformers, class_name)
    model = model_class(model_class.config_class.from_dict(table))
    model.load_state_dict(export_state_dict(ours), strict=False)
    model.tie_weights()
    return model.train()


def linear(step: int) -> float:
    return (step + 1) / WARMUP if step < WARMUP else (STEPS - step) / (STEPS - WARMUP)


def budget_shares(instances: InstanceSet) -> list[float]:
    """The schedule of `budget` by its words, in tokens of batches of the mean length."""
    sets = InstanceSet.all_of(instances.generation, instances.generation.manifest() or {})
    means = []
    for one in sets:
        (shard,) = one.shards("train")
        means.append(shard.tokens / shard.rows)
    total, warmup, batch_warmup = 4_200, 252, 210
    done, shares = 0, []
    while done < total:
        full, mean = (8, means[0]) if done < 0.9 * total else (4, means[1])
        size = 2 + (8 - 2) * done // batch_warmup if done < batch_warmup else full
        after = done + round(size * mean)
        if done < warmup:
            share = min(1.0, after / warmup)
        elif done < 0.9 * total:
            share = 1.0
        else:
            share = 0.02 + 0.98 * (1.0 - math.sqrt((done - 0.9 * total) / (0.1 * total)))
        shares.append(share)
        done = after
    return shares


def reference_curve(name: str, config: TrainerConfig, instances: InstanceSet) -> list[float]:
    """The loss of every step, both objectives added."""
    recipe = read_toml(str(RUNS / f"{name}.toml"))["optimizer"]
    model = twin(config, instances)
    named = list(model.named_parameters())
    peak = recipe["learning_rate"] * FASTER
    betas, eps = tuple(recipe["betas"]), recipe["eps"]
    lamb = PlainLamb(
        [one for _, one in named], betas=betas, eps=eps, weight_decay=recipe["weight_decay"]
    )
    no_decay = ("bias", "LayerNorm.weight", "layer_norm.weight")
    adamw = torch.optim.AdamW(
        [
            {
                "params": [one for key, one in named if not key.endswith(no_decay)],
                "weight_decay": recipe["weight_decay"],
            },
            {
                "params": [one for key, one in named if key.endswith(no_decay)],
                "weight_decay": 0.0,
            },
        ],
        betas=betas,
        eps=eps,
    )
    if name == "budget":
        shares = budget_shares(instances)
    else:
        shares = [linear(step) for step in range(STEPS)]
    pair_name = "sentence_order_label" if name == "albert" else "next_sentence_label"
    curve = []
    for parts, share in zip(global_batches(config, instances), shares, strict=True):
        batch = padded(parts, pair_name)
        loss = model(**batch).loss
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe["clip_norm"])
        if recipe["name"] == "lamb":
            lamb.step(peak * share)
        else:
            for group in adamw.param_groups:
                group["lr"] = peak * share
            adamw.step()
        curve.append(float(loss.detach()))
    return curve
