from __future__ import annotations

import dataclasses
from random import Random

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from tests.trainer.batches import (
    MIXED_LENGTHS,
    TINY,
    VOCAB_SIZE,
    make_batch,
    make_model,
    take_rows,
)
from trainer.batch import Batch, as_tensor, to_tensors
from trainer.convert import export_config, import_state_dict
from trainer.losses import masked_lm_loss, pair_loss
from trainer.model_config import ModelConfig
from trainer.models.encoder_model import EncoderForPreTraining, PreTrainingOutput

CPU = torch.device("cpu")
GELU_NEW = dataclasses.replace(TINY, hidden_act="gelu_new")


def twin_of(config: ModelConfig, dtype: torch.dtype) -> transformers.BertForPreTraining:
    """Return a transformers model with random weights, biases and norms included."""
    table = export_config(config, VOCAB_SIZE, 0)
    twin = transformers.BertForPreTraining(transformers.BertConfig.from_dict(table)).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return twin.to(dtype)


def run_twin(twin: transformers.BertForPreTraining, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Pad the flat batch and return loss, masked logits, pair logits."""
    lengths = np.diff(batch.cu_seqlens)
    grid = (len(lengths), int(lengths.max()))
    input_ids = torch.zeros(grid, dtype=torch.long)
    types = torch.zeros(grid, dtype=torch.long)
    labels = torch.full(grid, -100)
    real = torch.zeros(grid, dtype=torch.long)
    flat_labels = np.full(batch.input_ids.size, -100)
    flat_labels[batch.masked_positions] = batch.masked_lm_ids
    for row, (start, end) in enumerate(zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False)):
        width = int(end - start)
        input_ids[row, :width] = torch.from_numpy(batch.input_ids[start:end])
        types[row, :width] = torch.from_numpy(batch.token_type_ids[start:end])
        labels[row, :width] = torch.from_numpy(flat_labels[start:end])
        real[row, :width] = 1
    output = twin(
        input_ids=input_ids,
        token_type_ids=types,
        attention_mask=real,
        labels=labels,
        next_sentence_label=torch.from_numpy(batch.pair_labels),
    )
    masked_logits = output.prediction_logits[labels != -100]
    return output.loss, masked_logits, output.seq_relationship_logits


def run(model: EncoderForPreTraining, batch: Batch) -> PreTrainingOutput:
    output: PreTrainingOutput = model(to_tensors(batch, CPU))
    return output


def loss_of(model: EncoderForPreTraining, batch: Batch) -> Tensor:
    assert batch.pair_labels is not None
    states, pair_logits = model.states(to_tensors(batch, CPU))
    bias = model.masked_lm_head.decoder_bias
    labels = as_tensor(batch.masked_lm_ids, CPU)
    mlm, _ = masked_lm_loss(states, model.decoder_weight, bias, labels)
    pair, _ = pair_loss(pair_logits, as_tensor(batch.pair_labels, CPU))
    return mlm / batch.masked_lm_ids.size + pair / batch.pair_labels.size


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-9)])
@pytest.mark.parametrize("config", [TINY, GELU_NEW], ids=["gelu", "gelu_new"])
@pytest.mark.parametrize("lengths", [MIXED_LENGTHS, (60, 60), (20, 9)], ids=str)
def test_equals_transformers_in_logits_loss_and_gradients(
    config: ModelConfig, lengths: tuple[int, ...], dtype: torch.dtype, tolerance: float
) -> None:
    twin = twin_of(config, dtype)
    model = make_model(config).to(dtype)
    model.load_state_dict(import_state_dict(twin.state_dict()))
    batch = make_batch(lengths, seed=1)

    loss, masked_logits, pair_logits = run_twin(twin, batch)
    output = run(model, batch)
    torch.testing.assert_close(output.masked_logits, masked_logits, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(output.pair_logits, pair_logits, rtol=tolerance, atol=tolerance)

    ours = loss_of(model, batch)
    torch.testing.assert_close(ours, loss, rtol=tolerance, atol=0.0)
    loss.backward()
    ours.backward()
    expected = import_state_dict(
        {name: parameter.grad for name, parameter in twin.named_parameters()}
    )
    norm = torch.stack([gradient.norm() for gradient in expected.values()]).norm()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert float((parameter.grad - expected[name]).norm()) <= tolerance * float(norm), name


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 80), min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_a_sequence_answers_the_same_alone_and_in_any_order(
    lengths: list[int], random: Random
) -> None:
    model = make_model().double().eval()
    batch = make_batch(lengths, masked_share=0.5)
    order = list(range(len(lengths)))
    random.shuffle(order)
    with torch.inference_mode():
        shuffled = run(model, take_rows(batch, order))
        alone = [run(model, take_rows(batch, [row])) for row in order]
    torch.testing.assert_close(
        shuffled.masked_logits, torch.cat([one.masked_logits for one in alone]), rtol=0, atol=1e-10
    )
    torch.testing.assert_close(
        shuffled.pair_logits, torch.cat([one.pair_logits for one in alone]), rtol=0, atol=1e-10
    )


def test_initial_weights_are_the_published_ones_and_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    model = make_model(dataclasses.replace(TINY, initializer_range=0.02))
    assert torch.equal(torch.get_rng_state(), before)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "layer_norm" in name:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        else:
            assert float(parameter.detach().abs().max()) <= 0.04, name
    # A normal cut at two standard deviations has 0.88 of its standard deviation left.
    deviation = float(model.decoder_weight.detach().std())
    assert deviation == pytest.approx(0.88 * 0.02, rel=0.03)


def test_initial_weights_are_a_function_of_the_seed() -> None:
    first, again, other = (make_model(seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(
        first["encoder.attention.0.qkv.weight"], other["encoder.attention.0.qkv.weight"]
    )
    assert not torch.equal(
        first["encoder.attention.0.qkv.weight"], first["encoder.attention.1.qkv.weight"]
    )


def test_the_decoder_is_the_embedding_after_construction_load_and_conversion() -> None:
    model = make_model()
    model.load_state_dict(make_model(seed=3).state_dict())
    model = model.double()
    assert model.decoder_weight is model.embeddings.word_embeddings.weight
    assert model.masked_lm_head.decoder_bias.shape == (VOCAB_SIZE,)
    assert sum(parameter.numel() for parameter in model.parameters()) == sum(
        parameter.numel() for parameter in twin_of(TINY, torch.float64).parameters()
    )


def test_logits_of_the_states_equal_the_forward_pass() -> None:
    model = make_model().eval()
    batch = make_batch(MIXED_LENGTHS)
    labels = as_tensor(batch.masked_lm_ids, CPU)
    logits = run(model, batch).masked_logits
    states, _ = model.states(to_tensors(batch, CPU))
    bias = model.masked_lm_head.decoder_bias
    loss, _ = masked_lm_loss(states, model.decoder_weight, bias, labels)
    torch.testing.assert_close(loss, functional.cross_entropy(logits, labels, reduction="sum"))
