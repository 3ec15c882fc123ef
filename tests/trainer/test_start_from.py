"""Runs that start from a checkpoint of transformers."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.config import InstancesConfig
from pipeline.errors import ConfigError, InputError
from pipeline.vocabulary import read_start, vocab_txt
from tests.trainer.batches import TINY, VOCAB_SIZE, make_model
from tests.trainer.instance_fixture import VOCABULARY
from tests.trainer.test_pretrain import MODEL, instance_set
from tests.trainer.wordpiece import ENTRIES, make_source
from trainer import config as trainer_config
from trainer.__main__ import main
from trainer.checkpoint import latest, load_model
from trainer.config import TrainerConfig
from trainer.convert import TokenizerSource, export_folder
from trainer.models.encoder_model import EncoderForPreTraining, EncoderModel
from trainer.pretrain import pretrain
from trainer.ranks import Worker
from trainer.run_plan import open_sources
from trainer.settings.optimizer import OptimizerConfig
from trainer.settings.schedule import ScheduleConfig
from trainer.settings.training import EvaluationConfig, TrainingConfig
from trainer.start_from import load_start, start_tables
from trainer.training_run import training_generation, training_manifest


def write_checkpoint(
    folder: Path, model: EncoderModel, source: TokenizerSource | None = None
) -> str:
    folder.mkdir(exist_ok=True)
    for name, content in export_folder(model, source or make_source()).items():
        (folder / name).write_bytes(content)
    return str(folder)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return write_checkpoint(tmp_path / "checkpoint", make_model(seed=8))


def test_embeddings_layers_and_heads_come_from_the_checkpoint(checkpoint: str) -> None:
    model = make_model()
    report = load_start(model, checkpoint, vocab_txt(ENTRIES))
    assert (report.new_tensors, report.unused_tensors, report.new_entries) == ((), (), 0)
    for name, value in make_model(seed=8).state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


def test_a_head_that_the_run_does_not_train_is_left_and_named(checkpoint: str) -> None:
    model = make_model(pair_head=None)
    report = load_start(model, checkpoint, vocab_txt(ENTRIES))
    assert report.unused_tensors == (
        "pair_head.bias",
        "pair_head.weight",
        "pooler.dense.bias",
        "pooler.dense.weight",
    )
    assert "left out of it: pair_head.bias, pair_head.weight, pooler.dense.bias" in str(report)


def test_a_head_that_the_checkpoint_has_not_stays_random_and_is_named(tmp_path: Path) -> None:
    encoder = EncoderModel(TINY, VOCAB_SIZE, 0, pooler=True, seed=8)
    path = write_checkpoint(tmp_path, encoder)
    model = make_model()
    report = load_start(model, path, vocab_txt(ENTRIES))
    heads = ("masked_lm_head.", "pair_head.")
    state, random = model.state_dict(), make_model().state_dict()
    assert report.new_tensors == tuple(sorted(name for name in state if name.startswith(heads)))
    for name in report.new_tensors:
        assert torch.equal(state[name], random[name]), name
    assert torch.equal(state["pooler.dense.weight"], encoder.state_dict()["pooler.dense.weight"])


@pytest.mark.parametrize("multiple", [1, 64])
def test_a_vocabulary_that_grew_keeps_the_rows_it_had(checkpoint: str, multiple: int) -> None:
    # The first [unused] entry became a word, two are new: as vocabulary.start_from makes it.
    entries = [*ENTRIES, "new", "##er"]
    entries[ENTRIES.index("[unused0]")] = "word"
    config = dataclasses.replace(TINY, pad_vocab_size_to_multiple_of=multiple)
    model = EncoderForPreTraining(config, len(entries), 0, pair_head="nsp", seed=1)
    random = model.decoder_weight.detach().clone()
    report = load_start(model, checkpoint, vocab_txt(entries))
    start = make_model(seed=8)
    assert report.new_entries == 2
    assert torch.equal(model.decoder_weight[:VOCAB_SIZE], start.decoder_weight)
    assert torch.equal(model.decoder_weight[VOCAB_SIZE:], random[VOCAB_SIZE:])
    bias = model.masked_lm_head.decoder_bias
    assert bias.shape == model.decoder_weight.shape[:1]
    assert not bias[VOCAB_SIZE:].any()


def test_rows_beyond_the_checkpoints_vocabulary_stay_random(checkpoint: str) -> None:
    # Its table is padded: as many rows as the run has, fewer entries.
    (Path(checkpoint) / "vocab.txt").write_bytes(vocab_txt(ENTRIES[:90]))
    model, random = make_model(), make_model().decoder_weight
    report = load_start(model, checkpoint, vocab_txt(ENTRIES))
    assert report.new_entries == VOCAB_SIZE - 90
    assert torch.equal(model.decoder_weight[:90], make_model(seed=8).decoder_weight[:90])
    assert torch.equal(model.decoder_weight[90:], random[90:])


def test_a_vocabulary_of_more_entries_than_rows_is_refused(checkpoint: str) -> None:
    entries = [*ENTRIES, "new"]
    (Path(checkpoint) / "vocab.txt").write_bytes(vocab_txt(entries))
    model = EncoderForPreTraining(TINY, len(entries), 0, pair_head="nsp", seed=1)
    with pytest.raises(InputError, match=r"vocab\.txt: has 100 entries, the embeddings have 99"):
        load_start(model, checkpoint, vocab_txt(entries))


def test_another_architecture_is_refused_by_its_first_key(checkpoint: str) -> None:
    config = dataclasses.replace(TINY, intermediate_size=48)
    with pytest.raises(ConfigError, match=r"model\.intermediate_size = 48: training\.start_from"):
        load_start(make_model(config), checkpoint, vocab_txt(ENTRIES))
    # What says how to train is the run's own.
    dropout = dataclasses.replace(TINY, hidden_dropout_prob=0.3, initializer_range=0.01)
    load_start(make_model(dropout), checkpoint, vocab_txt(ENTRIES))


def test_another_vocabulary_is_refused_by_its_first_id(checkpoint: str) -> None:
    entries = list(ENTRIES)
    entries[7], entries[8] = entries[8], entries[7]
    with pytest.raises(ConfigError, match=r"id 7 is 'c' in its vocabulary and 'd' in the run's"):
        load_start(make_model(), checkpoint, vocab_txt(entries))
    with pytest.raises(ConfigError, match=r"its vocabulary has 99 entries, the run's 98"):
        load_start(make_model(), checkpoint, vocab_txt(ENTRIES[:-1]))
    (Path(checkpoint) / "vocab.txt").unlink()
    with pytest.raises(ConfigError, match=r"98; build it with .* = \".*/tokenizer\.json\""):
        load_start(make_model(), checkpoint, vocab_txt(ENTRIES[:-1]))
    (Path(checkpoint) / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"has no vocab\.txt and no tokenizer\.json of a WordPi"):
        load_start(make_model(), checkpoint, vocab_txt(ENTRIES))


def test_the_printed_tables_are_a_run_that_starts_there(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(Path(checkpoint), make_model(), make_source(lowercase=False, chinese=False))
    assert main(["import", checkpoint]) == 0
    path = tmp_path / "run.toml"
    path.write_text(capsys.readouterr().out)
    assert path.read_text().startswith("# BertForPreTraining: ")
    settings = trainer_config.load(str(path))
    assert settings.model == TINY
    assert settings.training.start_from == checkpoint
    assert settings.vocabulary.start_from == f"{checkpoint}/vocab.txt"
    assert settings.vocabulary.vocab_size == VOCAB_SIZE
    text = (settings.vocabulary.lowercase, settings.vocabulary.strip_accents)
    assert (*text, settings.vocabulary.handle_chinese_chars) == (False, True, False)
    assert (settings.instances.objective, settings.instances.max_seq_length) == ("nsp", 80)


@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer.json"])
@pytest.mark.parametrize("folder", ["\U0001f600", "\u4e2d\x7f"])
def test_the_printed_tables_name_any_path_and_the_file_with_the_vocabulary(
    tmp_path: Path, folder: str, name: str
) -> None:
    path = write_checkpoint(tmp_path / folder, make_model())
    if name != "vocab.txt":
        (Path(path) / "vocab.txt").unlink()
    tables = tomllib.loads(start_tables(path))
    assert tables["training"]["start_from"] == path
    assert tables["vocabulary"]["start_from"] == f"{path}/{name}"
    assert tables["vocabulary"]["vocab_size"] == VOCAB_SIZE
    assert read_start(f"{path}/{name}").encode() == vocab_txt(ENTRIES)


@pytest.mark.parametrize(
    ("config", "expected", "noted"),
    [
        ({}, (True, True, True), True),  # a BERT's, where nothing else is said: BertTokenizer
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, (False, False, True), False),
        (
            {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True},
            (False, False, True),
            True,
        ),
        ({"tokenizer_class": "BertTokenizer"}, (True, True, True), True),
        ({"tokenizer_class": "BertTokenizer", "do_lower_case": False}, (False, False, True), False),
        ({"tokenizer_class": "BertTokenizer", "do_lower_case": True}, (True, True, True), True),
        ({"do_lower_case": False}, (False, False, True), False),
        (None, (True, True, True), True),
    ],
    ids=str,
)
def test_case_and_accents_are_those_that_the_tokenizer_has(
    tmp_path: Path, config: dict[str, Any] | None, expected: tuple[bool, ...], noted: bool
) -> None:
    path = write_checkpoint(
        tmp_path, make_model(), make_source(lowercase=False, strip_accents=False)
    )
    written = tmp_path / "tokenizer_config.json"
    written.unlink() if config is None else written.write_text(json.dumps(config))
    printed = start_tables(path)
    table = tomllib.loads(printed)["vocabulary"]
    keys = ("lowercase", "strip_accents", "handle_chinese_chars")
    assert tuple(table[key] for key in keys) == expected
    assert ("contradict each other on case" in printed) == noted


@pytest.mark.parametrize("key", ["do_lower_case", "strip_accents", "tokenize_chinese_chars"])
def test_a_switch_of_the_tokenizer_that_is_no_boolean_is_refused_by_name(
    checkpoint: str, key: str
) -> None:
    for value, shown in (("false", '"false"'), (0, "0")):
        (Path(checkpoint) / "tokenizer_config.json").write_text(json.dumps({key: value}))
        with pytest.raises(InputError, match=rf"tokenizer_config\.json: {key} = {shown}: must be"):
            start_tables(checkpoint)


def test_a_run_trains_on_from_the_checkpoint_and_is_named_after_its_bytes(tmp_path: Path) -> None:
    start = EncoderForPreTraining(MODEL, len(VOCABULARY), 0, pair_head=None, seed=11)
    folder = write_checkpoint(tmp_path / "start", start, make_source(entries=VOCABULARY))
    settings = TrainerConfig(
        root=str(tmp_path / "run"),
        instances=InstancesConfig(objective="full_sentences", max_seq_length=64),
        model=MODEL,
        optimizer=OptimizerConfig(learning_rate=1e-9),
        schedule=ScheduleConfig(warmup_steps=1),
        training=TrainingConfig(
            total_steps=2, batch_size=8, micro_batch_size=4, lanes=4, start_from=folder
        ),
        evaluation=EvaluationConfig(batch_size=8),
    )
    instances = instance_set(Path(settings.root), "full_sentences")
    generation = training_generation(settings, instances)
    worker = Worker(rank=0, world_size=1, device=torch.device("cpu"), group=None)
    pretrain(settings, generation, open_sources(settings, instances), worker)
    ref, _ = latest(generation)
    assert ref is not None
    trained = load_model(generation, ref)
    for name, value in start.state_dict().items():
        torch.testing.assert_close(trained[name], value, rtol=0, atol=1e-7)
    manifest = training_manifest(settings, generation, instances)
    assert manifest["start"] == {"new_tensors": (), "unused_tensors": (), "new_entries": 0}

    random = dataclasses.replace(
        settings, training=dataclasses.replace(settings.training, start_from="")
    )
    changed = Path(folder) / "config.json"
    changed.write_text(changed.read_text().replace("0.1", "0.2"))
    names = {
        generation.fingerprint,
        training_generation(random, instances).fingerprint,
        training_generation(settings, instances).fingerprint,
    }
    assert len(names) == 3
