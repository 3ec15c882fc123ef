"""The ONNX files answer in onnxruntime what our models answer."""

from __future__ import annotations

import importlib.metadata
from typing import cast

import numpy as np
import pytest
import torch

from pipeline.errors import InputError
from tests.trainer.batches import TINY, VOCAB_SIZE, make_batch, make_model
from tests.trainer.padded_batches import pad
from tests.trainer.test_export_folder import ALBERT, MODERN, PADDED, ROBERTA
from trainer.data.batch import to_tensors
from trainer.models.encoder_model import EncoderModel
from trainer.onnx import Output, onnx_bytes
from trainer.settings.model import ModelConfig

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.mark.parametrize(
    ("config", "output"),
    [
        (TINY, "last_hidden_state"),
        (PADDED, "logits"),
        (ROBERTA, "logits"),
        (ALBERT, "logits"),
        (MODERN, "last_hidden_state"),
    ],
    ids=["bert", "padded-vocabulary", "roberta", "albert", "modern"],
)
def test_onnxruntime_answers_the_same_for_batches_of_any_shape(
    config: ModelConfig, output: Output
) -> None:
    model = make_model(config, pair_head=None).eval()
    written = onnx_bytes(model, output)
    # Nothing of the machine that made it: paths, stack traces, names of modules.
    assert b"trainer" not in written
    session = onnxruntime.InferenceSession(written, providers=["CPUExecutionProvider"])
    segments = config.type_vocab_size >= 2
    inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if segments else [])]
    assert [one.name for one in session.get_inputs()] == inputs
    for lengths in ((80, 7, 50), (3,), (20, 20), (1, 2)):
        batch = make_batch(lengths, masked_share=1.0, pairs=False)
        if not segments:
            batch.token_type_ids[:] = 0
        padded = pad(batch)
        arrays = padded.inputs(segments=segments)
        (found,) = session.run([output], {name: value.numpy() for name, value in arrays.items()})
        with torch.inference_mode():
            tensors = to_tensors(batch, torch.device("cpu"))
            logits = model(tensors).masked_logits
            expected = logits if output == "logits" else model.hidden_states(tensors)
        assert found.shape[:2] == padded.input_ids.shape
        assert found.shape[2] == (VOCAB_SIZE if output == "logits" else config.hidden_size)
        real = found[padded.attention_mask == 1]
        np.testing.assert_allclose(real, expected.numpy(), rtol=0, atol=1e-4)


def test_an_encoder_without_heads_has_no_logits() -> None:
    encoder = EncoderModel(TINY, VOCAB_SIZE, 0, pooler=False, seed=0)
    with pytest.raises(InputError, match=r'export\.onnx = "logits": the model has no masked LM'):
        onnx_bytes(encoder, "logits")


def test_weights_that_a_protobuf_cannot_hold_are_refused_by_their_size() -> None:
    config = ModelConfig(hidden_size=2_048, num_attention_heads=32, num_hidden_layers=48)
    model = EncoderModel(config, 100_000, 0, pooler=False, seed=None)
    with pytest.raises(InputError, match=r"the weights have \d{10,} bytes: an ONNX file holds"):
        onnx_bytes(model, "last_hidden_state")


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("trainer.onnx.version", version)
    with pytest.raises(InputError, match=r"needs the package onnx: pip install"):
        onnx_bytes(make_model(), cast(Output, "logits"))
