"""What a TOML or flag must not say: each refusal names the key, the value and a remedy."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from pipeline import config, identity
from pipeline.command_line import parse_config
from pipeline.config import (
    DocumentsConfig,
    InstancesConfig,
    MaskingConfig,
    PipelineConfig,
    SourceConfig,
)
from pipeline.errors import ConfigError
from tests.pipeline.test_config import (
    DEMO,
    FIELDS,
    OTHER_VALUES,
)


def toml_error(tmp_path: Path, text: str) -> str:
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        config.load(str(path))
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("sed = 1", ["sed: unknown key", "correct its spelling"]),
        ("[documents]\npartitons = 4", ["documents.partitons: unknown key"]),
        ("[modle]\nhidden_size = 4", ["modle: unknown key"]),
        ('[masking]\nmode = "statik"', ["masking.mode", '"statik"', "dynamic", "static"]),
        (
            '[[documents.sources]]\nname = "a"\npath = "b"\nformat = "csv"',
            ["documents.sources.0.format", '"csv"', "text", "jsonl"],
        ),
        ("[[documents.sources]]\nname = 'a'\nformat = 'text'", ["sources.0.path: missing"]),
        ('seed = "1"', ["seed", '"1"', "integer"]),
        ("seed = true", ["seed", "true", "integer"]),
        ("seed = 1.0", ["seed", "1.0", "integer"]),
        ("[masking]\nprobability = '0.15'", ["masking.probability", '"0.15"', "number"]),
        (
            "[documents.cleaning]\ndeduplicate = 1",
            ["documents.cleaning.deduplicate", "1", "boolean"],
        ),
        ("documents = 3", ["documents", "3"]),
    ],
)
def test_a_wrong_key_enum_or_type_is_named_with_its_remedy(
    tmp_path: Path, text: str, parts: list[str]
) -> None:
    message = toml_error(tmp_path, text)
    for part in parts:
        assert part in message
    assert "\n" not in message


SECTION = {
    "documents": [
        ("partitions", "-1", "[0, 100000]"),
        ("partitions", "1000000000", "[0, 100000]"),
        ("held_out_fraction", "1.0", "[0, 1)"),
        ("held_out_fraction", "nan", "[0, 1)"),
        ("split_bytes", "0", "at least 1"),
        ("language_smoothing", "1.5", "[0, 1]"),
    ],
    "documents.cleaning": [
        ("minimum_characters", "0", "at least 1"),
        ("maximum_characters", "-1", "at least 0"),
        ("deduplicate_paragraphs", "-1", "at least 0"),
        ("minimum_script_share", "1.5", "[0, 1]"),
    ],
    "vocabulary": [
        ("vocab_size", "63", "[64, 16777216]"),
        ("min_pair_count", "-1", "at least 0"),
        ("alphabet_limit", "0", "at least 1"),
        ("alphabet_coverage", "0.0", "(0, 1]"),
        ("new_entries", "1", "belongs to start_from"),
        ("pad_to_multiple_of", "0", "[1, 65536]"),
        ("max_input_chars_per_word", "0", "at least 1"),
    ],
    "instances": [
        ("max_seq_length", "7", "[8, 8192]"),
        ("max_seq_length", "8193", "[8, 8192]"),
        ("short_seq_prob", "1.1", "[0, 1]"),
        ("duplicate_factor", "0", "[1, 255]"),
        ("rows_per_batch", "0", "at least 1"),
        ("rows_per_shard", "1000", "multiple of instances.rows_per_batch = 1024"),
    ],
    "masking": [
        ("probability", "0.0", "(0, 1]"),
        ("probability", "1.5", "(0, 1]"),
        ("mask_share", "-0.1", "[0, 1]"),
        ("random_share", "0.3", "masking.mask_share = 0.8"),
        ("max_predictions_per_seq", "-1", ">= 0"),
    ],
    "cluster": [
        ("workers", "-1", "[0, 100000]"),
        ("object_store_bytes", "1", "at least 80000000"),
        ("metrics_port", "65536", "[0, 65535]"),
    ],
}


@pytest.mark.parametrize(
    ("table", "key", "value", "remedy"),
    [(table, *case) for table, cases in SECTION.items() for case in cases],
)
def test_a_value_out_of_range_is_named_with_its_remedy(
    tmp_path: Path, table: str, key: str, value: str, remedy: str
) -> None:
    message = toml_error(tmp_path, f"[{table}]\n{key} = {value}")
    assert f"{table}.{key} = {value}" in message
    assert remedy in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = -1", "seed = -1"),
        (f"seed = {1 << 63}", f"seed = {1 << 63}"),
        ('root = ""', 'root = "": name a directory'),
        ("[[documents.sources]]\nname = ''\nformat = 'text'\npath = 'x'", "give the source a name"),
        (
            "[[documents.sources]]\nname = 'a/b'\nformat = 'text'\npath = 'x'",
            'documents.sources[a/b].name = "a/b": use letters',
        ),
        (
            "[[documents.sources]]\nname = 'a'\nformat = 'text'\npath = ''",
            'documents.sources[a].path = "": name a file',
        ),
        (
            "[[documents.sources]]\nname = 'a'\nformat = 'text'\npath = 'x'\nlimit_bytes = -1",
            "documents.sources[a].limit_bytes = -1: must be >= 0",
        ),
        (
            "[[documents.sources]]\nname = 'a'\npath = 'x'\nencoding = 'latin-99'",
            'documents.sources[a].encoding = "latin-99": name an encoding that Python knows',
        ),
        (
            "[[documents.sources]]\nname = 'a'\nformat = 'text'\npath = 'x'\nid_field = 'id'",
            'documents.sources[a].id_field = "id": format = "text" has no fields; leave it out',
        ),
        (
            "[[documents.sources]]\nname = 'a'\nformat = 'text'\npath = 'x'\n" * 2,
            "names must be distinct",
        ),
        (
            "[documents.cleaning]\nscripts = ['Latn', 'Abcd']",
            'documents.cleaning.scripts = "Abcd": is no script of Unicode',
        ),
        (
            "[documents.cleaning]\nscripts = ['latn']",
            'documents.cleaning.scripts = "latn": is no script of Unicode',
        ),
        (
            "[masking]\namount = 'bernoulli'\nmax_predictions_per_seq = 20",
            "masking.max_predictions_per_seq = 20: limits an exact amount only; leave it out, or",
        ),
        (
            '[vocabulary]\nalgorithm = "likelihood"',
            'vocabulary.min_pair_count = 0: algorithm = "likelihood" needs one',
        ),
        (
            '[vocabulary]\nuser_tokens = ["a", "a"]',
            "vocabulary.user_tokens = ['a', 'a']: must be distinct",
        ),
        (
            '[vocabulary]\nstart_from = "v"\nnew_entries = -1',
            "vocabulary.new_entries = -1: must be at least 0",
        ),
        (
            '[vocabulary]\nstart_from = "v"\nnew_entries = 1\nlayout = "bert"',
            'vocabulary.layout = "bert": with start_from the ids are those of its file',
        ),
        (
            '[vocabulary]\nstart_from = "v"\nnew_entries = 1\nalgorithm = "likelihood"\n'
            "min_pair_count = 9",
            'vocabulary.algorithm = "likelihood": start_from continues by frequency',
        ),
    ],
)
def test_a_rule_over_several_values_is_explained(tmp_path: Path, text: str, message: str) -> None:
    assert message in toml_error(tmp_path, text)


def test_every_wrong_key_is_reported_at_once(tmp_path: Path) -> None:
    message = toml_error(tmp_path, "sed = 1\n[documents]\npartitons = 1\n[vocabulary]\nsize = 1")
    assert len(message.split("\n")) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = 1" + "0" * 5000, "not valid TOML"),
        ("a = " + "[" * 100_000, "not valid TOML"),
        ("[documents]\nsplit_bytes = 1" + "0" * 30, "documents.split_bytes: far beyond 64 bits"),
        ("root = 2020-01-01", "root = 2020-01-01: a date or time; write a string or a number"),
    ],
)
def test_what_toml_can_say_and_no_key_means_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    assert message in toml_error(tmp_path, text)


def test_a_byte_order_mark_is_no_part_of_the_toml(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xef\xbb\xbfseed = 3\n")
    assert config.load(str(path)).seed == 3


def test_the_file_and_the_line_of_bad_toml_are_named(tmp_path: Path) -> None:
    assert "line 2" in toml_error(tmp_path, "seed = 1\nseed = = 2")
    path = tmp_path / "latin1.toml"
    path.write_bytes(b'root = "caf\xe9"')
    with pytest.raises(ConfigError, match="not valid TOML"):
        config.load(str(path))


@pytest.mark.parametrize("name", ["absent.toml", "."])
def test_a_config_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    assert f"--config {path}: cannot read it" in str(caught.value)


def test_whole_numbers_are_taken_for_floats_and_the_trainers_tables_are_left_alone(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[masking]\nprobability = 1\n[model]\nanything = 1\n[training]\nx = 2\n")
    assert config.load(str(path)).masking.probability == 1.0


def flags(key: str, value: Any) -> list[str]:
    if value is False:
        table, _, name = key.rpartition(".")
        return [f"--{table}.no_{name}"]
    values = value if isinstance(value, tuple) else () if value is True else (value,)
    return [f"--{key}", *map(str, values)]


def expected_config(values: dict[str, dict[str, Any]]) -> PipelineConfig:
    """The defaults with these values, by table; all at once, as some belong together."""
    result = dataclasses.replace(PipelineConfig(), **values.pop("", {}))
    for table in sorted(values, key=lambda name: -name.count(".")):
        head, _, rest = table.partition(".")
        inner = getattr(result, head)
        if rest:
            whole = dataclasses.replace(getattr(inner, rest), **values[table])
            inner = dataclasses.replace(inner, **{rest: whole})
        else:
            inner = dataclasses.replace(inner, **values[table])
        result = dataclasses.replace(result, **{head: inner})
    return result


def test_a_flag_is_its_toml_key() -> None:
    # bernoulli allows no limit, and start_from neither another layout nor another algorithm.
    start = {"vocabulary.new_entries", "vocabulary.start_from"}
    for left_out in (
        {"masking.amount", "vocabulary.algorithm", "vocabulary.layout"},
        {"masking.max_predictions_per_seq"} | start,
    ):
        argv: list[str] = []
        values: dict[str, dict[str, Any]] = {}
        for key in FIELDS:
            if not key.startswith("documents.sources") and key not in left_out:
                value = OTHER_VALUES.get(key, "nsp")
                argv += flags(key, value)
                table, _, name = key.rpartition(".")
                values[table] = {**values.get(table, {}), name: value}
        expected = expected_config(values)
        parsed = parse_config(PipelineConfig, config.load, argv, "test")
        places = {
            name: str(Path(getattr(expected, name)).absolute())
            for name in ("root", "working_storage")
        }
        assert parsed == dataclasses.replace(expected, **places)


def test_flags_lie_over_the_config_file_and_reach_its_sources() -> None:
    argv = ["--config", str(DEMO), "--documents.sources.0.limit_bytes", "7", "--seed=5"]
    parsed = parse_config(PipelineConfig, config.load, argv, "test")
    loaded = config.load(str(DEMO))
    assert parsed.seed == 5
    assert parsed.documents.sources[0] == dataclasses.replace(
        loaded.documents.sources[0], limit_bytes=7
    )
    assert parsed.instances == loaded.instances
    assert parse_config(PipelineConfig, config.load, [f"--config={DEMO}"], "test") == parse_config(
        PipelineConfig, config.load, ["--config", str(DEMO)], "test"
    )


def test_flags_may_be_written_with_hyphens() -> None:
    parsed = parse_config(PipelineConfig, config.load, ["--ray-address", "auto"], "test")
    assert parsed.ray_address == "auto"


def test_the_root_means_the_same_in_every_process() -> None:
    def root(value: str) -> str:
        return parse_config(PipelineConfig, config.load, ["--root", value], "test").root

    assert root("s3://bucket/run") == "s3://bucket/run"
    assert root("some/run") == str(Path.cwd() / "some/run")
    assert root("~/run") == str(Path.home() / "run")


def test_masking_defaults_are_those_of_the_paper() -> None:
    # Devlin et al. 2019, 3.1 and A.2.
    rules = MaskingConfig()
    assert (rules.probability, rules.mask_share, rules.random_share) == (0.15, 0.8, 0.1)
    assert InstancesConfig().max_seq_length == 512
    assert InstancesConfig().short_seq_prob == 0.1


def test_the_libraries_that_read_pages_are_part_of_the_documents_identity() -> None:
    def readers(kind: Any) -> set[str]:
        source = SourceConfig(name="s", format=kind, path="x")
        config = PipelineConfig(documents=DocumentsConfig(sources=(source,)))
        return set(identity.documents_identity(config).get("readers", {}))

    assert readers("jsonl") == readers("wet") == set()
    assert readers("mediawiki") == {"mwparserfromhell"}
    assert "trafilatura" in readers("warc")
    assert readers("auto") == readers("mediawiki") | readers("warc")
