"""What a run exports opens in transformers, without a network, and is the trained model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer, BertForPreTraining

from tests.integration.conftest import TrainedRun
from tests.integration.product import run
from tests.integration.run_folder import current, manifest
from tests.trainer.padded_batches import pad
from trainer.data.batch import to_tensors
from trainer.loader import evaluation_batches
from trainer.training_run import trained_model

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def exported(trained: TrainedRun) -> Path:
    return current(trained.root, "export") / "huggingface"


def test_transformers_gives_the_same_logits_and_the_same_held_out_loss(
    trained: TrainedRun, exported: Path
) -> None:
    ours, instances, _ = trained_model(trained.settings)
    theirs = BertForPreTraining.from_pretrained(exported).eval()
    total, targets = 0.0, 0
    for _, batch in evaluation_batches(
        instances,
        seed=trained.settings.seed,
        rules=trained.settings.masking,
        rank=0,
        world_size=1,
        batch_size=64,
    ):
        inputs = pad(batch).inputs()
        with torch.inference_mode():
            expected = theirs(**inputs)
            found = ours(to_tensors(batch, torch.device("cpu")))
        logits_TV = expected.prediction_logits[inputs["attention_mask"].bool()]
        logits_MV = logits_TV[torch.from_numpy(batch.masked_positions)]
        torch.testing.assert_close(found.masked_logits, logits_MV, atol=1e-5, rtol=0.0)
        torch.testing.assert_close(
            found.pair_logits, expected.seq_relationship_logits, atol=1e-5, rtol=0.0
        )
        ids = torch.from_numpy(batch.masked_lm_ids)
        total += float(torch.nn.functional.cross_entropy(logits_MV, ids, reduction="sum"))
        targets += len(ids)
    evaluation = manifest(trained.root, "training")["evaluation"]
    assert targets == evaluation["masked_tokens"] > 500
    assert total / targets == pytest.approx(evaluation["mlm_loss_nats"], abs=1e-4)


def test_auto_tokenizer_encodes_pairs_as_the_shards_hold_them(
    trained: TrainedRun, exported: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(exported)
    _, instances, _ = trained_model(trained.settings)
    assert len(tokenizer) == instances.vocab_size == 600
    encoded = tokenizer("Return the value.", "It is a list.")
    cls_id, sep_id = instances.special_ids["[CLS]"], instances.special_ids["[SEP]"]
    ids = encoded["input_ids"]
    assert ids[0] == cls_id
    assert ids.count(sep_id) == 2
    first = ids.index(sep_id) + 1
    assert encoded["token_type_ids"] == [0] * first + [1] * (len(ids) - first)
    assert tokenizer.decode(ids[1 : first - 1]) == "return the value."


def test_the_model_card_lists_the_heads_of_each_class(exported: Path) -> None:
    card = (exported / "README.md").read_text()
    assert "| `BertForPreTraining` | masked language model, pairs (0: B follows A, " in card
    assert "| `BertForMaskedLM` | masked language model |" in card
    assert "| `BertModel` | pooler |" in card


def test_an_onnx_file_lies_beside_the_export_when_asked_for(
    trained: TrainedRun, config: str, tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    copy = shutil.copytree(trained.root, tmp_path / "run")
    root = ("--config", config, "--root", str(copy))
    run("trainer", "export", *root, "--export.onnx", "last_hidden_state").require_success()
    folder = current(copy, "export") / "huggingface"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = ["Return the value.", "It is a list of names, and a file."]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        expected = AutoModel.from_pretrained(folder).eval()(**inputs).last_hidden_state
    session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx")
    arrays = {name: value.numpy() for name, value in inputs.items()}
    (found,) = session.run(None, arrays)
    real = arrays["attention_mask"] == 1
    np.testing.assert_allclose(found[real], expected.numpy()[real], rtol=0, atol=1e-4)


def test_the_report_and_the_summary_tell_of_the_run(trained: TrainedRun) -> None:
    summary = json.loads((trained.root / "summary.json").read_bytes())
    training = manifest(trained.root, "training")
    assert set(summary) == {
        "documents",
        "eval_mlm_accuracy",
        "eval_mlm_loss_nats",
        "eval_mlm_loss_nats_by_source",
        "eval_mlm_perplexity",
        "eval_nsp_accuracy",
        "instances",
        "peak_rss_bytes",
        "seconds",
        "sequences_seen",
        "tokens",
        "unigram_entropy_nats",
    }
    assert summary["documents"] == manifest(trained.root, "documents")["counts"]["kept"]
    assert summary["eval_mlm_loss_nats"] == training["evaluation"]["mlm_loss_nats"]
    assert set(summary["seconds"]) == {
        "documents",
        "vocabulary",
        "instances",
        "training",
        "export",
    }
    page = (trained.root / "report.html").read_text()
    assert "[MASK]" in page
    assert "<svg" in page or "data:image" in page
    # Self-contained: nothing is fetched.
    assert 'src="http' not in page
    assert "<link" not in page


def test_fill_mask_prints_candidates(trained: TrainedRun, config: str) -> None:
    ended = run(
        "trainer",
        "fill-mask",
        "the function [MASK] a list of [MASK]",
        "--config",
        config,
        "--root",
        str(trained.root),
        "--top",
        "4",
    ).require_success()
    probabilities = [word for word in ended.stdout.split() if word.startswith("0.")]
    assert len(probabilities) == 2 * 4
    assert "[MASK] 1" in ended.stdout
    assert "[MASK] 2" in ended.stdout
