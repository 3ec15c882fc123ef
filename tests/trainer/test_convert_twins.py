"""Every architecture against its class of transformers, both with the same random weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from tests.trainer.batches import MIXED_LENGTHS, make_batch
from tests.trainer.padded_batches import pad
from tests.trainer.twins import CASES, Case, TwinOutput, hidden_loss
from trainer.convert import export_state_dict, import_state_dict
from trainer.convert.writing import twin_of
from trainer.data.batch import Batch, as_tensor, to_tensors
from trainer.losses import masked_lm_loss, pair_loss
from trainer.models.encoder_model import EncoderForPreTraining, EncoderModel

CPU = torch.device("cpu")
TOLERANCES = [(torch.float32, 1e-5), (torch.float64, 1e-9)]
cases = pytest.mark.parametrize("case", CASES, ids=str)


def make_case_batch(case: Case, lengths: tuple[int, ...]) -> Batch:
    batch = make_batch(lengths, seed=1, pairs=case.pairs is not None)
    if case.segments:
        return batch
    return dataclasses.replace(batch, token_type_ids=np.zeros_like(batch.token_type_ids))


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
    mlm, _ = masked_lm_loss(states, model.decoder_weight, bias, labels)
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
        found[pair.ours] = gradient, torch.stack(places).sum(0)
    assert found.keys() == ours.keys()
    return found


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES, ids=["float32", "float64"])
@pytest.mark.parametrize("lengths", [MIXED_LENGTHS, (60, 60), (20, 9)], ids=str)
@cases
def test_import_gives_the_same_logits_loss_and_gradients(
    case: Case,
    lengths: tuple[int, ...],
    dtype: torch.dtype,
    tolerance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if dtype == torch.float64:
        case.rotate_exactly(monkeypatch)
    twin = case.twin(dtype)
    imported = import_state_dict(twin.state_dict(), case.config_json(twin))
    model = imported.model()
    assert imported.class_name == case.class_name
    assert model.config.parameter_sharing == case.sharing
    batch = make_case_batch(case, lengths)
    # Wider than the longest row: padding must not be seen at all.
    expected = case.run(twin, batch, pad(batch, width=min(80, max(lengths) + 3)))
    found = run(model, batch)
    assert_same(found, expected, tolerance)

    expected.loss.backward()
    found.loss.backward()
    both = gradients(model, twin)
    norm = torch.stack([theirs.norm() for _, theirs in both.values()]).norm()
    for name, (ours, theirs) in both.items():
        assert float((ours - theirs).norm()) <= tolerance * float(norm), name


@cases
def test_the_round_trip_is_bit_equal_both_ways(case: Case, tmp_path: Path) -> None:
    twin = case.twin()
    twin.save_pretrained(tmp_path)
    saved = safetensors.torch.load_file(tmp_path / "model.safetensors")
    model = import_state_dict(saved, case.config_json(twin)).model()
    exported = export_state_dict(model)
    # Copies of tied tensors are the only ones that transformers may save beside ours.
    assert exported.keys() <= saved.keys() <= exported.keys() | twin_of(model).tied.keys()
    assert all(torch.equal(saved[name], value) for name, value in exported.items())
    again = import_state_dict(exported, case.config_json(twin)).state
    state = model.state_dict()
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], value) for name, value in state.items())
