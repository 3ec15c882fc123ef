from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from tests.trainer.batches import TINY, make_batch, make_model
from trainer.data.batch import to_tensors
from trainer.models.attention_dropout import attention_with_dropout
from trainer.models.dropout import dropout, dropout_add, keep_mask


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_the_share_that_is_dropped_is_the_probability(probability: float) -> None:
    torch.manual_seed(0)
    mask, scale = keep_mask((1_000, 1_001), probability, torch.float32)
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    four_sigma = 4 * math.sqrt(probability * (1 - probability) / mask.numel())
    assert float(mask.mean()) == pytest.approx(1 - probability, abs=four_sigma + 1e-5)
    assert scale == pytest.approx(1 / (1 - probability), rel=1e-4)
    # Neighbours, and those whose bits are of one word, agree as often as chance lets them.
    flat = mask.flatten()
    for distance in (1, 1_001, flat.numel() // 8):
        same = float((flat[:-distance] == flat[distance:]).double().mean())
        assert same == pytest.approx(probability**2 + (1 - probability) ** 2, abs=2 * four_sigma)


def test_torch_seed_fixes_the_masks_and_each_draw_has_its_own() -> None:
    torch.manual_seed(3)
    first, second = (keep_mask((40, 7), 0.5, torch.float32)[0] for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(keep_mask((40, 7), 0.5, torch.float32)[0], first)
    assert not torch.equal(first, second)


def test_a_probability_next_to_one_keeps_the_factor_finite() -> None:
    assert keep_mask((8,), 1 - 1e-9, torch.float32)[1] == 65_536


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dropout_scales_what_it_keeps_and_its_gradient_alike(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    values = torch.randn(50, 30, dtype=dtype).requires_grad_()
    residual = torch.randn(50, 30, dtype=torch.float64).requires_grad_()
    torch.manual_seed(1)
    mask, scale = keep_mask((50, 30), 0.3, dtype)
    torch.manual_seed(1)
    dropped = dropout(values, 0.3, True)
    torch.testing.assert_close(dropped, values * mask * scale)
    torch.manual_seed(1)
    total = dropout_add(values, residual, 0.3, True)
    torch.testing.assert_close(
        total, residual + (values * mask).double() * scale, rtol=1e-6, atol=1e-6
    )
    upstream = torch.randn(50, 30, dtype=torch.float64)
    for_values, for_residual = torch.autograd.grad((total * upstream).sum(), (values, residual))
    torch.testing.assert_close(for_values, upstream.to(dtype) * mask * scale)
    assert torch.equal(for_residual, upstream)


def test_evaluation_and_probability_zero_drop_nothing() -> None:
    values, residual = torch.randn(3, 4), torch.randn(3, 4)
    for probability, training in ((0.0, True), (0.5, False)):
        assert torch.equal(dropout(values, probability, training), values)
        assert torch.equal(dropout_add(values, residual, probability, training), residual + values)


@pytest.mark.parametrize("padded", [False, True])
def test_attention_drops_weights_as_the_formula_says(padded: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(2, 9, 3, 4, 8, generator=generator, dtype=torch.float64).requires_grad_()
    key_mask = torch.ones(2, 1, 1, 9, dtype=torch.bool)
    if padded:
        key_mask[1, ..., 5:] = False
    torch.manual_seed(2)
    context = attention_with_dropout(qkv, key_mask if padded else None, 0.3)

    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    scores = (query @ key.transpose(2, 3) / math.sqrt(8)).masked_fill(~key_mask, -math.inf)
    torch.manual_seed(2)
    mask, scale = keep_mask((8, 9, 9), 0.3, torch.float64)
    expected = ((scores.softmax(-1) * mask.view(2, 4, 9, 9) * scale) @ value).transpose(1, 2)
    torch.testing.assert_close(context, expected, rtol=1e-10, atol=1e-12)
    upstream = torch.randn(context.shape, generator=generator, dtype=torch.float64)
    (got,), (wanted,) = (
        torch.autograd.grad((one * upstream).sum(), qkv) for one in (context, expected)
    )
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)


def test_attention_in_bfloat16_is_near_float32_and_keeps_its_type() -> None:
    qkv = torch.randn(2, 9, 3, 4, 8, dtype=torch.bfloat16)
    torch.manual_seed(2)
    low = attention_with_dropout(qkv, None, 0.3)
    torch.manual_seed(2)
    high = attention_with_dropout(qkv.float(), None, 0.3)
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), high, rtol=0.01, atol=0.01)


def answers_of_parts(dropouts: dict[str, float], seed: int) -> dict[str, Tensor]:
    """What each part of a training model answers to one input, its randomness from `seed`."""
    # Pre-norm: a block's output is its input plus what dropout leaves.
    config = dataclasses.replace(TINY, architecture="custom", norm_position="pre", **dropouts)  # type: ignore[arg-type]
    model = make_model(config).train()
    batch = to_tensors(make_batch([40, 9, 31]), torch.device("cpu"))
    hidden = torch.randn(80, config.hidden_size, generator=torch.Generator().manual_seed(0))
    block, feed_forward = model.encoder.attention[0], model.encoder.feed_forward[0]
    contexts: list[Tensor] = []
    block.output.register_forward_pre_hook(lambda _, given: contexts.append(given[0]))
    torch.manual_seed(seed)
    with torch.no_grad():
        block(hidden, batch.layout)
        return {
            "embeddings": model.embeddings(batch),
            "attention weights": contexts[0],
            "attention block": block.finish(hidden, hidden) - hidden,
            "feed-forward block": feed_forward(hidden) - hidden,
        }


@pytest.mark.parametrize(
    ("dropouts", "places"),
    [
        ({"embedding_dropout_prob": 0.3}, {"embeddings"}),
        ({"attention_probs_dropout_prob": 0.3}, {"attention weights"}),
        (
            {"hidden_dropout_prob": 0.3, "embedding_dropout_prob": 0.0},
            {"attention block", "feed-forward block"},
        ),
        (
            {"hidden_dropout_prob": 0.3},  # the embeddings' follows it
            {"embeddings", "attention block", "feed-forward block"},
        ),
        ({}, set()),
    ],
    ids=str,
)
def test_each_probability_acts_at_its_own_place_and_nowhere_else(
    dropouts: dict[str, float], places: set[str]
) -> None:
    first, second = (answers_of_parts(dropouts, seed) for seed in (1, 2))
    assert {name for name in first if not torch.equal(first[name], second[name])} == places


def test_each_place_drops_the_share_of_its_own_probability() -> None:
    answers = answers_of_parts({"hidden_dropout_prob": 0.4, "embedding_dropout_prob": 0.2}, 1)
    for name, share in (
        ("embeddings", 0.2),
        ("attention block", 0.4),
        ("feed-forward block", 0.4),
        ("attention weights", 0.0),
    ):
        assert float((answers[name] == 0).float().mean()) == pytest.approx(share, abs=0.04), name
