"""The optimizer of a model, and its state as flat named tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.errors import TrainingError
from trainer.lamb import Lamb
from trainer.models.self_attention import SelfAttention
from trainer.settings.optimizer import OptimizerConfig

_STATE = ("step", "exp_avg", "exp_avg_sq")


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return two groups, decayed and not, with each parameter of `model` once.

    Not decayed are biases and the weights of norms, told by the module's type and the
    parameter's shape, not by its name alone (Devlin et al. 2019, released code).
    """
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    seen: set[nn.Parameter] = set()
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if parameter in seen:
                continue
            seen.add(parameter)
            # Matrices are decayed; what has one dimension is a bias or a norm's weight.
            is_norm = isinstance(module, (nn.LayerNorm, nn.RMSNorm))
            (kept if is_norm or parameter.ndim < 2 else decayed).append(parameter)
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": kept, "weight_decay": 0.0},
    ]


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return the optimizer of `config` over `model`; the step sets its learning rate."""
    decayed, kept = parameter_groups(model, config.weight_decay)
    settings: dict[str, Any] = {
        "lr": config.learning_rate,
        "betas": config.betas,
        "eps": config.eps,
    }
    if config.name == "adamw":
        return torch.optim.AdamW([decayed, kept], fused=True, **settings)
    # The papers' query, key and value are three matrices; ours lie one below the other in one.
    fused = {module.qkv.weight for module in model.modules() if isinstance(module, SelfAttention)}
    whole = [one for one in decayed["params"] if one not in fused]
    stacked = [one for one in decayed["params"] if one in fused]
    groups = [
        {**decayed, "params": whole, "matrices": 1},
        {**decayed, "params": stacked, "matrices": 3},
        {**kept, "matrices": 0},
    ]
    return Lamb([group for group in groups if group["params"]], **settings)


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimizer's state as "STATE/parameter" -> tensor; empty before the first step.

    The tensors are the optimizer's own, not copies. Settings (rates, decay) are not in it: they
    come from the configuration.
    """
    return {
        f"{state}/{name}": optimizer.state[parameter][state]
        for state in _STATE
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
    }


def load_optimizer_tensors(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Set the state of a fresh optimizer from copies of `tensors`, exact to the bit.

    Raises TrainingError that names the tensors which are missing, unexpected or of another shape.
    """
    if not tensors:
        optimizer.state.clear()
        return
    shapes = {
        f"{state}/{name}": torch.Size() if state == "step" else parameter.shape
        for state in _STATE
        for name, parameter in model.named_parameters()
    }
    faults = [f"missing {name}" for name in shapes if name not in tensors]
    faults += [f"unexpected {name}" for name in tensors if name not in shapes]
    faults += [
        f"{name} has shape {tuple(tensors[name].shape)} instead of {tuple(shape)}"
        for name, shape in shapes.items()
        if name in tensors and tensors[name].shape != shape
    ]
    if faults:
        raise TrainingError(
            f"optimizer state does not belong to this model: {'; '.join(faults[:8])}"
            + (f"; and {len(faults) - 8} more" if len(faults) > 8 else "")
        )
    for name, parameter in model.named_parameters():
        optimizer.state[parameter] = {
            state: tensors[f"{state}/{name}"].detach().to(parameter.device, copy=True)
            for state in _STATE
        }
