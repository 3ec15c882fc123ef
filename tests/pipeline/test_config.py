"""Configuration: TOML key = flag = field, every field marked, every mistake named."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest

from pipeline import config, identity
from pipeline.config import (
    DocumentsConfig,
    PipelineConfig,
    SourceConfig,
    identity_fields,
)
from pipeline.contract import fingerprint

DEMO = Path(__file__).parents[2] / "deploy/runs/demo.toml"
SOURCE = SourceConfig(name="news", format="jsonl", path="news.jsonl")
BASE = PipelineConfig(documents=DocumentsConfig(sources=(SOURCE,)))

# A valid other value for every leaf field.
OTHER_VALUES: dict[str, Any] = {
    "root": "runs/other",
    "working_storage": "/scratch",
    "seed": 1,
    "ray_address": "auto",
    "documents.sources.0.name": "blogs",
    "documents.sources.0.format": "lines",
    "documents.sources.0.path": "elsewhere.jsonl",
    "documents.sources.0.text_field": "body",
    "documents.sources.0.id_field": "key",
    "documents.sources.0.encoding": "cp1252",
    "documents.sources.0.undecodable": "skip",
    "documents.sources.0.malformed": "skip",
    "documents.sources.0.limit_bytes": 1,
    "documents.sources.0.locale": "de",
    "documents.partitions": 3,
    "documents.held_out_fraction": 0.5,
    "documents.split_bytes": 1,
    "documents.sources.0.sentences": "lines",
    "documents.sources.0.weight": 0.5,
    "documents.language_smoothing": 0.7,
    "documents.cleaning.normalize_nfc": False,
    "documents.cleaning.remove_control": False,
    "documents.cleaning.remove_zero_width": False,
    "documents.cleaning.collapse_white_space": False,
    "documents.cleaning.drop_symbol_lines": True,
    "documents.cleaning.minimum_characters": 2,
    "documents.cleaning.maximum_characters": 9,
    "documents.cleaning.scripts": ("Latn",),
    "documents.cleaning.minimum_script_share": 0.9,
    "documents.cleaning.deduplicate": False,
    "documents.cleaning.deduplicate_paragraphs": 50,
    "vocabulary.vocab_size": 100,
    "vocabulary.lowercase": False,
    "vocabulary.strip_accents": False,
    "vocabulary.handle_chinese_chars": False,
    "vocabulary.algorithm": "likelihood",
    "vocabulary.min_pair_count": 3,
    "vocabulary.layout": "bert",
    "vocabulary.user_tokens": ("word",),
    "vocabulary.start_from": "vocab.txt",
    "vocabulary.new_entries": 7,
    "vocabulary.pad_to_multiple_of": 64,
    "vocabulary.alphabet_coverage": 0.99,
    "vocabulary.alphabet_limit": 5,
    "vocabulary.max_input_chars_per_word": 200,
    "instances.compression": "lz4",
    "instances.max_seq_length": 128,
    "instances.objective": "sop",
    "instances.short_seq_prob": 0.2,
    "instances.duplicate_factor": 2,
    "instances.rows_per_batch": 512,
    "instances.rows_per_shard": 262_144,
    "masking.mode": "static",
    "masking.unit": "whole_word",
    "masking.amount": "bernoulli",
    "masking.max_ngram": 4,
    "masking.probability": 0.2,
    "masking.mask_share": 0.7,
    "masking.random_share": 0.05,
    "masking.max_predictions_per_seq": 20,
    "cluster.workers": 1,
    "cluster.object_store_bytes": 100_000_000,
    "cluster.metrics_port": 9_000,
}
# What a field's other value cannot go without.
COMPANIONS: dict[str, dict[str, Any]] = {
    "vocabulary.algorithm": {"min_pair_count": 3},
    "vocabulary.start_from": {"new_entries": 7},
    "vocabulary.new_entries": {"start_from": "base.txt"},
}


def leaf_fields(value: Any, operational: bool = False, key: str = "") -> Iterator[tuple[str, bool]]:
    """(dotted key, whether it or what it lies in is operational) of every leaf field."""
    if isinstance(value, tuple):
        for number, one in enumerate(value):
            yield from leaf_fields(one, operational, f"{key}{number}.")
        return
    hints = get_type_hints(type(value), include_extras=True)
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        is_operational = operational or get_args(hints[field.name])[1] == "operational"
        tables = isinstance(inner, tuple) and all(map(dataclasses.is_dataclass, inner)) and inner
        if dataclasses.is_dataclass(inner) or tables:
            yield from leaf_fields(inner, is_operational, f"{key}{field.name}.")
        else:
            yield key + field.name, is_operational


FIELDS = dict(leaf_fields(BASE))
IDENTITY = [key for key, operational in FIELDS.items() if not operational]
OPERATIONAL = [key for key, operational in FIELDS.items() if operational]


def changed(value: Any, path: list[str], new: Any) -> Any:
    """The config with the leaf at `path` replaced."""
    head, *rest = path
    if isinstance(value, tuple):
        number = int(head)
        return (*value[:number], changed(value[number], rest, new), *value[number + 1 :])
    inner = changed(getattr(value, head), rest, new) if rest else new
    return dataclasses.replace(value, **{head: inner})


def with_other(base: PipelineConfig, key: str) -> PipelineConfig:
    table = key.split(".")[0]
    companions = COMPANIONS.get(key, {})
    if companions:
        with_both = dataclasses.replace(
            getattr(base, table), **companions, **{key.split(".")[1]: OTHER_VALUES[key]}
        )
        result = dataclasses.replace(base, **{table: with_both})
    else:
        result = changed(base, key.split("."), OTHER_VALUES[key])
    assert result != base
    return result


def fingerprints(settings: PipelineConfig) -> dict[str, str]:
    """Each data stage's fingerprint, its inputs being the stages before it."""
    documents = fingerprint(
        "documents", identity=identity.documents_identity(settings), inputs={"news": "0" * 64}
    )
    vocabulary = fingerprint(
        "vocabulary",
        identity=identity.vocabulary_identity(settings),
        inputs={"documents": documents},
    )
    instances = fingerprint(
        "instances",
        identity=identity.instances_identity(settings),
        inputs={"documents": documents, "vocabulary": vocabulary},
    )
    return {"documents": documents, "vocabulary": vocabulary, "instances": instances}


def changed_stages(before: PipelineConfig, after: PipelineConfig) -> set[str]:
    first, second = fingerprints(before), fingerprints(after)
    return {stage for stage in first if first[stage] != second[stage]}


def test_every_field_has_another_value_to_try() -> None:
    assert set(FIELDS) == set(OTHER_VALUES)


@pytest.mark.parametrize("key", OPERATIONAL)
def test_an_operational_field_changes_no_fingerprint(key: str) -> None:
    base = with_other(BASE, "vocabulary.new_entries") if key == "vocabulary.start_from" else BASE
    assert changed_stages(base, with_other(base, key)) == set()


@pytest.mark.parametrize("key", IDENTITY)
@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_an_identity_field_changes_exactly_the_stages_that_depend_on_it(
    key: str, mode: str
) -> None:
    base = changed(BASE, ["masking", "mode"], mode)
    other = "dynamic" if mode == "static" else "static"
    after = (
        changed(base, ["masking", "mode"], other)
        if key == "masking.mode"
        else with_other(base, key)
    )
    table = key.split(".")[0]
    expected = {
        "seed": {"documents", "vocabulary", "instances"},
        "documents": {"documents", "vocabulary", "instances"},
        "vocabulary": {"vocabulary", "instances"},
        "instances": {"instances"},
        # With dynamic masks the shards hold none, so only the mode itself shapes them.
        "masking": {"instances"} if mode == "static" or key == "masking.mode" else set(),
    }
    assert changed_stages(base, after) == expected[table]


def test_a_fingerprint_depends_on_inputs_versions_and_stage() -> None:
    def made(stage: str = "documents", source: str = "a", icu: str = "1") -> str:
        return fingerprint(stage, identity={}, inputs={"source": source}, versions={"icu": icu})

    assert made() == made()
    assert len({made(), made(stage="vocabulary"), made(source="b"), made(icu="2")}) == 4
    assert len(made()) == 20 and int(made(), 16) >= 0


def config_classes() -> list[type]:
    return [
        one
        for one in vars(config).values()
        if isinstance(one, type)
        and one.__name__.endswith("Config")
        and dataclasses.is_dataclass(one)
    ]


def described_fields(cls: type) -> set[str]:
    """Fields of a class that a docstring follows."""
    (body,) = (
        node.body
        for node in ast.parse(inspect.getsource(sys.modules[cls.__module__])).body
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__
    )
    return {
        field.target.id
        for field, following in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(following, ast.Expr)
        and isinstance(following.value, ast.Constant)
    }


@pytest.mark.parametrize("cls", config_classes())
def test_every_field_is_marked_identity_or_operational_and_explained(cls: type) -> None:
    hints = get_type_hints(cls, include_extras=True)
    described = described_fields(cls)
    for field in dataclasses.fields(cls):
        assert get_origin(hints[field.name]) is Annotated, field.name
        assert get_args(hints[field.name])[1] in ("identity", "operational"), field.name
        # A table's own class describes it.
        assert field.name in described or dataclasses.is_dataclass(field.default), field.name
        assert field.kw_only
    assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert "__slots__" in vars(cls)


def test_a_field_without_a_marker_is_a_programming_error() -> None:
    @dataclasses.dataclass
    class Unmarked:
        size: int = 1

    with pytest.raises(TypeError, match=r"Unmarked\.size has no identity marker"):
        identity_fields(Unmarked())


def test_identity_fields_leave_operational_fields_out_at_every_depth() -> None:
    fields = identity_fields(BASE)
    assert set(fields) == {"seed", "documents", "vocabulary", "instances", "masking"}
    assert fields["documents"]["sources"] == [
        {
            "name": "news",
            "format": "jsonl",
            "text_field": "text",
            "id_field": "",
            "encoding": "auto",
            "undecodable": "fail",
            "malformed": "fail",
            "limit_bytes": 0,
            "locale": "en",
            "sentences": "icu",
            "weight": 1.0,
        }
    ]
    assert fields["masking"] == dataclasses.asdict(BASE.masking)


def test_the_demo_preset_loads() -> None:
    settings = config.load(str(DEMO))
    table = tomllib.loads(DEMO.read_text(encoding="utf-8"))
    assert settings.root == "runs/demo"
    assert settings.documents.sources[0].format == "python_docstrings"
    assert settings.instances.max_seq_length == table["instances"]["max_seq_length"]
    # The model's embeddings must hold every position and entry that the data half makes.
    assert table["model"]["max_position_embeddings"] >= settings.instances.max_seq_length
