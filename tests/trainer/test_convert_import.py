"""Which checkpoints are taken, and what is said of the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from pipeline.errors import InputError
from tests.trainer.batches import TINY, make_model
from tests.trainer.twins import CASES, LAYERS
from tests.trainer.wordpiece import make_source
from trainer.convert import (
    SpecialIds,
    export_config,
    export_folder,
    export_state_dict,
    import_folder,
    import_state_dict,
)
from trainer.models.encoder_model import EncoderForPreTraining

CONFIG = export_config(make_model(), SpecialIds(pad=0, cls=2, sep=3))
KEY = "bert.encoder.layer.1.attention.self.key.bias"


@pytest.mark.parametrize("head", ["bert.pooler", "cls.predictions.transform.dense", KEY[:-5]])
def test_missing_and_unexpected_tensors_are_named(head: str) -> None:
    tensors = export_state_dict(make_model())
    del tensors[f"{head}.bias" if head in KEY or "cls" in head else f"{head}.dense.bias"]
    tensors["qa_outputs.weight"] = torch.zeros(2, 32)
    with pytest.raises(InputError, match=rf"missing: {head}\S*bias; unexpected: qa_outputs.weight"):
        import_state_dict(tensors, CONFIG)


def test_a_head_that_the_class_has_must_be_there() -> None:
    tensors = export_state_dict(make_model())
    for name in [name for name in tensors if name.startswith("cls.seq_relationship")]:
        del tensors[name]
    with pytest.raises(InputError, match=r"missing: cls\.seq_relationship\.bias, cls\.seq_"):
        import_state_dict(tensors, CONFIG)


def test_a_file_with_more_heads_than_its_class_is_taken_whole() -> None:
    # Some released checkpoints say BertForMaskedLM and have every head.
    tensors = export_state_dict(make_model())
    imported = import_state_dict(tensors, {**CONFIG, "architectures": ["BertForMaskedLM"]})
    assert imported.class_name == "BertForPreTraining"
    assert "pair_head.weight" in imported.state


def test_an_empty_file_is_refused_and_a_long_list_is_cut() -> None:
    with pytest.raises(InputError, match=r"missing: bert\.\S+.* and \d+ more; unexpected: none"):
        import_state_dict({}, CONFIG)


def test_a_decoder_that_is_not_tied_is_refused() -> None:
    tensors = export_state_dict(make_model())
    tensors["cls.predictions.decoder.weight"] = torch.zeros(99, 32)
    with pytest.raises(InputError, match=r"cls\.predictions\.decoder\.weight differs"):
        import_state_dict(tensors, CONFIG)


@pytest.mark.parametrize(
    "name", ["bert", "roberta", "albert", "modern", "bert-encoder", "modern-encoder"]
)
def test_a_decoder_of_its_own_is_refused_where_there_is_a_decoder(name: str) -> None:
    # Refused though the two are equal in the file: trained on, they would not stay so.
    case = next(case for case in CASES if case.name == name)
    twin = case.twin()
    config = {**case.config_json(twin), "tie_word_embeddings": False}
    if case.encoder_only:
        assert not import_state_dict(twin.state_dict(), config).heads.masked_lm
        return
    with pytest.raises(InputError, match=r"config\.json: tie_word_embeddings = false: only true"):
        import_state_dict(twin.state_dict(), config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensor: tensor * torch.nan, r"has NaN or infinite values \(32 of 32\)"),
        (lambda tensor: tensor.index_fill(0, torch.tensor(3), torch.inf), r"\(1 of 32\)"),
        (lambda tensor: tensor.to_sparse(), r"is torch\.sparse_coo"),
        (lambda tensor: tensor.to("meta"), r"has no values"),
    ],
    ids=["nan", "infinite", "sparse", "meta"],
)
def test_weights_that_are_not_finite_and_dense_are_refused_by_name(
    change: Callable[[Tensor], Tensor], message: str
) -> None:
    tensors = export_state_dict(make_model())
    with pytest.raises(InputError, match=rf"{KEY} .*{message}"):
        import_state_dict({**tensors, KEY: change(tensors[KEY])}, CONFIG)


@pytest.mark.parametrize(
    ("dtype", "said"),
    [
        (torch.int8, "quantised"),
        (torch.uint8, "quantised"),
        (torch.float8_e4m3fn, "quantised"),
        (torch.bool, "weights are real numbers"),
        (torch.complex64, "weights are real numbers"),
    ],
    ids=str,
)
def test_weights_of_a_dtype_without_plain_real_numbers_are_refused_by_name(
    dtype: torch.dtype, said: str
) -> None:
    tensors = export_state_dict(make_model())
    with pytest.raises(InputError, match=rf"^{KEY} is of {dtype}: {said}"):
        import_state_dict({**tensors, KEY: tensors[KEY].to(dtype)}, CONFIG)


@pytest.mark.parametrize(
    ("changed", "name", "found", "expected"),
    [
        ({"vocab_size": 104}, "bert.embeddings.word_embeddings.weight", [99, 32], [104, 32]),
        ({"max_position_embeddings": 64}, "bert.embeddings.position_", [80, 32], [64, 32]),
        ({"intermediate_size": 48}, "bert.encoder.layer.0.intermediate", [64, 32], [48, 32]),
        ({"hidden_size": 64}, "bert.encoder.layer.0.attention.self.key", [32, 32], [64, 64]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_config_json_that_disagrees_with_the_tensors_is_refused(
    changed: dict[str, int], name: str, found: list[int], expected: list[int]
) -> None:
    with pytest.raises(InputError) as caught:
        import_state_dict(export_state_dict(make_model()), CONFIG | changed)
    assert "config.json and the tensors disagree" in str(caught.value)
    assert any(
        part.strip().startswith(name) or f": {name}" in part
        for part in str(caught.value).split("; ")
        if f"is {found}, by config.json {expected}" in part
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "distilbert"}, r'model_type = "distilbert": a checkpoint of another arch'),
        ({"model_type": None}, r"model_type = null: a checkpoint of another architecture"),
        ({"hidden_act": "relu"}, r'hidden_act = "relu": only "gelu" or "gelu_new" can be imp'),
        ({"position_embedding_type": "relative_key"}, r'"relative_key": only "absolute" can'),
        ({"is_decoder": True}, r"is_decoder = true: only false"),
        ({"hidden_size": None}, r"hidden_size is missing"),
        ({"hidden_size": "32"}, r'hidden_size = "32": must be a whole number'),
        ({"layer_norm_eps": "small"}, r'layer_norm_eps = "small": must be a number'),
        ({"num_attention_heads": 5}, r"model\.hidden_size = 32: must be a multiple of .* = 5"),
        ({"vocab_size": -3}, r"vocab_size = -3: must be at least 1"),
        ({"architectures": 5}, r"architectures = 5: must be a list of names"),
        ({"architectures": [{}]}, r"architectures = \[\{\}\]: must be a list of names"),
        ({"pad_token_id": 99}, r"pad_token_id = 99: must be an id of the vocabulary, \[0, 99\)"),
    ],
    ids=str,
)
def test_settings_that_our_encoder_has_not_are_refused_by_key_and_value(
    changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=rf"config\.json: .*{message}"):
        import_state_dict(export_state_dict(make_model()), CONFIG | changed)


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        ([1], "must be a table with a table full_attention"),
        ({"full_attention": 5}, "must be a table with a table full_attention"),
        ({"full_attention": {"rope_theta": "x"}}, r"full_attention\.rope_theta must be a number"),
        ({"full_attention": {"rope_theta": None}}, r"full_attention\.rope_theta must be a number"),
        ({"full_attention": {"rope_type": "linear", "factor": 2.0}}, 'only rope_type "default"'),
        ({"sliding_attention": {"type": "linear", "factor": 2.0}}, 'only type "default"'),
    ],
    ids=str,
)
def test_malformed_rotary_settings_are_refused_by_key(value: Any, remedy: str) -> None:
    case = next(case for case in CASES if case.name == "modern")
    twin = case.twin()
    config = {**case.config_json(twin), "rope_parameters": value}
    with pytest.raises(InputError, match=rf"rope_parameters = .*: {remedy}"):
        import_state_dict(twin.state_dict(), config)


@pytest.mark.parametrize("with_parameters", [True, False])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
            r"rope_scaling = \{.*: only nul",
        ),
        ({"rope_scaling": {"rope_type": "default", "rope_theta": 99}}, "rope_scaling = .*only nul"),
        ({"sliding_window": 2}, r"sliding_window = 2: must be half of local_attention = 10"),
        ({"rope_scaling": None, "sliding_window": 5}, ""),
    ],
    ids=str,
)
def test_what_else_sets_modernberts_angles_and_windows_agrees_or_is_refused(
    changed: dict[str, Any], message: str, with_parameters: bool
) -> None:
    case = next(case for case in CASES if case.name == "modern")
    twin = case.twin()
    config = {**case.config_json(twin), **changed}
    if not with_parameters:
        del config["rope_parameters"]
    if not message:
        assert import_state_dict(twin.state_dict(), config).config.local_attention_window == 10
        return
    with pytest.raises(InputError, match=rf"config\.json: {message}"):
        import_state_dict(twin.state_dict(), config)


@pytest.mark.parametrize("key", ["attention_dropout", "mlp_dropout"])
def test_modernberts_dropouts_in_places_where_ours_has_none_are_refused_by_key(key: str) -> None:
    case = next(case for case in CASES if case.name == "modern")
    twin = case.twin()
    with pytest.raises(InputError, match=rf"config\.json: {key} = 0\.1: only 0\.0 can be imported"):
        import_state_dict(twin.state_dict(), {**case.config_json(twin), key: 0.1})


def test_a_checkpoint_of_another_architecture_is_refused_by_its_tensors_too() -> None:
    roberta = next(case for case in CASES if case.name == "roberta").twin()
    with pytest.raises(InputError, match=r"missing: bert\..*unexpected: .*roberta\."):
        import_state_dict(roberta.state_dict(), CONFIG)


def test_albert_groups_that_no_sharing_makes_are_refused() -> None:
    case = next(case for case in CASES if case.name == "albert")
    twin = case.twin()
    for key, value in (("num_hidden_groups", LAYERS - 1), ("inner_group_num", 2)):
        with pytest.raises(InputError, match=rf"{key} = {value}: only 1"):
            import_state_dict(twin.state_dict(), {**case.config_json(twin), key: value})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in export_folder(make_model(), make_source()).items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_a_folder_and_a_file_in_it_are_read(folder: Path) -> None:
    state = make_model().state_dict()
    for path in (str(folder), f"{folder}/", f"{folder}/model.safetensors"):
        found = import_folder(path)
        assert found.model.config == TINY
        assert all(torch.equal(found.model.state[name], value) for name, value in state.items())
    (folder / "vocab.txt").unlink()
    without = import_folder(str(folder))
    assert without.vocab_txt is None
    assert without.sha256 != found.sha256


def test_the_decoder_is_the_embedding_after_an_import(folder: Path) -> None:
    # The weights are assigned to parameters that were on "meta": a tie could have been lost.
    model = import_folder(str(folder)).model.model()
    assert isinstance(model, EncoderForPreTraining)
    assert model.decoder_weight is model.embeddings.word_embeddings.weight
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_torch_pickle_is_read_and_half_precision_becomes_float32(
    folder: Path, dtype: torch.dtype
) -> None:
    tensors = {name: value.to(dtype) for name, value in export_state_dict(make_model()).items()}
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    state = import_folder(str(folder)).model.state
    for name, value in make_model().state_dict().items():
        assert torch.equal(state[name], value.to(dtype).float()), name


class Code:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return (exec, ("raise SystemExit",))


def test_a_torch_pickle_runs_no_code_and_holds_tensors_only(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    weights = folder / "pytorch_model.bin"
    torch.save({"x": Code()}, weights)
    with pytest.raises(
        InputError, match=r"pytorch_model\.bin: \d+ bytes: cut short, not a .* tensors"
    ) as caught:
        import_folder(str(folder))
    assert "weights_only" not in str(caught.value)
    torch.save({"model": export_state_dict(make_model())}, weights)
    with pytest.raises(InputError, match=r"must hold a state dict"):
        import_folder(str(folder))


@pytest.mark.parametrize("kept", [0, 5, 8, 100, 0.5, -1], ids=str)
def test_a_safetensors_file_cut_short_is_refused_with_its_sizes(folder: Path, kept: float) -> None:
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    size = int(kept * len(whole)) if isinstance(kept, float) else kept % len(whole)
    weights.write_bytes(whole[:size])
    with pytest.raises(InputError) as caught:
        import_folder(str(folder))
    assert f"{weights}: {size} bytes: cut short" in str(caught.value)
    if size > 8:
        header = 8 + int.from_bytes(whole[:8], "little")
        assert str(header if size < header else len(whole)) in str(caught.value)


def test_damaged_and_longer_files_are_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole + b"x")
    with pytest.raises(InputError, match=rf"{len(whole) + 1} bytes: followed by other bytes: .* "):
        import_folder(str(folder))
    weights.write_bytes(whole[:8] + b"x" * (len(whole) - 8))
    with pytest.raises(InputError, match=r"model\.safetensors: not a safetensors header"):
        import_folder(str(folder))
    weights.write_bytes(whole.replace(b'"F32"', b'"X32"'))
    with pytest.raises(InputError, match=rf"model\.safetensors: {len(whole)} bytes: damaged"):
        import_folder(str(folder))


@pytest.mark.parametrize("kept", [0.3, 0.99])
def test_a_torch_pickle_cut_short_is_refused_with_its_size(folder: Path, kept: float) -> None:
    weights = folder / "pytorch_model.bin"
    torch.save(export_state_dict(make_model()), weights)
    weights.write_bytes(weights.read_bytes()[: int(kept * weights.stat().st_size)])
    with pytest.raises(InputError, match=rf"{weights.stat().st_size} bytes: cut short, not a Py"):
        import_folder(str(weights))


@pytest.mark.parametrize("content", [b"", b"\x80\x02", b"hello", 18, 150], ids=str)
def test_what_is_no_torch_file_is_refused_with_its_size(folder: Path, content: bytes | int) -> None:
    weights = folder / "pytorch_model.bin"
    if isinstance(content, int):
        torch.save({KEY: torch.ones(9)}, weights, _use_new_zipfile_serialization=False)
        content = weights.read_bytes()[:content]
    weights.write_bytes(content)
    with pytest.raises(InputError, match=rf"{len(content)} bytes: cut short, not a PyTorch file"):
        import_folder(str(weights))


def test_weights_split_into_files_are_read_by_their_index(folder: Path) -> None:
    whole = import_folder(str(folder)).model.state
    tensors = export_state_dict(make_model())
    (folder / "model.safetensors").unlink()
    places = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(tensors)}
    for file in set(places.values()):
        part = {name: tensors[name] for name in tensors if places[name] == file}
        safetensors.torch.save_file(part, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    state = import_folder(str(folder)).model.state
    assert all(torch.equal(state[name], value) for name, value in whole.items())
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(InputError, match=rf"{index}: names model-1\.safetensors, which is not"):
        import_folder(str(folder))
    index.write_text('{"weight_map": {}}')
    with pytest.raises(InputError, match=rf"{index}: weight_map must be a table"):
        import_folder(str(folder))


def test_missing_and_broken_files_are_named(folder: Path) -> None:
    with pytest.raises(InputError, match=r"other: has no model\.safetensors and no pytorch_model"):
        import_folder(str(folder / "other"))
    with pytest.raises(InputError, match=r"has no x\.safetensors"):
        import_folder(str(folder / "x.safetensors"))
    config = folder / "config.json"
    config.write_text(config.read_text()[:-9])
    with pytest.raises(InputError, match=rf"{config}: not valid JSON"):
        import_folder(str(folder))
    config.write_text(json.dumps([1]))
    with pytest.raises(InputError, match=rf"{config}: holds a list"):
        import_folder(str(folder))
    config.unlink()
    with pytest.raises(InputError, match=rf"{config}: no such file"):
        import_folder(str(folder))


def test_errors_of_tensors_name_the_file(folder: Path) -> None:
    tensors = export_state_dict(make_model())
    del tensors[KEY]
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(
        InputError, match=rf"{folder}/model\.safetensors: not the tensors of .*{KEY}"
    ):
        import_folder(str(folder))
