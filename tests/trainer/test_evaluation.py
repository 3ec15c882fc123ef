"""Held-out losses: means over all batches, and of each source."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from pipeline.config import MaskingConfig
from pipeline.errors import TrainingError
from tests.trainer.batches import MIXED_LENGTHS, TINY, make_batch, make_model, take_rows
from tests.trainer.small_training import commit_sets, make_rows
from tests.trainer.test_step import CPU, NO_MASKS, NO_PAIRS, figures
from trainer.data.batch import Batch, to_tensors
from trainer.loader import evaluation_batches
from trainer.step import evaluate


def of_one_source(batches: list[Batch]) -> list[tuple[int, Batch]]:
    return [(0, batch) for batch in batches]


def test_evaluation_is_the_mean_over_all_batches_without_dropout() -> None:
    config = dataclasses.replace(TINY, hidden_dropout_prob=0.5)
    model = make_model(config).double()
    batch = make_batch(MIXED_LENGTHS)
    parts = [take_rows(batch, [0, 1]), NO_MASKS, NO_PAIRS, take_rows(batch, [2, 3, 4])]
    result = evaluate(model, of_one_source(parts), device=CPU, group=None)
    assert model.training
    whole = evaluate(model, of_one_source([batch, NO_MASKS, NO_PAIRS]), device=CPU, group=None)
    assert figures(result) == pytest.approx(figures(whole), rel=1e-9)
    assert result.by_source == {}
    assert result.mlm_perplexity == pytest.approx(math.exp(result.mlm_loss_nats))
    assert (result.masked_tokens, result.pairs) == (44, 6)

    model.eval()
    outputs = [model(to_tensors(part, CPU)) for part in parts]
    right = sum(
        int((output.masked_logits.argmax(1).numpy() == part.masked_lm_ids).sum())
        for output, part in zip(outputs, parts, strict=True)
    )
    pairs_right = sum(
        int((output.pair_logits.argmax(1).numpy() == part.pair_labels).sum())
        for output, part in zip(outputs, parts, strict=True)
        if part.pair_labels is not None
    )
    assert result.mlm_accuracy == pytest.approx(right / 44)
    assert result.pair_accuracy == pytest.approx(pairs_right / 6)


def test_evaluation_without_targets_is_refused() -> None:
    with pytest.raises(TrainingError, match="evaluation: no masked token"):
        evaluate(make_model(), [], device=CPU, group=None)


def test_each_source_has_the_figures_of_its_own_batches() -> None:
    model = make_model().double()
    first, second = make_batch(MIXED_LENGTHS, seed=1), make_batch([30, 12], seed=2)
    mixed = [(2, second), (0, take_rows(first, [0, 3])), (0, take_rows(first, [1, 2, 4]))]
    result = evaluate(
        model, mixed, device=CPU, group=None, sources=("wiki", "none", "books"), mixed_sources=()
    )
    alone = evaluate(model, of_one_source([first]), device=CPU, group=None)
    whole = evaluate(model, of_one_source([first, second]), device=CPU, group=None)
    assert list(result.by_source) == ["wiki", "books"] and result.not_evaluated == ["none"]
    wiki = dataclasses.asdict(result.by_source["wiki"])
    assert wiki == pytest.approx(figures(alone), rel=1e-9)
    assert figures(result) == pytest.approx(figures(whole), rel=1e-9)
    # What is mixed in stands beside the run's own.
    beside = evaluate(
        model, mixed, device=CPU, group=None, sources=("wiki", "none"), mixed_sources=["2/books"]
    )
    assert figures(beside) == pytest.approx(figures(alone), rel=1e-9)
    assert list(beside.by_source) == ["wiki", "2/books"]


@pytest.mark.parametrize("static", [False, True])
def test_batches_are_of_one_source_and_have_the_masks_they_always_have(
    tmp_path: Path, static: bool
) -> None:
    rules = MaskingConfig(probability=0.3)
    rows = make_rows(50, 32)
    sources = np.random.default_rng(3).integers(0, 3, 50).astype(np.uint16)
    sets = [
        commit_sets(
            tmp_path / str(len(names)),
            {32: {"held_out": dataclasses.replace(rows, sources=numbers)}},
            static_rules=rules if static else None,
            sources=names,
        )
        for names, numbers in ((("corpus",), None), (("a", "b", "c"), sources))
    ]

    def sequences(place: int, **part: int) -> dict[bytes, int]:
        """The source of each sequence, which is told by its ids and labels."""
        ranks = {"rank": 0, "world_size": 1, "batch_size": 4, **part}
        return {
            one.input_ids.tobytes() + one.masked_lm_ids.tobytes(): source
            for source, batch in evaluation_batches(sets[place], seed=0, rules=rules, **ranks)
            for one in (take_rows(batch, [row]) for row in range(batch.cu_seqlens.size - 1))
        }

    expected, by_source = sequences(0), sequences(1)
    assert len(expected) == 50 and set(expected.values()) == {0}
    assert by_source.keys() == expected.keys()
    assert np.bincount(list(by_source.values())).tolist() == np.bincount(sources).tolist()
    halves = [sequences(1, rank=rank, world_size=2) for rank in range(2)]
    assert [len(half) for half in halves] == [25, 25]
    assert halves[0] | halves[1] == by_source
