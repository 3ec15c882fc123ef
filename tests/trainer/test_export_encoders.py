"""Exports without heads, and exports of every family as those open them that want no heads."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from tests.trainer.batches import TINY, VOCAB_SIZE, make_batch, make_model
from tests.trainer.padded_batches import pad
from tests.trainer.test_export_folder import ALBERT, MODERN, ROBERTA, open_quietly, write
from tests.trainer.wordpiece import make_source
from trainer.convert import export_folder, import_folder
from trainer.data.batch import Batch, to_tensors
from trainer.models.encoder_model import EncoderModel
from trainer.settings.model import ModelConfig

FAMILIES = [TINY, ROBERTA, ALBERT, MODERN]
families = pytest.mark.parametrize("config", FAMILIES, ids=lambda one: one.architecture)


def hidden_of(model: EncoderModel, batch: Batch) -> torch.Tensor:
    with torch.inference_mode():
        return model.hidden_states(to_tensors(batch, torch.device("cpu")))


@pytest.mark.parametrize(
    ("config", "pooler", "class_name"),
    [
        (TINY, True, "BertModel"),
        (TINY, False, "BertModel"),
        (ROBERTA, True, "RobertaModel"),
        (ROBERTA, False, "RobertaModel"),
        (ALBERT, True, "AlbertModel"),
        (ALBERT, False, "AlbertModel"),
        (MODERN, False, "ModernBertModel"),
    ],
    ids=lambda value: value.architecture if isinstance(value, ModelConfig) else str(value),
)
def test_an_encoder_without_heads_is_the_familys_model(
    config: ModelConfig, pooler: bool, class_name: str, tmp_path: Path
) -> None:
    model = EncoderModel(config, VOCAB_SIZE, 0, pooler=pooler, seed=1).eval()
    write(export_folder(model, make_source()), tmp_path)
    options = {} if config is MODERN else {"add_pooling_layer": pooler}
    twin = getattr(transformers, class_name).from_pretrained(tmp_path, **options).eval()
    batch = make_batch([80, 7, 50])
    segments = config.type_vocab_size >= 2
    if not segments:
        batch.token_type_ids[:] = 0
    padded = pad(batch)
    with torch.inference_mode():
        theirs = twin(**padded.inputs(segments=segments))
    hidden = hidden_of(model, batch)
    torch.testing.assert_close(hidden, padded.real(theirs.last_hidden_state), rtol=1e-5, atol=1e-5)
    if pooler:
        pooled = model.pooled(hidden, to_tensors(batch, torch.device("cpu")))
        torch.testing.assert_close(pooled, theirs.pooler_output, rtol=1e-5, atol=1e-5)
    imported = import_folder(str(tmp_path)).model
    assert imported.class_name == class_name
    assert imported.heads.pooler == pooler
    assert not imported.heads.masked_lm
    state = model.state_dict()
    assert imported.state.keys() == state.keys()
    assert all(torch.equal(imported.state[name], value) for name, value in state.items())


@pytest.mark.parametrize("class_name", ["BertForMaskedLM", "BertModel", "AutoModel"])
def test_other_classes_find_their_weights(tmp_path: Path, class_name: str) -> None:
    model = make_model().eval()
    twin = open_quietly(write(export_folder(model, make_source()), tmp_path), class_name)
    assert torch.equal(twin.get_input_embeddings().weight, model.decoder_weight)


@families
def test_auto_model_and_sentence_transformers_take_the_export_of_every_family(
    config: ModelConfig, tmp_path: Path
) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = make_model(config, pair_head=None).eval()
    write(export_folder(model, make_source()), tmp_path)
    embedder = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu")
    twin = transformers.AutoModel.from_pretrained(tmp_path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = ["the zoo", "hello paris the end"]
    for text, vector in zip(texts, embedder.encode(texts), strict=True):
        ids = np.array(make_source().tokenizer().encode(text).ids)
        batch = dataclasses.replace(
            make_batch([ids.size], pairs=False), input_ids=ids, token_type_ids=np.zeros_like(ids)
        )
        hidden = hidden_of(model, batch)
        np.testing.assert_allclose(vector, hidden.mean(0).numpy(), rtol=1e-4, atol=1e-5)
        with torch.inference_mode():
            theirs = twin(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        torch.testing.assert_close(hidden, theirs, rtol=1e-5, atol=1e-5)
