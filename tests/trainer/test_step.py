from __future__ import annotations

import dataclasses
import functools
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor
from torch._dynamo.utils import counters

from pipeline.errors import TrainingError
from tests.trainer.batches import MIXED_LENGTHS, TINY, make_batch, make_model, take_rows
from trainer import reduction
from trainer.data.batch import Batch, to_tensors
from trainer.divergence import DivergenceError
from trainer.losses import masked_lm_loss, pair_loss
from trainer.models.encoder_model import EncoderForPreTraining
from trainer.optim import make_optimizer
from trainer.settings.optimizer import OptimizerConfig
from trainer.step import EvalResult, StepResult, evaluate, train_step

CPU = torch.device("cpu")
NO_MASKS = make_batch([12], seed=3, masked_share=0.0)
NO_PAIRS = make_batch([40, 9], seed=4, pairs=False)


def do_step(model: EncoderForPreTraining, batches: Sequence[Batch], **changed: Any) -> StepResult:
    arguments: dict[str, Any] = {
        "step": 0,
        "seed": 0,
        "rank": 0,
        "learning_rate": 0.01,
        "clip_norm": 1.0,
        "precision": "fp32",
        "device": CPU,
        "group": None,
    }
    optimizer = changed.pop("optimizer", None) or make_optimizer(model, OptimizerConfig())
    return train_step(model, optimizer, batches, **(arguments | changed))


def gradients(model: EncoderForPreTraining) -> dict[str, Tensor]:
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(gradient is not None for gradient in found.values())
    return {name: gradient.clone() for name, gradient in found.items() if gradient is not None}


def assert_same_gradients(
    got: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float
) -> None:
    norm = float(torch.stack([gradient.norm() for gradient in expected.values()]).norm())
    for name, gradient in got.items():
        assert float((gradient - expected[name]).norm()) <= tolerance * norm, name


def assert_same_result(got: StepResult, expected: StepResult) -> None:
    assert dataclasses.asdict(got) == pytest.approx(dataclasses.asdict(expected), rel=1e-5)


def figures(result: EvalResult) -> dict[str, Any]:
    """The figures over all sources."""
    beside = ("by_source", "not_evaluated")
    return {name: value for name, value in dataclasses.asdict(result).items() if name not in beside}


def plain_gradients(model: EncoderForPreTraining, batch: Batch) -> tuple[dict[str, Tensor], float]:
    """Return the gradients of the mean losses of one whole batch, and the loss."""
    assert batch.pair_labels is not None
    states, pair_logits = model.states(to_tensors(batch, CPU))
    labels = torch.from_numpy(batch.masked_lm_ids)
    bias = model.masked_lm_head.decoder_bias
    mlm, _ = masked_lm_loss(states, model.decoder_weight, bias, labels)
    pair, _ = pair_loss(pair_logits, torch.from_numpy(batch.pair_labels))
    loss = mlm / len(labels) + pair / len(batch.pair_labels)
    loss.backward()
    return gradients(model), float(loss.detach())


@pytest.mark.parametrize(
    "division", [[[0, 1, 2, 3, 4]], [[0], [1, 2], [3, 4]], [[4], [3, 2, 1, 0]]]
)
def test_accumulated_micro_batches_give_the_gradient_of_the_undivided_batch(
    division: list[list[int]],
) -> None:
    batch = make_batch(MIXED_LENGTHS)
    expected, loss = plain_gradients(make_model().double(), batch)
    model = make_model().double()
    parts = [take_rows(batch, rows) for rows in division]
    result = do_step(model, parts, clip_norm=float("inf"))
    assert_same_gradients(gradients(model), expected, 1e-9)
    assert result.mlm_loss + result.pair_loss == pytest.approx(loss, rel=1e-9)
    assert (result.masked_tokens, result.pairs, result.tokens) == (34, 5, 172)


def test_a_micro_batch_without_targets_adds_zero() -> None:
    batch = make_batch(MIXED_LENGTHS)
    assert batch.pair_labels is not None
    mean_pair = np.append(batch.pair_labels, NO_MASKS.pair_labels)
    model = make_model().double()
    result = do_step(model, [batch, NO_MASKS, NO_PAIRS], clip_norm=float("inf"))
    assert result.pairs == mean_pair.size == 6
    assert result.masked_tokens == 34 + 10

    together = make_model().double()
    losses = [together.states(to_tensors(part, CPU)) for part in (batch, NO_MASKS, NO_PAIRS)]
    masked_ids = torch.from_numpy(np.append(batch.masked_lm_ids, NO_PAIRS.masked_lm_ids))
    states = torch.cat([losses[0][0], losses[2][0]])
    bias = together.masked_lm_head.decoder_bias
    mlm, _ = masked_lm_loss(states, together.decoder_weight, bias, masked_ids)
    pair, _ = pair_loss(torch.cat([losses[0][1], losses[1][1]]), torch.from_numpy(mean_pair))
    (mlm / 44 + pair / 6).backward()
    assert_same_gradients(gradients(model), gradients(together), 1e-9)


def test_a_step_without_any_masked_token_is_refused() -> None:
    with pytest.raises(TrainingError, match="step 0: no masked token"):
        do_step(make_model(), [NO_MASKS])


def test_without_pairs_the_masked_lm_is_trained_alone() -> None:
    model, alone = make_model().double(), make_model().double()
    result = do_step(model, [NO_PAIRS], clip_norm=float("inf"))
    assert result.pair_loss is None
    assert (result.pairs, result.sequences) == (0, NO_PAIRS.cu_seqlens.size - 1)
    states, _ = alone.states(to_tensors(NO_PAIRS, CPU))
    ids = torch.from_numpy(NO_PAIRS.masked_lm_ids)
    mlm, _ = masked_lm_loss(states, alone.decoder_weight, alone.masked_lm_head.decoder_bias, ids)
    (mlm / NO_PAIRS.masked_lm_ids.size).backward()
    assert result.mlm_loss == pytest.approx(
        float(mlm.detach()) / NO_PAIRS.masked_lm_ids.size, rel=1e-9
    )
    for name, gradient in gradients(model).items():
        if name.startswith(("pair_head", "pooler")):
            assert not gradient.any()
    evaluation = evaluate(model, [(0, NO_PAIRS)], device=CPU, group=None)
    assert evaluation.pair_loss is None and evaluation.pair_accuracy is None
    assert evaluation.pairs == 0


def test_a_batch_the_model_cannot_take_is_refused_before_the_forward_pass() -> None:
    with pytest.raises(TrainingError, match=r"row 0 .* 81 tokens"):
        do_step(make_model(), [make_batch([81])])


def test_the_global_norm_is_clipped_and_reported_as_it_was() -> None:
    batch = make_batch(MIXED_LENGTHS)
    free, clipped = make_model(), make_model()
    norm = do_step(free, [batch], clip_norm=float("inf")).grad_norm
    assert do_step(clipped, [batch], clip_norm=norm / 4).grad_norm == norm
    whole = {name: gradient / 4 for name, gradient in gradients(free).items()}
    assert_same_gradients(gradients(clipped), whole, 1e-5)
    expected = torch.nn.utils.get_total_norm(list(gradients(free).values()))
    assert norm == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_value_that_is_not_finite_names_the_step_and_changes_nothing(where: str) -> None:
    model = make_model()
    optimizer = make_optimizer(model, OptimizerConfig())
    do_step(model, [make_batch([30])], optimizer=optimizer)
    if where == "loss":
        with torch.no_grad():
            model.pair_head.bias[0] = torch.inf
    else:
        model.pair_head.bias.register_hook(lambda gradient: gradient * torch.nan)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    name = {"loss": "pair_loss", "gradient": "gradient_norm"}[where]
    with pytest.raises(TrainingError, match=f"step 7: {name} = (nan|inf): not finite"):
        do_step(model, [make_batch([30])], optimizer=optimizer, step=7)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_dropout_is_a_function_of_seed_step_rank_and_micro_batch() -> None:
    config = dataclasses.replace(TINY, hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)
    batch = make_batch(MIXED_LENGTHS)

    def norm(batches: Sequence[Batch] = (batch,), **changed: Any) -> float:
        torch.manual_seed(int(torch.randint(1000, ())))  # the generator's state must not matter
        return do_step(make_model(config), batches, **changed).grad_norm

    base = norm()
    assert norm() == base
    assert base not in (norm(step=1), norm(seed=1), norm(rank=1))
    assert norm([batch, batch]) != base


def test_learning_rate_of_zero_changes_no_weight_and_a_rate_does() -> None:
    model = make_model()
    before = model.decoder_weight.detach().clone()
    do_step(model, [make_batch([30])], learning_rate=0.0)
    assert torch.equal(model.decoder_weight, before)
    do_step(model, [make_batch([30])], learning_rate=0.01)
    assert not torch.equal(model.decoder_weight, before)


def test_bfloat16_is_near_float32() -> None:
    batch = make_batch(MIXED_LENGTHS)
    exact, low = make_model(), make_model()
    expected = do_step(exact, [batch])
    got = do_step(low, [batch], precision="bf16")
    assert got.mlm_loss == pytest.approx(expected.mlm_loss, rel=2e-2)
    assert got.mlm_loss != expected.mlm_loss
    assert_same_gradients(gradients(low), gradients(exact), 5e-2)
    assert all(parameter.dtype == torch.float32 for parameter in low.parameters())


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_activation_checkpointing_changes_no_bit(dropout: float) -> None:
    config = dataclasses.replace(
        TINY, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )
    batch = make_batch(MIXED_LENGTHS)
    plain, saving = make_model(config), make_model(config)
    saving.encoder.activation_checkpointing = True
    kept: dict[EncoderForPreTraining, int] = {}
    for model in (plain, saving):
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, sizes=sizes: sizes.append(tensor.nbytes) or tensor, lambda kept: kept
        ):
            do_step(model, [batch, batch], precision="bf16")
        kept[model] = sum(sizes)
    assert kept[saving] < kept[plain] / 2
    exact = gradients(plain)
    assert all(torch.equal(one, exact[name]) for name, one in gradients(saving).items())


@pytest.mark.filterwarnings("default")  # torch warns about what it does itself
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
def test_compiled_blocks_equal_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    config = dataclasses.replace(TINY, num_hidden_layers=3)
    plain, compiled = make_model(config), make_model(config)
    compiled.encoder.compile_blocks()
    for number, lengths in enumerate(([80, 3], [5, 5, 5])):
        batch = make_batch(lengths, seed=number)
        expected = do_step(plain, [batch], step=number)
        assert_same_result(do_step(compiled, [batch], step=number), expected)
        assert_same_gradients(gradients(compiled), gradients(plain), 1e-5)
    assert compiled.state_dict().keys() == plain.state_dict().keys()


# Looped over; rows that are a grid already; one row; rows padded again.
KINDS_OF_BATCH = [[80, 30], [50, 50, 50], [41], [30, 20]]


@pytest.mark.filterwarnings("default")
def test_layers_and_kinds_of_batch_share_compiled_code_in_bfloat16_with_dropout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A graph for each would pass torch's recompile limit in a model of real depth."""
    # All of torch.compile but the making of machine code, which takes most of its time.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    torch.compiler.reset()
    config = dataclasses.replace(TINY, num_hidden_layers=3, hidden_dropout_prob=0.1)
    compiled = make_model(config)
    compiled.encoder.compile_blocks()
    counters.clear()
    for seed, lengths in enumerate(KINDS_OF_BATCH):
        batch = make_batch(lengths, seed=seed, masked_share=0.9)
        losses = []
        for model, step in ((make_model(config), 0), (compiled, 0), (compiled, 0), (compiled, 1)):
            model.load_state_dict(make_model(config).state_dict())
            losses.append(do_step(model, [batch], step=step, precision="bf16").mlm_loss)
        # The masks are others than those of plain code, but the seed's as well.
        assert losses[1] == pytest.approx(losses[0], rel=0.1)
        assert losses[1] == losses[2] != losses[3]
    assert counters["stats"]["unique_graphs"] == 2  # the end of the attention block; feed-forward


def test_a_parameter_that_no_loss_reaches_is_reported_by_name() -> None:
    model = make_model()
    model.encoder.spare = torch.nn.Linear(3, 3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(TrainingError, match=r"step 0: no loss reaches encoder\.spare\.weight"):
        do_step(model, [make_batch([30])])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_loss_above_the_limit_is_no_update() -> None:
    model = make_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch = make_batch([30])
    with pytest.raises(DivergenceError, match=r"step 3: loss = .* jumped above 0\.5") as caught:
        do_step(model, [batch], step=3, loss_limit=0.5)
    assert caught.value.sequences == 1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    do_step(model, [batch], step=3, loss_limit=100.0)


# The rows of one global batch on each of two ranks, as micro-batches; a step a line.
RANK_ROWS: list[list[list[list[int]]]] = [
    [[[0, 1], [2]], [[3, 4]]],
    [[[0, 1, 2, 3, 4]], []],
    [[[4]], [[0], [1], [2, 3]]],
]


def sent_in_backward(model: EncoderForPreTraining, group: Any) -> tuple[int, int, bool]:
    """How many buckets a backward pass sends, of how many, and whether the sums are right."""
    model.zero_grad()
    reduced = reduction.GradientReduction(model.parameters(), group)
    with reduced.overlapping():
        torch.stack([parameter.sum() for parameter in model.parameters()]).sum().backward()
    sent = len(reduced._sent)
    reduced.send_rest()
    ones = all(bool((gradient == 1.0).all()) for gradient in reduced.wait())
    return sent, len(reduced._buckets), ones


def reduced_nothing(model: EncoderForPreTraining) -> tuple[int, int, bool]:
    """What a rank without a micro-batch does meanwhile."""
    model.zero_grad()
    reduced = reduction.GradientReduction(model.parameters(), dist.group.WORLD)
    reduced.send_rest()
    ones = all(bool((gradient == 1.0).all()) for gradient in reduced.wait())
    return 0, len(reduced._buckets), ones


def two_rank_worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    reduction._BUCKET_BYTES = 4000  # several buckets, though the model is tiny
    model = make_model().double()
    optimizer = make_optimizer(model, OptimizerConfig())
    results = []
    for number, rows_by_rank in enumerate(RANK_ROWS):
        batch = make_batch(MIXED_LENGTHS, seed=number)
        parts = [take_rows(batch, rows) for rows in rows_by_rank[rank]]
        results.append(
            do_step(
                model,
                parts,
                optimizer=optimizer,
                step=number,
                rank=rank,
                group=dist.group.WORLD,
                checkpoint_asked=(rank, number) == (1, 1),
            )
        )
    mine = [make_batch([20, 10], seed=rank)] if rank == 0 else []
    evaluation = evaluate(model, [(0, one) for one in mine], device=CPU, group=dist.group.WORLD)
    with pytest.raises(TrainingError, match="step 9: no masked token"):
        do_step(model, [NO_MASKS], step=9, rank=rank, group=dist.group.WORLD)
    sent = sent_in_backward(model, dist.group.WORLD) if rank == 0 else reduced_nothing(model)
    torch.save((results, evaluation, model.state_dict(), sent), f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


def test_two_ranks_equal_one_process(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(two_rank_worker, args=(str(tmp_path),), nprocs=2)
    saved = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=False) for rank in range(2)]
    (results, evaluation, state, sent), (other_results, other_evaluation, other_state, idle) = saved
    # Every bucket went out before the backward pass had ended; the idle rank added zeros.
    assert sent[0] == sent[1] > 3 and sent[2] and idle == (0, sent[1], True)
    assert results == other_results
    # One rank was asked, and all know.
    assert [one.checkpoint_asked for one in results] == [at == 1 for at in range(len(results))]
    assert evaluation == other_evaluation
    assert all(torch.equal(state[name], other_state[name]) for name in state)

    model = make_model().double()
    optimizer = make_optimizer(model, OptimizerConfig())
    for number, result in enumerate(results):
        batch = make_batch(MIXED_LENGTHS, seed=number)
        expected = dataclasses.replace(result, checkpoint_asked=False)
        assert_same_result(do_step(model, [batch], optimizer=optimizer, step=number), expected)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-6, atol=1e-8)
    alone = evaluate(model, [(0, make_batch([20, 10], seed=0))], device=CPU, group=None)
    assert figures(evaluation) == pytest.approx(figures(alone), rel=1e-6)
