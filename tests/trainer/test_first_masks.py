"""A training whose first masks are not what was asked for says so before its first step."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline.config import MaskingConfig
from pipeline.instance_rows import InstanceRows
from tests.trainer.instance_fixture import (
    CLS,
    SEED,
    SEP,
    UNK,
    VOCABULARY,
    commit_instances,
    write_instance_set,
)
from trainer.first_masks import first_mask_warnings

PIECE = VOCABULARY.index("##piece0")


def rows_of(tokens: list[int]) -> InstanceRows:
    """Forty rows of these tokens."""
    row = np.array([CLS, *tokens, SEP], dtype=np.uint16)
    return InstanceRows(
        input_ids=np.tile(row, 40),
        offsets=np.arange(41, dtype=np.int64) * row.size,
        first_segment_length=np.full(40, row.size, np.uint16),
    )


def test_usual_masks_are_no_reason_to_speak(tmp_path: Path) -> None:
    for name, rules in (("dynamic", None), ("static", MaskingConfig(mode="static"))):
        instances = write_instance_set(tmp_path / name, static_rules=rules)
        assert first_mask_warnings(instances, rules or MaskingConfig(), SEED) == []


def test_a_word_as_long_as_its_row_is_told(tmp_path: Path) -> None:
    """Thai without a segmenter: a sentence is one run of pieces, masked whole or not at all."""
    rows = rows_of([PIECE] * 30)
    instances = commit_instances(
        tmp_path, VOCABULARY, [("train", rows)], rows_per_batch=40, objective="sentence"
    )
    (warning,) = first_mask_warnings(instances, MaskingConfig(unit="whole_word"), SEED)
    assert "100.0% of the maskable tokens are masked, not about 15.0%" in warning
    assert first_mask_warnings(instances, MaskingConfig(), SEED) == []


def test_rows_without_a_maskable_token_are_no_division_by_zero(tmp_path: Path) -> None:
    rows = rows_of([UNK] * 30)
    instances = commit_instances(
        tmp_path, VOCABULARY, [("train", rows)], rows_per_batch=40, objective="sentence"
    )
    assert first_mask_warnings(instances, MaskingConfig(), SEED) == []
