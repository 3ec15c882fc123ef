"""Every architecture against its class of transformers, both with the same random weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from tests.trainer.batches import MIXED_LENGTHS, make_batch
from tests.trainer.padded_batches import pad
from tests.trainer.twin_answers import assert_same, assert_same_gradients, run
from tests.trainer.twins import CASES, Case
from trainer.convert import export_state_dict, import_state_dict
from trainer.convert.writing import twin_of
from trainer.data.batch import Batch

TOLERANCES = [(torch.float32, 1e-5), (torch.float64, 1e-9)]
cases = pytest.mark.parametrize("case", CASES, ids=str)


def make_case_batch(case: Case, lengths: tuple[int, ...]) -> Batch:
    batch = make_batch(lengths, seed=1, pairs=case.pairs is not None)
    if case.segments:
        return batch
    return dataclasses.replace(batch, token_type_ids=np.zeros_like(batch.token_type_ids))


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
    assert_same_gradients(model, twin, tolerance)


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
