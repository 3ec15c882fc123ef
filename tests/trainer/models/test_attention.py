from __future__ import annotations

import importlib.util
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.trainer.batches import make_batch
from trainer.data.batch import SequenceLayout, to_tensors
from trainer.models import attention as attention_module
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


def test_a_torch_without_the_varlen_kernel_takes_the_other_back_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)  # importing it fails
    assert attention_module.__spec__ is not None and attention_module.__spec__.origin is not None
    spec = importlib.util.spec_from_file_location("without", attention_module.__spec__.origin)
    assert spec is not None and spec.loader is not None
    without = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(without)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    qkv, layout = random_qkv([70, 3], torch.bfloat16), layout_of([70, 3])
    assert attention_module._has_flash_kernel(qkv) and not without._has_flash_kernel(qkv)
    assert torch.equal(without.attention(qkv, layout, 0.0), attention(qkv, layout, 0.0))


@pytest.mark.parametrize(
    ("head_size", "dtype", "capability", "taken"),
    [
        (64, torch.bfloat16, (9, 0), True),
        (256, torch.float16, (8, 0), True),
        (264, torch.bfloat16, (9, 0), False),
        (20, torch.bfloat16, (9, 0), False),  # not a multiple of 8
        (64, torch.float32, (9, 0), False),
        (64, torch.bfloat16, (7, 5), False),
    ],
)
def test_the_varlen_kernel_is_asked_only_for_what_it_can(
    head_size: int,
    dtype: torch.dtype,
    capability: tuple[int, int],
    taken: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    qkv = torch.zeros(3, 3, 2, head_size, dtype=dtype)
    assert attention_module._has_flash_kernel(qkv) == taken


gpu = pytest.mark.gpu
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@gpu
@needs_cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("head_size", [64, 20])
@pytest.mark.parametrize("reach", [None, 16])
def test_on_cuda_values_and_gradients_are_near_the_reference(
    dtype: torch.dtype, head_size: int, reach: int | None
) -> None:
    """The varlen kernel in half precision with heads of 64; else what it falls back to."""
    lengths = [70, 3, 41]
    qkv = torch.randn(sum(lengths), 3, 2, head_size, dtype=dtype, device="cuda").requires_grad_()
    layout = to_tensors(make_batch(lengths), torch.device("cuda")).layout
    wide = qkv.detach().double().requires_grad_()
    expected = reference_attention(wide, layout, reach)
    upstream = torch.randn_like(expected)
    (wanted,) = torch.autograd.grad((expected * upstream).sum(), wide)
    contexts = [attention(qkv, layout, 0.0, reach)]
    contexts.append(
        padded_attention(qkv, layout, 0.0)
        if reach is None
        else banded_attention(qkv, layout, 0.0, reach)
    )
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    for context in contexts:
        assert context.dtype == dtype
        (got,) = torch.autograd.grad((context * upstream.to(dtype)).sum(), qkv)
        for value, reference in ((context, expected), (got, wanted)):
            difference = float((value.double() - reference).norm())
            assert difference <= tolerance * float(reference.norm())


@gpu
@needs_cuda
@pytest.mark.parametrize("reach", [None, 16])
def test_on_cuda_dropout_drops_and_keeps_the_mean(reach: int | None) -> None:
    """The varlen kernel has no dropout: rows padded again, or bands, do it."""
    lengths = [60] * 40
    qkv = torch.randn(sum(lengths), 3, 2, 64, dtype=torch.bfloat16, device="cuda").requires_grad_()
    layout = to_tensors(make_batch(lengths), torch.device("cuda")).layout
    dropped, whole = (attention(qkv, layout, share, reach) for share in (0.25, 0.0))
    assert not torch.allclose(dropped, whole)
    assert float((dropped - whole).float().mean()) == pytest.approx(0.0, abs=0.01)
    (gradient,) = torch.autograd.grad(dropped.float().square().sum(), qkv)
    assert gradient.isfinite().all() and gradient.any()
