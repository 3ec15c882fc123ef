from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.trainer.batches import make_model
from tests.trainer.lamb_reference import PlainLamb
from trainer.lamb import Lamb
from trainer.models.self_attention import SelfAttention
from trainer.optim import make_optimizer
from trainer.settings.optimizer import OptimizerConfig

CONFIG = OptimizerConfig(name="lamb", learning_rate=0.1, betas=(0.9, 0.99), weight_decay=0.05)


def give_gradients(parameters: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        shape, dtype = parameter.shape, parameter.dtype
        parameter.grad = torch.randn(shape, generator=generator, dtype=dtype)


def test_steps_equal_the_papers_algorithm_written_plainly() -> None:
    layers = [nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3, bias=False)]
    model = nn.Sequential(*layers).double()
    twin = [nn.Parameter(one.detach().clone()) for one in model.parameters()]
    optimizer = make_optimizer(model, CONFIG)
    reference = PlainLamb(twin, betas=CONFIG.betas, eps=CONFIG.eps, weight_decay=0.05)
    assert isinstance(optimizer, Lamb)
    for step in range(6):
        give_gradients(list(model.parameters()), step)
        give_gradients(twin, step)
        optimizer.step()
        reference.step(0.1)
    for one, other in zip(model.parameters(), twin, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_query_key_and_value_have_a_trust_ratio_each() -> None:
    model = make_model().double()
    attention = next(one for one in model.modules() if isinstance(one, SelfAttention))
    fused = attention.qkv.weight
    with torch.no_grad():
        fused[:32] *= 100.0  # a query far longer than key and value
    parts = [nn.Parameter(part.detach().clone()) for part in fused.chunk(3)]
    optimizer = make_optimizer(model, CONFIG)
    reference = PlainLamb(parts, betas=CONFIG.betas, eps=CONFIG.eps, weight_decay=0.05)
    give_gradients(list(model.parameters()), 0)
    assert fused.grad is not None
    for part, gradient in zip(parts, fused.grad.chunk(3), strict=True):
        part.grad = gradient.clone()
    optimizer.step()
    reference.step(0.1)
    torch.testing.assert_close(fused.detach(), torch.cat(parts).detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("zero", ["weights", "gradients"])
def test_a_matrix_of_zeros_or_without_update_has_a_ratio_of_one(zero: str) -> None:
    model = nn.Linear(3, 2, bias=False)
    if zero == "weights":
        nn.init.zeros_(model.weight)
    before = model.weight.detach().clone()
    model.weight.grad = torch.full_like(model.weight, 0.0 if zero == "gradients" else 2.0)
    make_optimizer(model, OptimizerConfig(name="lamb", weight_decay=0.0)).step()
    # Adam's first update is the sign of the gradient.
    moved = 0.0 if zero == "gradients" else 1e-4
    torch.testing.assert_close(model.weight.detach(), before - moved, rtol=1e-5, atol=1e-9)


def test_every_parameter_is_updated_once_and_vectors_keep_adams_step() -> None:
    model = make_model()
    optimizer = make_optimizer(model, CONFIG)
    grouped = [one for group in optimizer.param_groups for one in group["params"]]
    assert sorted(map(id, grouped)) == sorted(map(id, model.parameters()))
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    optimizer.step()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.testing.assert_close(parameter.detach(), before[name] - 0.1)
        else:
            # The length of the step is learning_rate |w|, whatever the gradient.
            moved = (parameter.detach() - before[name]).norm()
            parts = 3 if name.endswith("qkv.weight") else 1
            expected = torch.stack([one.norm() for one in before[name].chunk(parts)]).norm()
            torch.testing.assert_close(moved, 0.1 * expected)
