"""JSON Lines: one object a line."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import SourceConfig
from tests.pipeline.cleaned import clean_text
from tests.pipeline.corpus.reading import failure, read_all, read_reported, source_of


def jsonl(path: Path, *records: Any) -> SourceConfig:
    path.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    return source_of(path, "jsonl")


def test_a_json_line_is_a_document_whatever_its_text_holds(tmp_path: Path) -> None:
    source = jsonl(
        tmp_path / "a.jsonl", {"text": "one\n\ntwo", "id": 1}, {"text": ""}, {"text": "x"}
    )
    assert [text for _, _, text in read_all(source)] == ["one\n\ntwo", "", "x"]


def test_the_text_field_is_configurable(tmp_path: Path) -> None:
    jsonl(tmp_path / "a.jsonl", {"body": "one", "text": 3})
    source = source_of(tmp_path / "a.jsonl", "jsonl", text_field="body")
    assert [text for _, _, text in read_all(source)] == ["one"]


def test_an_escaped_lone_surrogate_has_no_text_but_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a\\ud800b \\ud83d\\ude00"}\n')
    ((_, _, text),) = read_all(source_of(path, "jsonl"))
    assert clean_text(text) == "ab \U0001f600"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not a JSON object"),
        ("not json", "not a JSON object"),
        ("[" * 100_000, "not a JSON object"),
        ("[1]", 'no string field "text"; set documents.sources[s].text_field'),
        ('{"body": "x"}', 'no string field "text"; set documents.sources[s].text_field'),
        ('{"text": null}', 'no string field "text"'),
    ],
    ids=["cut", "words", "deep", "list", "other_field", "null"],
)
def test_a_bad_json_line_names_file_and_byte_offset(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "é"}}\n{line}\n', encoding="utf-8")
    message = failure(source_of(path, "jsonl"))
    assert f"{path}: byte offset 15: {reason}" in message


def test_a_dotted_path_leads_to_a_nested_field(tmp_path: Path) -> None:
    source = jsonl(
        tmp_path / "a.jsonl", {"meta": {"body": "nested"}}, {"meta.body": "of that name", "meta": 1}
    )
    source = source_of(source.path, "jsonl", text_field="meta.body")
    assert [text for _, _, text in read_all(source)] == ["nested", "of that name"]


def test_an_identifier_takes_the_place_of_the_offset(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    jsonl(path, {"text": "x", "meta": {"id": "b"}}, {"text": "y", "meta": {"id": 7}})
    source = source_of(path, "jsonl", id_field="meta.id")
    assert read_all(source) == [("a.jsonl", "b", "x"), ("a.jsonl", "7", "y")]


def test_equal_identifiers_in_a_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    jsonl(path, *({"text": "x", "id": number % 2_999} for number in range(3_000)))
    message = failure(source_of(path, "jsonl", id_field="id"))
    assert '"id" is "0" as in an earlier record' in message and f"{path}: byte offset " in message


@pytest.mark.parametrize("value", [None, 1.5, True, [1]])
def test_an_identifier_is_a_string_or_a_whole_number(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "a.jsonl"
    jsonl(path, {"text": "x", "id": value})
    message = failure(source_of(path, "jsonl", id_field="id"))
    assert f'{path}: byte offset 0: no string or whole number "id"' in message


def test_malformed_lines_are_skipped_and_counted_if_the_source_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x"}\nnot json\n[1]\n{"text": null}\n{}\n"s"\n{"text": "y"}\n')
    found, report = read_reported(source_of(path, "jsonl", malformed="skip"))
    assert found == ["x", "y"]
    assert report.counts["malformed_skipped"] == 5
    assert report.places[1] == f'{path}: byte offset 23: no string field "text"'
    assert report.places[0].startswith(f"{path}: byte offset 14: not a JSON object: ")


def test_lone_surrogates_become_replacement_characters_and_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"text": "a\\ud800b \\ud83d\\ude00", "id": "\\udfff"}\n{"text": "\\u00e9", "id": 1}\n'
    )
    found, report = read_reported(source_of(path, "jsonl", id_field="id"))
    assert found == ["a\ufffdb \U0001f600", "\xe9"]
    assert report.counts["texts_with_lone_surrogates"] == 2


def test_text_that_is_no_utf8_follows_the_policy_inside_json(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "ok"}\n{"text": "caf\xe9"}\n')
    assert f"{path}: byte offset 28: not UTF-8 (byte 0xe9)" in failure(source_of(path, "jsonl"))
    found, report = read_reported(source_of(path, "jsonl", undecodable="replace"))
    assert found == ["ok", "caf\ufffd"]
    assert report.counts["undecodable_replaced"] == 1


@given(st.lists(st.dictionaries(st.just("text"), st.text(), min_size=1), max_size=5))
def test_every_object_that_json_writes_is_read(records: list[dict[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.jsonl")
        # A first line, since a source of empty files alone is refused.
        jsonl(path, {"text": "first"}, *records)
        found = [text for _, _, text in read_all(source_of(path, "jsonl"))]
    assert found == ["first", *(record["text"] for record in records)]


def test_whole_numbers_of_any_size_identify_documents(tmp_path: Path) -> None:
    numbers = [2**63, 2**64, 2**64 + 1, -(10**40)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"text": "x", "id": {number}}}\n' for number in numbers))
    found = read_all(source_of(path, "jsonl", id_field="id"))
    assert [key for _, key, _ in found] == [str(number) for number in numbers]
    path.write_text('{"text": "x", "id": 1.5}\n')
    assert 'no string or whole number "id"' in failure(source_of(path, "jsonl", id_field="id"))
