"""What our models export opens in transformers and is the same model."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from pipeline.errors import InputError
from tests.trainer.batches import TINY, VOCAB_SIZE, make_batch, make_model
from tests.trainer.padded_batches import pad
from tests.trainer.twin_answers import assert_same, assert_same_gradients, run
from tests.trainer.twins import TwinOutput
from tests.trainer.wordpiece import ENTRIES, TEXT, make_source
from trainer.convert import export_folder, import_folder
from trainer.data.batch import to_tensors
from trainer.models.encoder_model import EncoderForPreTraining, PairHead
from trainer.settings.model import ModelConfig

ROBERTA = dataclasses.replace(
    TINY,
    architecture="roberta",
    position_offset="after_pad_token_id",
    max_position_embeddings=81,
    type_vocab_size=1,
    pooler=False,
)
ALBERT = dataclasses.replace(
    TINY,
    architecture="albert",
    embedding_size=16,
    parameter_sharing="all",
    hidden_act="gelu_new",
)
MODERN = dataclasses.replace(
    TINY,
    architecture="modern",
    bias=False,
    embedding_dropout_prob=0.0,
    feed_forward="geglu",
    global_attention_every=2,
    local_attention_window=10,
    norm_position="pre",
    pooler=False,
    position_embedding_type="rotary",
    scale_output_initializer=True,
    type_vocab_size=0,
)
PADDED = dataclasses.replace(TINY, pad_vocab_size_to_multiple_of=64)


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    config: ModelConfig
    pair_head: PairHead | None
    auto_class: str
    class_name: str

    def model(self, seed: int = 3) -> EncoderForPreTraining:
        return make_model(self.config, seed=seed, pair_head=self.pair_head).eval()


PRE_TRAINING, MASKED_LM = "AutoModelForPreTraining", "AutoModelForMaskedLM"
CASES = [
    Case("bert-nsp", TINY, "nsp", PRE_TRAINING, "BertForPreTraining"),
    Case("bert-sop", TINY, "sop", PRE_TRAINING, "BertForPreTraining"),
    Case("bert-without-pairs", TINY, None, MASKED_LM, "BertForMaskedLM"),
    Case("bert-padded-vocabulary", PADDED, None, MASKED_LM, "BertForMaskedLM"),
    Case("roberta", ROBERTA, None, MASKED_LM, "RobertaForMaskedLM"),
    Case("modern", MODERN, None, MASKED_LM, "ModernBertForMaskedLM"),
    Case("albert", ALBERT, "sop", PRE_TRAINING, "AlbertForPreTraining"),
    Case("albert-without-pairs", ALBERT, None, MASKED_LM, "AlbertForMaskedLM"),
    *(
        Case(
            f"albert-{sharing}-shared",
            dataclasses.replace(ALBERT, parameter_sharing=sharing),
            "sop",
            PRE_TRAINING,
            "AlbertForPreTraining",
        )
        for sharing in ("none", "attention", "ffn")
    ),
]
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def write(files: dict[str, bytes], folder: Path) -> Path:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def open_quietly(folder: Path, class_name: str) -> Any:
    """Open the folder with a class; every weight of the class must be in it."""
    loader = getattr(transformers, class_name)
    model, report = loader.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"], report
    assert not report["mismatched_keys"], report
    return model.eval()


@cases
def test_the_class_of_config_json_opens_the_folder_and_answers_and_learns_the_same(
    case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    model = case.model()
    write(export_folder(model, make_source()), tmp_path)
    with caplog.at_level(logging.INFO):
        twin = open_quietly(tmp_path, case.auto_class)
    printed = caplog.text + "".join(capfd.readouterr())
    assert "newly initialized" not in printed
    assert "not used" not in printed
    assert type(twin).__name__ == case.class_name
    assert (twin.config.pad_token_id, twin.config.vocab_size) == (0, VOCAB_SIZE)

    batch = make_batch([80, 7, 50], masked_share=1.0, pairs=case.pair_head is not None)
    segments = case.config.type_vocab_size >= 2
    if not segments:
        batch.token_type_ids[:] = 0
    padded = pad(batch)
    labels = {"labels": padded.label_tensor}
    if batch.pair_labels is not None:
        name = (
            "sentence_order_label"
            if case.config.architecture == "albert"
            else "next_sentence_label"
        )
        labels[name] = torch.from_numpy(batch.pair_labels)
    theirs = twin(**padded.inputs(segments=segments), **labels)
    logits = theirs.get("logits", theirs.get("prediction_logits"))
    assert logits.shape[-1] == VOCAB_SIZE
    expected = TwinOutput(
        loss=theirs.loss,
        masked_logits=padded.real(logits),
        pair_logits=theirs[2] if case.pair_head else None,
    )
    ours = run(model, batch)
    assert_same(ours, expected, 1e-5)
    ours.loss.backward()
    theirs.loss.backward()
    assert_same_gradients(model, twin, 1e-5)


@cases
def test_what_was_exported_is_imported_bit_for_bit(case: Case, tmp_path: Path) -> None:
    model = case.model()
    source = make_source()
    write(export_folder(model, source), tmp_path)
    folder = import_folder(str(tmp_path))
    assert folder.vocab_txt == source.vocab_txt
    assert folder.model.class_name == case.class_name
    expected = dataclasses.replace(case.config, pad_vocab_size_to_multiple_of=1)
    # Of one that makes no pooler nothing tells whether it would have had one.
    imported = folder.model.config
    assert dataclasses.replace(imported, pooler=expected.pooler) == expected
    state = model.state_dict()
    assert folder.model.state.keys() == state.keys()
    for name, value in folder.model.state.items():
        assert torch.equal(value, state[name][: len(value)]), name
    again = export_folder(folder.model.model(), source)
    assert again == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_export_is_deterministic_and_complete() -> None:
    files = export_folder(make_model(), make_source())
    assert files == export_folder(make_model(), make_source())
    assert set(files) == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    }


@cases
def test_config_json_has_only_fields_that_the_twin_knows(case: Case) -> None:
    config = json.loads(export_folder(case.model(), make_source())["config.json"])
    known = getattr(transformers, case.class_name).config_class().to_dict().keys()
    # ModernBERT's settings as transformers 4 reads them, beside those of 5.
    older = {"global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"}
    assert set(config) - older <= set(known)
    assert config["architectures"] == [case.class_name]


@pytest.mark.parametrize(("sharing", "groups"), [("all", 1), ("attention", 2), ("ffn", 2)])
def test_albert_shares_layers_in_one_group_and_blocks_in_a_group_a_layer(
    sharing: str, groups: int
) -> None:
    model = make_model(dataclasses.replace(ALBERT, parameter_sharing=sharing), pair_head="sop")
    files = export_folder(model, make_source())
    assert json.loads(files["config.json"])["num_hidden_groups"] == groups
    tensors = safetensors.torch.load(files["model.safetensors"])
    layer = "albert.encoder.albert_layer_groups.{}.albert_layers.0.{}.weight"
    for block, module in (("attention", "attention.dense"), ("ffn", "ffn")):
        first, last = (tensors[layer.format(group, module)] for group in (0, groups - 1))
        assert torch.equal(first, last) == (sharing in ("all", block))


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False])
@pytest.mark.parametrize("chinese", [True, False])
@pytest.mark.parametrize(
    "config", [TINY, ROBERTA, ALBERT, MODERN], ids=lambda one: one.architecture
)
def test_auto_tokenizer_keeps_case_accent_and_chinese_settings(
    tmp_path: Path, config: ModelConfig, lowercase: bool, strip_accents: bool, chinese: bool
) -> None:
    source = make_source(lowercase=lowercase, strip_accents=strip_accents, chinese=chinese)
    write(export_folder(make_model(config, pair_head=None), source), tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    expected = source.tokenizer().encode(TEXT, TEXT)
    got = loaded(TEXT, TEXT)
    assert got["input_ids"] == expected.ids
    types = loaded(TEXT, TEXT, return_token_type_ids=True)["token_type_ids"]
    assert max(types) < max(config.type_vocab_size, 1)
    if config.type_vocab_size == 2:
        assert got["token_type_ids"] == types == expected.type_ids
    else:
        assert "token_type_ids" not in got
    assert (loaded.model_max_length, loaded.mask_token_id, loaded.pad_token_id) == (80, 4, 0)


def test_a_cased_vocabulary_is_not_lower_cased(tmp_path: Path) -> None:
    source = make_source(lowercase=False, strip_accents=False)
    loaded = transformers.AutoTokenizer.from_pretrained(
        write(export_folder(make_model(), source), tmp_path)
    )
    assert loaded.tokenize("Hello Paris") == ["Hello", "Paris"]


def test_another_limit_of_characters_per_word_is_kept(tmp_path: Path) -> None:
    source = make_source(longest_word=4)
    loaded = transformers.AutoTokenizer.from_pretrained(
        write(export_folder(make_model(), source), tmp_path)
    )
    tokenizer = source.tokenizer()
    assert loaded("zoo zoozoo")["input_ids"] == tokenizer.encode("zoo zoozoo").ids
    assert tokenizer.encode("zoozoo", add_special_tokens=False).tokens == ["[UNK]"]


@pytest.mark.parametrize("pad_token_id", [0, 1, 37])
def test_roberta_takes_its_longest_sequence_whatever_the_id_of_pad(
    tmp_path: Path, pad_token_id: int
) -> None:
    entries = ENTRIES[1:]
    entries.insert(pad_token_id, "[PAD]")
    config = dataclasses.replace(ROBERTA, max_position_embeddings=40 + pad_token_id + 1)
    model = EncoderForPreTraining(config, VOCAB_SIZE, pad_token_id, pair_head=None, seed=2).eval()
    assert model.max_seq_length == 40
    write(export_folder(model, make_source(entries=entries)), tmp_path)
    twin = open_quietly(tmp_path, MASKED_LM)
    assert twin.config.max_position_embeddings == 40 + pad_token_id + 1
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "z " * 60
    inputs = tokenizer([text, "the end"], padding=True, truncation=True, return_tensors="pt")
    assert inputs["input_ids"].shape == (2, 40)
    lengths = inputs["attention_mask"].sum(1).tolist()
    batch = dataclasses.replace(
        make_batch(lengths, masked_share=1.0, pairs=False),
        input_ids=inputs["input_ids"][inputs["attention_mask"].bool()].numpy(),
        token_type_ids=np.zeros(sum(lengths), dtype=np.int64),
    )
    with torch.inference_mode():
        theirs = twin(**inputs).logits[inputs["attention_mask"].bool()]
        ours = model(to_tensors(batch, torch.device("cpu"))).masked_logits
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_vocabulary_of_another_size_or_another_pad_is_refused() -> None:
    with pytest.raises(InputError, match=r"vocab\.txt has 98 entries, the model 99"):
        export_folder(make_model(), make_source(entries=ENTRIES[:-1]))
    moved = [*ENTRIES[1:], ENTRIES[0]]
    with pytest.raises(InputError, match=r"\[PAD\] is id 98 of the vocabulary, the model's is 0"):
        export_folder(make_model(), make_source(entries=moved))


def test_vocabulary_entries_end_at_line_feeds_only() -> None:
    entries = [*ENTRIES[:-1], "\u2028"]
    assert make_source(entries=entries).entries == VOCAB_SIZE
    assert export_folder(make_model(), make_source(entries=entries))


def test_what_transformers_has_no_class_for_is_refused() -> None:
    custom = dataclasses.replace(TINY, architecture="custom", pooler=False)
    with pytest.raises(InputError, match=r'model\.architecture = "custom": transformers has no'):
        export_folder(make_model(custom, pair_head=None), make_source())
    without_pooler = dataclasses.replace(TINY, pooler=False)
    with pytest.raises(InputError, match=r"no class of it with .*pooler=False, pair=True"):
        export_folder(make_model(without_pooler), make_source())
