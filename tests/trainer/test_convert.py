from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import tokenizers
import torch
import transformers
from tokenizers import normalizers, pre_tokenizers, processors
from torch import Tensor

from pipeline.errors import InputError
from tests.trainer.batches import TINY, make_batch, make_model
from trainer.batch import to_tensors
from trainer.convert import export_folder, export_state_dict, import_state_dict
from trainer.models.encoder_model import EncoderForPreTraining

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [chr(letter) for letter in range(ord("a"), ord("z") + 1)]
VOCABULARY = [*SPECIALS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
VOCABULARY += ["Hello", "Paris", "hello", "paris", "école", "ecole", "中", "文", "中文", "the"]
VOCABULARY += [f"[unused{i}]" for i in range(99 - len(VOCABULARY))]
TEXT = "Hello Paris, École 中文 the zoo [MASK] the end"


def make_tokenizer(
    lowercase: bool, strip_accents: bool, chinese: bool, longest_word: int = 100
) -> tokenizers.Tokenizer:
    ids = {token: number for number, token in enumerate(VOCABULARY)}
    model = tokenizers.models.WordPiece(
        ids, unk_token="[UNK]", max_input_chars_per_word=longest_word
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(True, chinese, strip_accents, lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(SPECIALS)
    return tokenizer


def files_of(
    model: EncoderForPreTraining,
    tokenizer: tokenizers.Tokenizer,
    settings: tuple[bool, bool, bool] = (True, True, True),
    vocabulary: list[str] = VOCABULARY,
) -> dict[str, bytes]:
    return export_folder(
        model,
        TINY,
        tokenizer_json=tokenizer.to_str().encode(),
        vocab_txt=("\n".join(vocabulary) + "\n").encode(),
        lowercase=settings[0],
        strip_accents=settings[1],
        handle_chinese_chars=settings[2],
        max_seq_length=64,
    )


def write(files: dict[str, bytes], folder: Path) -> Path:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def test_export_is_deterministic_and_complete() -> None:
    tokenizer = make_tokenizer(True, True, True)
    files = files_of(make_model(), tokenizer)
    assert files == files_of(make_model(), tokenizer)
    assert set(files) == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    }


def test_transformers_opens_the_folder_and_answers_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    model = make_model().eval()
    folder = write(files_of(model, make_tokenizer(True, True, True)), tmp_path)
    with caplog.at_level(logging.INFO):
        twin, report = transformers.BertForPreTraining.from_pretrained(
            folder, output_loading_info=True
        )
    assert not any(report.values()), report
    printed = caplog.text + "".join(capfd.readouterr())
    assert "newly initialized" not in printed and "not used" not in printed
    assert twin.config.pad_token_id == 0
    batch = make_batch([50], masked_share=1.0)
    with torch.inference_mode():
        ours = model(to_tensors(batch, torch.device("cpu")))
        theirs = twin(
            input_ids=torch.from_numpy(batch.input_ids)[None],
            token_type_ids=torch.from_numpy(batch.token_type_ids)[None],
        )
    torch.testing.assert_close(
        ours.masked_logits, theirs.prediction_logits[0], rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(
        ours.pair_logits, theirs.seq_relationship_logits, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("class_name", ["BertForMaskedLM", "BertModel"])
def test_other_classes_find_their_weights(tmp_path: Path, class_name: str) -> None:
    model = make_model().eval()
    folder = write(files_of(model, make_tokenizer(True, True, True)), tmp_path)
    loader = getattr(transformers, class_name)
    twin, report = loader.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["mismatched_keys"]
    assert torch.equal(twin.get_input_embeddings().weight, model.decoder_weight)


def test_round_trip_is_bit_equal(tmp_path: Path) -> None:
    model = make_model(seed=4)
    files = files_of(model, make_tokenizer(True, True, True))
    loaded = import_state_dict(safetensors.torch.load(files["model.safetensors"]))
    assert loaded.keys() == model.state_dict().keys()
    assert all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())

    twin = transformers.BertForPreTraining.from_pretrained(write(files, tmp_path))
    saved = import_state_dict(twin.state_dict())
    assert all(torch.equal(saved[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False])
@pytest.mark.parametrize("chinese", [True, False])
def test_the_tokenizer_keeps_case_accent_and_chinese_settings(
    tmp_path: Path, lowercase: bool, strip_accents: bool, chinese: bool
) -> None:
    tokenizer = make_tokenizer(lowercase, strip_accents, chinese)
    files = files_of(make_model(), tokenizer, (lowercase, strip_accents, chinese))
    loaded = transformers.AutoTokenizer.from_pretrained(write(files, tmp_path))
    expected = tokenizer.encode(TEXT, TEXT)
    got = loaded(TEXT, TEXT)
    assert got["input_ids"] == expected.ids
    assert got["token_type_ids"] == expected.type_ids
    assert loaded.model_max_length == 64
    assert loaded.mask_token_id == 4


def test_a_cased_model_does_not_lower_case(tmp_path: Path) -> None:
    files = files_of(make_model(), make_tokenizer(False, False, True), (False, False, True))
    loaded = transformers.AutoTokenizer.from_pretrained(write(files, tmp_path))
    assert loaded.tokenize("Hello Paris") == ["Hello", "Paris"]


def test_another_limit_of_characters_per_word_is_kept(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(True, True, True, longest_word=4)
    files = files_of(make_model(), tokenizer)
    loaded = transformers.AutoTokenizer.from_pretrained(write(files, tmp_path))
    assert loaded("zoo zoozoo")["input_ids"] == tokenizer.encode("zoo zoozoo").ids
    assert tokenizer.encode("zoozoo", add_special_tokens=False).tokens == ["[UNK]"]


def test_a_vocabulary_of_another_size_is_refused() -> None:
    with pytest.raises(InputError, match=r"vocab\.txt has 98 entries, the model 99"):
        files_of(make_model(), make_tokenizer(True, True, True), vocabulary=VOCABULARY[:-1])


def test_vocabulary_entries_end_at_line_feeds_only() -> None:
    vocabulary = ["\u2028", *VOCABULARY[:-1]]
    assert files_of(make_model(), make_tokenizer(True, True, True), vocabulary=vocabulary)


def old_file(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    names = {".LayerNorm.weight": ".LayerNorm.gamma", ".LayerNorm.bias": ".LayerNorm.beta"}
    renamed = {}
    for name, value in tensors.items():
        for new, old in names.items():
            name = name.replace(new, old)
        renamed[name] = value
    return renamed


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("with_copies", [True, False])
def test_import_takes_prefixes_old_names_tied_copies_and_position_ids(
    prefix: str, with_copies: bool
) -> None:
    model = make_model()
    tensors: dict[str, Any] = old_file(export_state_dict(model))
    if with_copies:
        tensors["cls.predictions.decoder.weight"] = model.decoder_weight.detach().clone()
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
        tensors["bert.embeddings.position_ids"] = torch.arange(80)[None]
    loaded = import_state_dict({prefix + name: value for name, value in tensors.items()})
    assert all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())


def test_import_refuses_missing_and_unexpected_tensors_by_name() -> None:
    tensors = export_state_dict(make_model())
    del tensors["bert.encoder.layer.1.attention.self.key.bias"]
    tensors["qa_outputs.weight"] = torch.zeros(2, 32)
    with pytest.raises(InputError) as caught:
        import_state_dict(tensors)
    assert "missing: bert.encoder.layer.1.attention.self.key.bias;" in str(caught.value)
    assert "unexpected: qa_outputs.weight" in str(caught.value)


def test_import_refuses_an_empty_file_and_a_decoder_that_is_not_tied() -> None:
    with pytest.raises(InputError, match=r"missing: bert\.embeddings"):
        import_state_dict({})
    tensors = export_state_dict(make_model())
    tensors["cls.predictions.decoder.weight"] = torch.zeros(99, 32)
    with pytest.raises(InputError, match=r"cls\.predictions\.decoder\.weight differs"):
        import_state_dict(tensors)


def test_config_json_has_the_fields_of_the_twin() -> None:
    files = files_of(make_model(), make_tokenizer(True, True, True))
    config = json.loads(files["config.json"])
    assert config["vocab_size"] == np.count_nonzero(VOCABULARY) == 99
    known = transformers.BertConfig().to_dict().keys()
    assert set(config) <= set(known)
