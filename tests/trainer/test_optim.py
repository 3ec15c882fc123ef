from __future__ import annotations

from typing import Literal

import pytest
import safetensors.torch
import torch
from torch import Tensor

from pipeline.errors import TrainingError
from tests.trainer.batches import make_batch, make_model
from trainer.models.encoder_model import EncoderForPreTraining
from trainer.optim import (
    load_optimizer_tensors,
    make_optimizer,
    optimizer_tensors,
    parameter_groups,
)
from trainer.settings.optimizer import OptimizerConfig
from trainer.step import train_step

ADAMW = OptimizerConfig()


def train(model: EncoderForPreTraining, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        train_step(
            model,
            optimizer,
            [make_batch([20, 30], seed=step)],
            step=step,
            seed=0,
            rank=0,
            learning_rate=0.01,
            clip_norm=1.0,
            precision="fp32",
            device=torch.device("cpu"),
            group=None,
        )


def after_two_steps(
    config: OptimizerConfig = ADAMW,
) -> tuple[EncoderForPreTraining, torch.optim.Optimizer]:
    model = make_model()
    optimizer = make_optimizer(model, config)
    train(model, optimizer, range(2))
    return model, optimizer


def test_biases_and_norms_are_not_decayed_and_every_parameter_is_in_one_group() -> None:
    model = make_model()
    decayed, kept = parameter_groups(model, 0.01)
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.01, 0.0)
    names = {parameter: name for name, parameter in model.named_parameters()}
    decayed_names = [names[parameter] for parameter in decayed["params"]]
    kept_names = [names[parameter] for parameter in kept["params"]]
    assert sorted(decayed_names + kept_names) == sorted(names.values())
    assert all(name.endswith("bias") or "layer_norm" in name for name in kept_names)
    assert not [name for name in decayed_names if name.endswith("bias") or "norm" in name]
    assert len(decayed_names) == 3 + 4 * 2 + 3
    assert "masked_lm_head.decoder_bias" in kept_names


def test_a_norm_of_any_name_is_not_decayed() -> None:
    model = torch.nn.Sequential(torch.nn.LayerNorm((2, 2)), torch.nn.Linear(2, 2))
    decayed, kept = parameter_groups(model, 0.01)
    assert decayed["params"] == [model[1].weight]
    assert len(kept["params"]) == 3


def test_a_shared_parameter_is_in_one_group_once() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(3, 2), torch.nn.Linear(2, 3, bias=False))
    model[1].weight = model[0].weight
    assert parameter_groups(model, 0.01)[0]["params"] == [model[0].weight]


def test_update_equals_decoupled_weight_decay_by_hand() -> None:
    model = torch.nn.Linear(2, 1)
    config = OptimizerConfig(learning_rate=0.1, weight_decay=0.5, betas=(0.9, 0.99), eps=1e-6)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    make_optimizer(model, config).step()
    # The first Adam update is the sign of the gradient, for any gradient.
    torch.testing.assert_close(model.weight, before["weight"] * (1 - 0.1 * 0.5) - 0.1)
    torch.testing.assert_close(model.bias, before["bias"] - 0.1)


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_restored_optimizer_goes_on_bit_equal(name: Literal["adamw", "lamb"]) -> None:
    config = OptimizerConfig(name=name)
    model, optimizer = after_two_steps(config)
    weights = safetensors.torch.save(model.state_dict())
    state = safetensors.torch.save(optimizer_tensors(optimizer, model))
    train(model, optimizer, range(2, 5))

    resumed = make_model(seed=9)
    resumed.load_state_dict(safetensors.torch.load(weights))
    fresh = make_optimizer(resumed, config)
    load_optimizer_tensors(fresh, resumed, safetensors.torch.load(state))
    assert safetensors.torch.save(optimizer_tensors(fresh, resumed)) == state
    train(resumed, fresh, range(2, 5))
    for key, parameter in model.state_dict().items():
        assert torch.equal(parameter, resumed.state_dict()[key]), key
    first, second = optimizer_tensors(optimizer, model), optimizer_tensors(fresh, resumed)
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_loaded_state_is_a_copy() -> None:
    model, optimizer = after_two_steps()
    saved = {name: value.clone() for name, value in optimizer_tensors(optimizer, model).items()}
    before = {name: value.clone() for name, value in saved.items()}
    load_optimizer_tensors(optimizer, model, saved)
    train(model, optimizer, range(2, 3))
    assert all(torch.equal(saved[name], before[name]) for name in saved)


def test_state_before_the_first_step_is_empty_and_loads() -> None:
    model, optimizer = after_two_steps()
    fresh = make_optimizer(model, OptimizerConfig())
    assert optimizer_tensors(fresh, model) == {}
    load_optimizer_tensors(optimizer, model, {})
    assert optimizer_tensors(optimizer, model) == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("remove", "missing exp_avg/pair_head.bias"),
        ("add", "unexpected exp_avg/pair_head.scale"),
        ("reshape", r"exp_avg/pair_head.bias has shape \(3,\) instead of \(2,\)"),
    ],
)
def test_state_of_another_model_is_refused_by_name(change: str, message: str) -> None:
    model, optimizer = after_two_steps()
    tensors: dict[str, Tensor] = dict(optimizer_tensors(optimizer, model))
    if change == "remove":
        del tensors["exp_avg/pair_head.bias"]
    elif change == "add":
        tensors["exp_avg/pair_head.scale"] = torch.zeros(2)
    else:
        tensors["exp_avg/pair_head.bias"] = torch.zeros(3)
    with pytest.raises(TrainingError, match=message):
        load_optimizer_tensors(optimizer, model, tensors)
