"""What our model answers beside its twin in transformers, and how the two are compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.trainer.twins import TwinOutput, hidden_loss
from trainer.convert.writing import twin_of
from trainer.data.batch import Batch, as_tensor, to_tensors
from trainer.losses import masked_lm_loss, pair_loss
from trainer.models.encoder_model import EncoderForPreTraining, EncoderModel

CPU = torch.device("cpu")


def run(model: EncoderModel, batch: Batch) -> TwinOutput:
    """Our answers; the loss is the step's."""
    tensors = to_tensors(batch, CPU)
    if not isinstance(model, EncoderForPreTraining):
        hidden = model.hidden_states(tensors)
        pooled = model.pooled(hidden, tensors) if model.pooler else None
        return TwinOutput(loss=hidden_loss(hidden, pooled), hidden=hidden)
    output = model(tensors)
    states, pair_logits = model.states(tensors)
    labels = as_tensor(batch.masked_lm_ids, CPU)
    bias = model.masked_lm_head.decoder_bias
    mlm, _ = masked_lm_loss(states, model.decoder_weight, bias, labels, model.vocab_size)
    loss = mlm / labels.numel()
    if batch.pair_labels is not None:
        assert pair_logits is not None
        pair, _ = pair_loss(pair_logits, as_tensor(batch.pair_labels, CPU))
        loss = loss + pair / batch.pair_labels.size
    return TwinOutput(
        loss=loss,
        masked_logits=output.masked_logits,
        pair_logits=output.pair_logits,
    )


def assert_same(found: TwinOutput, expected: TwinOutput, tolerance: float) -> None:
    for name in ("hidden", "masked_logits", "pair_logits"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert (ours is None) == (theirs is None), name
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, msg=name)
    torch.testing.assert_close(found.loss, expected.loss, rtol=tolerance, atol=tolerance)


def gradients(model: EncoderModel, twin: Any) -> dict[str, tuple[Tensor, Tensor]]:
    """Ours and theirs of each of our parameters; what we hold once is the sum of theirs."""
    theirs = {name: parameter.grad for name, parameter in twin.named_parameters()}
    ours = {name: parameter.grad for name, parameter in model.named_parameters()}
    found = {}
    for pair in twin_of(model).pairs:
        places = [
            torch.cat([theirs[name] for name in names]) for names in (pair.theirs, *pair.copies)
        ]
        gradient = ours[pair.ours]
        assert gradient is not None, pair.ours
        if pair.by_token:  # rows that only pad the vocabulary have no twin
            assert not gradient[model.vocab_size :].any()
            gradient = gradient[: model.vocab_size]
        found[pair.ours] = gradient, torch.stack(places).sum(0)
    assert found.keys() == ours.keys()
    return found


def assert_same_gradients(model: EncoderModel, twin: Any, tolerance: float) -> None:
    """Compare what both have after backward.

    In float32 the norm of all differences is held to the norm of all gradients; in float64 each
    tensor's to its own, but for what rounding leaves where theory says zero (the key's bias).
    """
    both = gradients(model, twin)
    whole = torch.stack([theirs.norm() for _, theirs in both.values()]).norm()
    differences = {name: (ours - theirs).norm() for name, (ours, theirs) in both.items()}
    if whole.dtype == torch.float32:
        assert float(torch.stack(list(differences.values())).norm()) <= tolerance * float(whole)
        return
    for name, difference in differences.items():
        own = float(both[name][1].norm())
        assert float(difference) <= tolerance * own + 1e-14 * float(whole), name
