"""Tensors as older versions of transformers and the wrappers of torch named and saved them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from pipeline.errors import InputError
from tests.trainer.batches import make_model
from tests.trainer.test_convert_import import CONFIG, KEY
from tests.trainer.twins import ALBERT, BERT, CASES, Case
from tests.trainer.wordpiece import ENTRIES, make_source
from trainer.convert import (
    export_folder,
    export_state_dict,
    import_state_dict,
)
from trainer.start_from import load_start, start_tables

FAMILIES = [case for case in CASES if case.name in ("bert", "roberta", "albert", "modern-biases")]
families = pytest.mark.parametrize("case", FAMILIES, ids=str)


def old_names(twin: nn.Module) -> dict[str, Tensor]:
    """The tensors as files of 2019 name those of LayerNorm."""
    norms = {name for name, module in twin.named_modules() if isinstance(module, nn.LayerNorm)}
    renamed = {}
    for name, value in twin.state_dict().items():
        module, _, kind = name.rpartition(".")
        if module in norms:
            name = f"{module}.{'gamma' if kind == 'weight' else 'beta'}"
        renamed[name] = value
    assert sum(name.endswith(".gamma") for name in renamed) == len(norms) > 3
    return renamed


@families
def test_gamma_and_beta_are_taken(case: Case) -> None:
    twin = case.twin()
    expected = import_state_dict(twin.state_dict(), case.config_json(twin)).state
    found = import_state_dict(old_names(twin), case.config_json(twin)).state
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("with_copies", [True, False])
def test_prefixes_tied_copies_and_position_ids_are_taken(prefix: str, with_copies: bool) -> None:
    model = make_model()
    tensors: dict[str, Any] = export_state_dict(model)
    if with_copies:
        tensors["cls.predictions.decoder.weight"] = model.decoder_weight.detach().clone()
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
        tensors["bert.embeddings.position_ids"] = torch.arange(80)[None]
    loaded = import_state_dict({prefix + name: value for name, value in tensors.items()}, CONFIG)
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state[name], value), name


@families
def test_models_of_which_parts_were_compiled_or_wrapped_are_taken(case: Case) -> None:
    twin = case.twin()
    expected = import_state_dict(twin.state_dict(), case.config_json(twin)).state
    base = getattr(twin, twin.base_model_prefix)
    base.embeddings = torch.compile(base.embeddings, backend="eager")
    encoder = base if hasattr(base, "layers") else base.encoder
    layers = next(child for child in encoder.children() if isinstance(child, nn.ModuleList))
    layers[0] = nn.DataParallel(torch.compile(layers[0], backend="eager"))
    tensors = torch.compile(twin, backend="eager").state_dict()
    for part in ("embeddings._orig_mod.", ".0.module._orig_mod."):
        assert any(name.startswith("_orig_mod.") and part in name for name in tensors), part
    found = import_state_dict(tensors, case.config_json(twin)).state
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_two_names_of_one_tensor_are_refused() -> None:
    tensors = export_state_dict(make_model())
    with pytest.raises(InputError, match=rf"{KEY} and module\.{KEY} are the same tensor"):
        import_state_dict({**tensors, f"module.{KEY}": tensors[KEY]}, CONFIG)


POOLERS = {
    # The first released RoBERTas: nothing trained it, and the class of today does not read it.
    "roberta": (next(case for case in CASES if case.name == "roberta"), "roberta.pooler.dense"),
    # The released ALBERTs: trained beside a pair head that was not saved.
    "albert": (Case("albert", "AlbertForMaskedLM", ALBERT, sharing="all"), "albert.pooler"),
    "bert": (Case("bert", "BertForMaskedLM", BERT), "bert.pooler.dense"),
}


@pytest.mark.parametrize("family", POOLERS)
@pytest.mark.parametrize("class_is_said", [True, False])
def test_a_pooler_beside_an_mlm_head_alone_is_left_out_and_named(
    family: str, class_is_said: bool
) -> None:
    case, pooler = POOLERS[family]
    twin = case.twin()
    names = (f"{pooler}.bias", f"{pooler}.weight")
    tensors = {**twin.state_dict(), names[0]: torch.ones(32), names[1]: torch.ones(32, 32)}
    config = case.config_json(twin)
    if not class_is_said:
        del config["architectures"]
    imported = import_state_dict(tensors, config)
    assert imported.class_name == case.class_name
    assert imported.left_out == names
    without = import_state_dict(twin.state_dict(), config)
    assert without.left_out == ()
    assert imported.heads == without.heads
    assert imported.state.keys() == without.state.keys()


def test_a_pair_head_that_the_class_says_it_has_is_not_taken_for_left_out() -> None:
    case = next(case for case in CASES if case.name == "albert")
    twin = case.twin()
    tensors = twin.state_dict()
    for name in [name for name in tensors if name.startswith("sop_classifier.")]:
        del tensors[name]
    with pytest.raises(InputError, match=r"missing: sop_classifier\.classifier\.bias, sop_"):
        import_state_dict(tensors, case.config_json(twin))


def test_what_is_left_out_is_told_of_the_checkpoint_and_of_a_run_that_starts_there(
    tmp_path: Path,
) -> None:
    model = make_model(pair_head=None)
    for name, content in export_folder(model, make_source()).items():
        (tmp_path / name).write_bytes(content)
    weights = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(weights)
    pooler = {"bert.pooler.dense.bias": torch.ones(32), "bert.pooler.dense.weight": torch.eye(32)}
    safetensors.torch.save_file({**tensors, **pooler}, weights)
    told = "# Left out, because the class does not read it: bert.pooler.dense.bias, bert.pooler."
    assert told in start_tables(str(tmp_path))
    report = load_start(make_model(pair_head=None), str(tmp_path), "\n".join(ENTRIES).encode())
    assert report.unused_tensors == tuple(pooler)
    assert "left out of it: bert.pooler.dense.bias, bert.pooler.dense.weight" in str(report)
