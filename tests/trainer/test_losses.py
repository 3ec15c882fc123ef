from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from trainer import losses


def inputs(dtype: torch.dtype, rows: int = 50, vocab: int = 37) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(rows, 16, generator=generator, dtype=dtype).requires_grad_()
    weight = torch.randn(vocab, 16, generator=generator, dtype=dtype).requires_grad_()
    bias = torch.randn(vocab, generator=generator, dtype=dtype).requires_grad_()
    return states, weight, bias, torch.randint(0, vocab, (rows,), generator=generator)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("chunk_elements", [1, 37 * 7, 1 << 21])
def test_chunked_loss_equals_cross_entropy_of_the_whole_logits(
    dtype: torch.dtype, tolerance: float, chunk_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(losses._CHUNK_ELEMENTS, "cpu", chunk_elements)
    states, weight, bias, labels = inputs(dtype)
    loss, correct = losses.masked_lm_loss(states, weight, bias, labels)
    gradients = torch.autograd.grad(3.0 * loss, (states, weight, bias))
    logits = functional.linear(states, weight, bias)
    expected = functional.cross_entropy(logits, labels, reduction="sum")
    torch.testing.assert_close(loss, expected, rtol=tolerance, atol=0.0)
    assert int(correct) == int((logits.argmax(1) == labels).sum())
    for got, wanted in zip(
        gradients, torch.autograd.grad(3.0 * expected, (states, weight, bias)), strict=True
    ):
        assert float((got - wanted).norm()) <= tolerance * float(wanted.norm())


def test_no_masked_token_adds_zero() -> None:
    states, weight, bias, labels = inputs(torch.float32, rows=0)
    loss, correct = losses.masked_lm_loss(states, weight, bias, labels)
    loss.backward()
    assert (loss.item(), correct.item()) == (0.0, 0)
    assert weight.grad is not None and not weight.grad.any()


def test_large_logits_neither_overflow_nor_underflow() -> None:
    weight = torch.tensor([[2000.0], [-2000.0]])
    loss, correct = losses.masked_lm_loss(
        torch.ones(2, 1), weight, torch.zeros(2), torch.tensor([0, 1])
    )
    assert (float(loss), int(correct)) == (4000.0, 1)


def test_bfloat16_autocast_is_near_float32_and_keeps_the_gradient_types() -> None:
    states, weight, bias, labels = inputs(torch.float32)
    expected = functional.cross_entropy(
        functional.linear(states, weight, bias), labels, reduction="sum"
    )
    wanted = torch.autograd.grad(expected, (states, weight, bias))
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = losses.masked_lm_loss(states, weight, bias, labels)
    gradients = torch.autograd.grad(loss, (states, weight, bias))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=1e-2, atol=0.0)
    for got, reference in zip(gradients, wanted, strict=True):
        assert got.dtype == torch.float32
        assert float((got - reference).norm()) <= 2e-2 * float(reference.norm())


def test_pair_loss_sums_and_counts() -> None:
    logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    labels = torch.tensor([0, 1, 1])
    loss, correct = losses.pair_loss(logits, labels)
    torch.testing.assert_close(loss, 3 * functional.cross_entropy(logits, labels))
    assert int(correct) == 2
