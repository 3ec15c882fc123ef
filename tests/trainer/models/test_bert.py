from __future__ import annotations

import dataclasses
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from tests.trainer.batches import (
    MIXED_LENGTHS,
    TINY,
    VOCAB_SIZE,
    make_batch,
    make_model,
    take_rows,
)
from trainer.data.batch import Batch, as_tensor, to_tensors
from trainer.losses import masked_lm_loss
from trainer.models.encoder_model import EncoderForPreTraining, PreTrainingOutput

CPU = torch.device("cpu")
GELU_NEW = dataclasses.replace(TINY, hidden_act="gelu_new")


def run(model: EncoderForPreTraining, batch: Batch) -> PreTrainingOutput:
    output: PreTrainingOutput = model(to_tensors(batch, CPU))
    return output


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


def test_logits_of_the_states_equal_the_forward_pass() -> None:
    model = make_model().eval()
    batch = make_batch(MIXED_LENGTHS)
    labels = as_tensor(batch.masked_lm_ids, CPU)
    logits = run(model, batch).masked_logits
    states, _ = model.states(to_tensors(batch, CPU))
    bias = model.masked_lm_head.decoder_bias
    loss, _ = masked_lm_loss(states, model.decoder_weight, bias, labels)
    torch.testing.assert_close(loss, functional.cross_entropy(logits, labels, reduction="sum"))
