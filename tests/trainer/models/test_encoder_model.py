from __future__ import annotations

import dataclasses
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.batches import (
    MIXED_LENGTHS,
    TINY,
    VOCAB_SIZE,
    make_batch,
    make_model,
    take_rows,
)
from tests.trainer.models.plain_encoder import plain_logits
from tests.trainer.padded_batches import pad
from trainer.data.batch import GridLayout, TensorBatch, as_tensor, check_batch, to_tensors
from trainer.losses import masked_lm_loss
from trainer.models.encoder_model import EncoderForPreTraining, EncoderModel
from trainer.padded import flatten_padded
from trainer.settings.model import ModelConfig

CPU = torch.device("cpu")


def changed(**switches: object) -> ModelConfig:
    return dataclasses.replace(TINY, architecture="custom", **switches)  # type: ignore[arg-type]


ROTARY = {"position_embedding_type": "rotary"}
# 16 of up to 80 tokens are in the window, and two of four layers are local.
LOCAL = {"global_attention_every": 2, "local_attention_window": 16, "num_hidden_layers": 4}
SWITCHES: dict[str, ModelConfig] = {
    "bert": TINY,
    "factorised": changed(embedding_size=12),
    "shared attention": changed(parameter_sharing="attention", num_hidden_layers=3),
    "shared ffn": changed(parameter_sharing="ffn", num_hidden_layers=3),
    "shared": changed(parameter_sharing="all", num_hidden_layers=3),
    "gelu_new": changed(hidden_act="gelu_new"),
    "no segments": changed(type_vocab_size=0),
    "no pooler": changed(pooler=False),
    "offset": changed(position_offset="after_pad_token_id", max_position_embeddings=84),
    "pre-norm": changed(norm_position="pre"),
    "pre-norm, shared": changed(norm_position="pre", parameter_sharing="all"),
    "no biases": changed(bias=False),
    "geglu": changed(feed_forward="geglu"),
    "rotary": changed(**ROTARY),
    "local": changed(**LOCAL),
    "local rotary": changed(**LOCAL, **ROTARY),
    "padded vocabulary": changed(pad_vocab_size_to_multiple_of=64),
    "roberta": dataclasses.replace(
        TINY,
        architecture="roberta",
        type_vocab_size=2,
        pooler=False,
        position_offset="after_pad_token_id",
        max_position_embeddings=84,
    ),
    "albert": dataclasses.replace(
        TINY,
        architecture="albert",
        embedding_size=12,
        parameter_sharing="all",
        hidden_act="gelu_new",
    ),
    "modern": dataclasses.replace(
        TINY,
        architecture="modern",
        **LOCAL,  # type: ignore[arg-type]
        **ROTARY,  # type: ignore[arg-type]
        feed_forward="geglu",
        bias=False,
        norm_position="pre",
        type_vocab_size=0,
        pooler=False,
        pad_vocab_size_to_multiple_of=64,
        scale_output_initializer=True,
    ),
}
PAD_TOKEN_ID = 3


def model_of(name: str) -> EncoderForPreTraining:
    """Return a float64 model with random biases and norms."""
    pair_head = None if name in ("roberta", "modern") else "nsp"
    model = EncoderForPreTraining(
        SWITCHES[name],
        VOCAB_SIZE,
        PAD_TOKEN_ID,
        pair_head=pair_head,  # type: ignore[arg-type]
        seed=0,
    )
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.double().eval()


@pytest.mark.parametrize("name", SWITCHES)
def test_each_switch_and_all_together_equal_the_plain_encoder(name: str) -> None:
    model, batch = model_of(name), make_batch(MIXED_LENGTHS, seed=1)
    # The model turns in float32, as the published one.
    tolerance = 1e-5 if SWITCHES[name].position_embedding_type == "rotary" else 1e-10
    output = model(to_tensors(batch, CPU))
    masked_logits, pair_logits = plain_logits(model, batch)
    torch.testing.assert_close(output.masked_logits, masked_logits, rtol=0, atol=tolerance)
    assert (output.pair_logits is None) == (pair_logits is None)
    if pair_logits is not None:
        torch.testing.assert_close(output.pair_logits, pair_logits, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "modern"])
@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(1, 80), min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_a_sequence_answers_the_same_alone_and_in_any_order(
    name: str, lengths: list[int], random: Random
) -> None:
    model, batch = model_of(name), make_batch(lengths, masked_share=0.5)
    order = list(range(len(lengths)))
    random.shuffle(order)
    tolerance = 1e-6 if name == "modern" else 1e-10
    with torch.inference_mode():
        shuffled = model(to_tensors(take_rows(batch, order), CPU))
        alone = [model(to_tensors(take_rows(batch, [row]), CPU)) for row in order]
    torch.testing.assert_close(
        shuffled.masked_logits,
        torch.cat([one.masked_logits for one in alone]),
        rtol=0,
        atol=tolerance,
    )
    if shuffled.pair_logits is not None:
        pairs = torch.cat([one.pair_logits for one in alone])
        torch.testing.assert_close(shuffled.pair_logits, pairs, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "modern"])
@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=4), st.integers(0, 20), st.integers(0, 99))
def test_neither_width_nor_content_of_padding_changes_an_answer(
    name: str, lengths: list[int], extra: int, seed: int
) -> None:
    model, batch = model_of(name), make_batch(lengths)
    padded = pad(batch, width=max(lengths) + extra)
    real, draw = padded.attention_mask == 1, np.random.default_rng(seed)
    ids = np.where(real, padded.input_ids, draw.integers(0, VOCAB_SIZE, real.shape))
    types = np.where(real, padded.token_type_ids, draw.integers(0, 2, real.shape))
    with torch.inference_mode():
        expected = model.hidden_states(model.inputs(batch))
        flat = flatten_padded(ids, padded.attention_mask, token_type_ids_BL=types)
        found = model.hidden_states(model.inputs(flat))
        # As a file of ONNX computes: on the padding as well.
        grid = TensorBatch(
            input_ids=torch.from_numpy(ids.reshape(-1)),
            token_type_ids=torch.from_numpy(types.reshape(-1)),
            masked_positions=torch.tensor([], dtype=torch.int64),
            layout=GridLayout.of(torch.from_numpy(real)),
        )
        on_grid = model.hidden_states(grid)[torch.from_numpy(real.reshape(-1))]
    assert torch.equal(found, expected)
    tolerance = 1e-6 if name == "modern" else 1e-10
    torch.testing.assert_close(on_grid, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["factorised", "padded vocabulary", "albert", "modern"])
def test_the_loss_of_the_states_is_that_of_the_logits(name: str) -> None:
    model, batch = model_of(name), make_batch(MIXED_LENGTHS)
    labels = as_tensor(batch.masked_lm_ids, CPU)
    logits = model(to_tensors(batch, CPU)).masked_logits
    assert logits.shape == (labels.numel(), VOCAB_SIZE)
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    wanted = torch.autograd.grad(expected, list(model.masked_lm_head.parameters()))
    states, _ = model.states(to_tensors(batch, CPU))
    bias = model.masked_lm_head.decoder_bias
    loss, _ = masked_lm_loss(states, model.decoder_weight, bias, labels, model.vocab_size)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    got = torch.autograd.grad(loss, list(model.masked_lm_head.parameters()))
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)


def test_rows_that_pad_the_vocabulary_learn_nothing_and_are_never_predicted() -> None:
    model, batch = model_of("padded vocabulary"), make_batch(MIXED_LENGTHS)
    assert model.decoder_weight.shape[0] == 128
    with torch.no_grad():
        model.masked_lm_head.decoder_bias[VOCAB_SIZE:] = 1e4
    states, _ = model.states(to_tensors(batch, CPU))
    bias, labels = model.masked_lm_head.decoder_bias, as_tensor(batch.masked_lm_ids, CPU)
    loss, _ = masked_lm_loss(states, model.decoder_weight, bias, labels, model.vocab_size)
    loss.backward()
    assert float(loss.detach()) < 1e4
    for parameter in (model.decoder_weight, bias):
        assert parameter.grad is not None
        assert not parameter.grad[VOCAB_SIZE:].any() and parameter.grad[:VOCAB_SIZE].any()


def test_blocks_that_are_shared_exist_once() -> None:
    def blocks(sharing: str) -> tuple[int, int]:
        encoder = make_model(changed(parameter_sharing=sharing, num_hidden_layers=3)).encoder
        return len(encoder.attention), len(encoder.feed_forward)

    assert [blocks(sharing) for sharing in ("none", "attention", "ffn", "all")] == [
        (3, 3),
        (1, 3),
        (3, 1),
        (1, 1),
    ]


def test_no_biases_leaves_those_of_decoder_and_pair_head() -> None:
    model = make_model(changed(bias=False, embedding_size=12, norm_position="pre"))
    names = [name for name, _ in model.named_parameters() if name.endswith("bias")]
    assert names == ["masked_lm_head.decoder_bias", "pair_head.bias"]


def test_without_pairs_there_is_neither_pair_head_nor_pooler() -> None:
    model = make_model(pair_head=None)
    assert model.pooler is None and model.pair_head is None
    assert model(to_tensors(make_batch((5, 9)), CPU)).pair_logits is None


def test_output_layers_of_a_scaled_initialisation_are_narrower_by_the_depth() -> None:
    plain = changed(hidden_size=64, initializer_range=0.02)
    scaled = dataclasses.replace(plain, scale_output_initializer=True, num_hidden_layers=8)
    before, after = make_model(plain).state_dict(), make_model(scaled).state_dict()
    for name in ("encoder.attention.0.output", "encoder.feed_forward.0.output"):
        torch.testing.assert_close(after[f"{name}.weight"], before[f"{name}.weight"] / 4)
    for name in ("encoder.attention.0.qkv", "encoder.feed_forward.0.intermediate"):
        assert torch.equal(after[f"{name}.weight"], before[f"{name}.weight"])


def test_without_a_seed_a_model_has_shapes_only_until_weights_are_assigned() -> None:
    full = make_model()
    empty = EncoderForPreTraining(TINY, VOCAB_SIZE, 0, pair_head="nsp", seed=None)
    assert all(parameter.is_meta for parameter in empty.parameters())
    empty.load_state_dict(full.state_dict(), assign=True)
    batch = to_tensors(make_batch(MIXED_LENGTHS), CPU)
    torch.testing.assert_close(empty.eval()(batch).masked_logits, full(batch).masked_logits)
    assert empty.decoder_weight is empty.embeddings.word_embeddings.weight


def test_the_bare_encoder_gives_hidden_states_and_pooled_sequences() -> None:
    model = EncoderModel(TINY, VOCAB_SIZE, 0, pooler=True, seed=0)
    batch = to_tensors(make_batch((5, 9)), CPU)
    hidden = model.hidden_states(batch)
    assert hidden.shape == (14, TINY.hidden_size)
    assert model.pooler is not None
    torch.testing.assert_close(model.pooled(hidden, batch), model.pooler(hidden[[0, 5]]))


@pytest.mark.parametrize(("pad_token_id", "longest"), [(0, 513), (1, 512)])
def test_roberta_takes_sequences_as_long_as_its_table_leaves_after_the_padding_id(
    pad_token_id: int, longest: int
) -> None:
    config = dataclasses.replace(SWITCHES["roberta"], max_position_embeddings=514)
    model = EncoderForPreTraining(config, VOCAB_SIZE, pad_token_id, pair_head=None, seed=0).eval()
    assert model.max_seq_length == longest
    batch = make_batch((longest,))
    check_batch(batch, vocab_size=VOCAB_SIZE, max_seq_length=longest, type_vocab_size=2)
    assert model(to_tensors(batch, CPU)).masked_logits.isfinite().all()
    with pytest.raises(IndexError):
        model(to_tensors(make_batch((longest + 1,)), CPU))
