from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.trainer.batches import make_batch
from trainer.data.batch import SequenceLayout, to_tensors
from trainer.models.attention import (
    attention,
    band_block,
    banded_attention,
    looped_attention,
    padded_attention,
    reference_attention,
)


def layout_of(lengths: list[int]) -> SequenceLayout:
    return to_tensors(make_batch(lengths), torch.device("cpu")).layout


def random_qkv(lengths: list[int], dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(sum(lengths))
    return torch.randn(sum(lengths), 3, 2, 8, generator=generator, dtype=torch.float64).to(dtype)


def values_and_gradient(
    function: str, lengths: list[int], dtype: torch.dtype
) -> tuple[Tensor, ...]:
    qkv = random_qkv(lengths, dtype).requires_grad_()
    layout = layout_of(lengths)
    context = {
        "reference": lambda: reference_attention(qkv, layout),
        "padded": lambda: padded_attention(qkv, layout, 0.0),
        "looped": lambda: looped_attention(qkv, layout, 0.0),
        "chosen": lambda: attention(qkv, layout, 0.0),
    }[function]()
    (gradient,) = torch.autograd.grad((context * torch.arange(8)).sum(), qkv)
    return context.detach(), gradient


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=5))
def test_every_back_end_equals_the_reference(lengths: list[int]) -> None:
    expected = values_and_gradient("reference", lengths, torch.float64)
    for name in ("padded", "looped", "chosen"):
        torch.testing.assert_close(
            values_and_gradient(name, lengths, torch.float64), expected, rtol=1e-9, atol=1e-10
        )


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=5), st.integers(1, 40))
def test_a_window_in_bands_equals_the_reference(lengths: list[int], reach: int) -> None:
    qkv, layout = random_qkv(lengths).requires_grad_(), layout_of(lengths)
    weights = torch.arange(8)
    expected = reference_attention(qkv, layout, reach)
    (wanted,) = torch.autograd.grad((expected * weights).sum(), qkv)
    for context in (
        banded_attention(qkv, layout, 0.0, reach),
        looped_attention(qkv, layout, 0.0, reach),
        attention(qkv, layout, 0.0, reach),
    ):
        torch.testing.assert_close(context, expected, rtol=1e-9, atol=1e-10)
        (got,) = torch.autograd.grad((context * weights).sum(), qkv)
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-10)


def test_a_window_as_wide_as_the_longest_sequence_is_none() -> None:
    lengths = [9, 33]
    qkv, layout = random_qkv(lengths), layout_of(lengths)
    assert torch.equal(attention(qkv, layout, 0.0, 32), attention(qkv, layout, 0.0))
    assert not torch.allclose(attention(qkv, layout, 0.0, 31), attention(qkv, layout, 0.0))


def test_the_mask_of_a_band_grows_with_the_tokens_not_with_their_square() -> None:
    reach = 64
    block = band_block(reach)
    sizes = [layout_of([tokens]).band_mask(reach, block).numel() for tokens in (1_024, 8_192)]
    assert sizes == [1_024 * (block + 2 * reach), 8_192 * (block + 2 * reach)]


@pytest.mark.parametrize("name", ["padded", "looped"])
def test_float32_is_near_the_reference(name: str) -> None:
    expected = values_and_gradient("reference", [70, 3, 41], torch.float64)
    got = values_and_gradient(name, [70, 3, 41], torch.float32)
    for value, reference in zip(got, expected, strict=True):
        assert float((value - reference).norm()) <= 1e-5 * float(reference.norm())


def test_dropout_drops_and_keeps_the_mean() -> None:
    lengths = [60] * 40
    qkv, layout = random_qkv(lengths), layout_of(lengths)
    torch.manual_seed(0)
    dropped = attention(qkv, layout, 0.25)
    whole = attention(qkv, layout, 0.0)
    assert not torch.allclose(dropped, whole)
    assert float((dropped - whole).mean()) == pytest.approx(0.0, abs=0.01)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_varlen_kernel_is_near_the_reference() -> None:
    lengths = [70, 3, 41]
    qkv = torch.randn(sum(lengths), 3, 2, 64, dtype=torch.bfloat16, device="cuda")
    layout = to_tensors(make_batch(lengths), torch.device("cuda")).layout
    expected = reference_attention(qkv.float(), layout)
    for dropout_free in (attention(qkv, layout, 0.0), padded_attention(qkv, layout, 0.0)):
        assert float((dropout_free.float() - expected).norm()) <= 1e-2 * float(expected.norm())
    windowed = reference_attention(qkv.float(), layout, 16)
    for context in (attention(qkv, layout, 0.0, 16), banded_attention(qkv, layout, 0.0, 16)):
        assert float((context.float() - windowed).norm()) <= 1e-2 * float(windowed.norm())
