"""What a run's TOML cannot say of a training, each refused by key, value and remedy."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.config import from_table
from pipeline.errors import ConfigError
from trainer.config import TrainerConfig, training_identity

TWO = {"instances": {"max_seq_length": [128, 512]}}
HALVES = [{"max_seq_length": 128, "share": 0.5}, {"max_seq_length": 512, "share": 0.5}]
TOKENS = {"total_steps": 0, "total_tokens": 10_000_000}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"training": {"total_steps": 0}}, r"training\.total_steps = 0: must be at least 1"),
        (
            {"training": {"total_tokens": 5}},
            r"training\.total_tokens = 5: with training\.total_steps = 1000000 the run has two",
        ),
        ({"training": TOKENS}, r"schedule\.warmup_steps = 10000: must be 0.*warmup_tokens"),
        (
            {"training": {"initial_batch_size": 8}},
            r"training\.initial_batch_size = 8: and schedule\.batch_size_warmup_steps = 0 belong",
        ),
        (
            {"schedule": {"batch_size_warmup_steps": 8}},
            r"training\.initial_batch_size = 0: and schedule\.batch_size_warmup_steps = 8 belong",
        ),
        (
            {
                "schedule": {"batch_size_warmup_steps": 8},
                "training": {"initial_batch_size": 512, "batch_size": 256},
            },
            r"training\.batch_size = 256: must be at least .*initial_batch_size = 512",
        ),
        ({"training": {"batch_size": 1}}, r"batch_size = 1: .* training\.workers = 2"),
        (
            {"training": {"min_workers": 3, "workers": 2}},
            r"training\.min_workers = 3: must be from 0 to training\.workers = 2",
        ),
        (TWO, r"training\.max_seq_length = 0: must be one of .* or give \[\[phases\]\]"),
        (
            {**TWO, "phases": HALVES, "training": {"max_seq_length": 128}},
            r"training\.max_seq_length = 128: must be 0: each of the phases has its own",
        ),
        (
            {**TWO, "phases": [{**HALVES[0], "max_seq_length": 64}, HALVES[1]]},
            r"phases\.0\.max_seq_length = 64: must be one of .*\[128, 512\]",
        ),
        ({**TWO, "phases": HALVES[:1]}, r"phases\.share = \[0\.5\]: must add up to 1"),
        (
            {**TWO, "phases": [{**HALVES[0], "batch_size": 1}, HALVES[1]]},
            r"phases\.0\.batch_size = 1: must be at least training\.workers = 2",
        ),
        (
            {**TWO, "phases": HALVES, "model": {"max_position_embeddings": 256}},
            r"max_position_embeddings = 256: leaves positions for 256 tokens, .* has 512",
        ),
        ({"phases": [{"max_seq_length": 512}]}, r"phases\.0\.share: missing"),
        (
            {"phases": [{"max_seq_length": 512, "share": 1.0, "learning_rate": -1.0}]},
            r"phases\.learning_rate = -1\.0: must be a finite number",
        ),
        (
            {"phases": [{"max_seq_length": 512, "share": 1.0, "sources": [{"weight": 0.0}]}]},
            r"phases\.sources\.weight = 0\.0",
        ),
        (
            {"masking": {"mode": "static"}, "evaluation": {"masking_probability": 0.15}},
            r"evaluation\.masking_probability = 0\.15: must be 0: .*static",
        ),
    ],
)
def test_a_run_that_cannot_be_is_refused_by_name(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_table(TrainerConfig, table, "run.toml")


def test_phases_take_what_they_leave_out_from_the_run() -> None:
    table = {**TWO, "phases": [{**HALVES[0], "batch_size": 64}, {**HALVES[1]}]}
    table["optimizer"] = {"learning_rate": 3e-4}
    config = from_table(TrainerConfig, table, "run.toml")
    assert [(one.batch_size, one.learning_rate) for one in config.resolved_phases] == [
        (64, 3e-4),
        (256, 3e-4),
    ]
    assert config.trained_length == 512


def test_the_identity_names_keys_as_the_toml_does() -> None:
    identity = training_identity(from_table(TrainerConfig, {**TWO, "phases": HALVES}, "run.toml"))
    assert identity["phases"][1]["share"] == 0.5
    assert identity["optimizer"]["learning_rate"] == 1e-4
    assert identity["divergence"]["window_steps"] == 128
    assert "micro_batch_size" not in identity["training"]
