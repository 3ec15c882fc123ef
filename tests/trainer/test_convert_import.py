"""Which checkpoints are taken, and what is said of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pipeline.errors import InputError
from tests.trainer.batches import make_model
from tests.trainer.twins import CASES, LAYERS
from trainer.convert import (
    SpecialIds,
    export_config,
    export_state_dict,
    import_state_dict,
)

CONFIG = export_config(make_model(), SpecialIds(pad=0, cls=2, sep=3))
KEY = "bert.encoder.layer.1.attention.self.key.bias"


@pytest.mark.parametrize("head", ["bert.pooler", "cls.predictions.transform.dense", KEY[:-5]])
def test_missing_and_unexpected_tensors_are_named(head: str) -> None:
    tensors = export_state_dict(make_model())
    del tensors[f"{head}.bias" if head in KEY or "cls" in head else f"{head}.dense.bias"]
    tensors["qa_outputs.weight"] = torch.zeros(2, 32)
    with pytest.raises(
        InputError,
        match=rf"missing: {head}\S*bias; unexpected: qa_outputs.weight: name a checkpoint whose",
    ):
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
        (lambda tensor: tensor.double() + 1e300, r"has values beyond float32 \(32 of 32, .*64\)"),
        (lambda tensor: tensor.to_sparse(), r"is torch\.sparse_coo"),
        (lambda tensor: tensor.to("meta"), r"has no values"),
    ],
    ids=["nan", "infinite", "beyond-float32", "sparse", "meta"],
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
        ({"vocab_size": -3}, r"vocab_size = -3: must be in \[1, 16777216\]"),
        ({"vocab_size": 2**62}, r"vocab_size = 46\d*: must be in \[1, 16777216\]"),
        ({"vocab_size": 10**30}, r"vocab_size = 10*: must be in \[1, 16777216\]"),
        ({"layer_norm_eps": 10**400}, r"layer_norm_eps = 10*: is beyond any float"),
        ({"architectures": 5}, r"architectures = 5: must be a list of names"),
        ({"architectures": [{}]}, r"architectures = \[\{\}\]: must be a list of names"),
        ({"pad_token_id": 99}, r"pad_token_id = 99: must be an id of the vocabulary, \[0, 99\)"),
    ],
    ids=lambda value: str(value)[:50],
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
        ({"full_attention": {"rope_theta": 10**400}}, r"full_attention\.rope_theta must be a num"),
        ({"full_attention": {"rope_theta": None}}, r"full_attention\.rope_theta must be a number"),
        ({"full_attention": {"rope_type": "linear", "factor": 2.0}}, 'only rope_type "default"'),
        ({"sliding_attention": {"type": "linear", "factor": 2.0}}, 'only type "default"'),
    ],
    ids=lambda value: str(value)[:50],
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
        ({"head_dim": 16}, r"head_dim = 16: must be hidden_size / num_attention_heads"),
        ({"rope_scaling": None, "sliding_window": 5, "head_dim": 8}, ""),
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


def test_a_roberta_without_a_position_for_a_token_is_refused() -> None:
    case = next(case for case in CASES if case.name == "roberta")
    twin = case.twin()
    config = {**case.config_json(twin), "pad_token_id": 81}
    with pytest.raises(InputError, match=r"max_position_embeddings = 82: leaves no position"):
        import_state_dict(twin.state_dict(), config)
    config["pad_token_id"] = 80
    assert import_state_dict(twin.state_dict(), config).config.max_position_embeddings == 82


def test_albert_groups_that_no_sharing_makes_are_refused() -> None:
    case = next(case for case in CASES if case.name == "albert")
    twin = case.twin()
    for key, value in (("num_hidden_groups", LAYERS - 1), ("inner_group_num", 2)):
        with pytest.raises(InputError, match=rf"{key} = {value}: only 1"):
            import_state_dict(twin.state_dict(), {**case.config_json(twin), key: value})
