from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from transformers import AutoTokenizer

from pipeline.errors import ConfigError, InputError
from pipeline.vocabulary import (
    SPECIAL_TOKENS,
    TextRules,
    build_tokenizer,
    read_start,
    read_vocab,
    vocab_txt,
)

ENTRIES = [*SPECIAL_TOKENS, "a", "b", "##b", "##c"]


class TestVocabTxt:
    @given(st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]))))
    def test_reads_back_what_it_wrote(self, more: list[str]) -> None:
        kept = [entry for entry in more if entry and not entry.endswith("\r")]
        entries = list(dict.fromkeys([*SPECIAL_TOKENS, *kept]))
        assert read_vocab(vocab_txt(entries)) == entries

    def test_lines_end_at_line_feeds_alone(self) -> None:
        data = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n\u2028\n\xa0\na\n##b\n".encode()
        assert read_vocab(data).index("a") == 7

    def test_byte_order_mark_is_dropped(self) -> None:
        assert read_vocab(b"\xef\xbb\xbf" + vocab_txt(ENTRIES)) == ENTRIES

    def test_windows_line_ends_are_refused(self) -> None:
        with pytest.raises(InputError, match=r"v\.txt: line 1: ends in \\r\\n"):
            read_vocab(vocab_txt(ENTRIES).replace(b"\n", b"\r\n"), "v.txt")

    def test_repeated_entry_is_refused(self) -> None:
        with pytest.raises(InputError, match="'a' is entry 5 and entry 9"):
            read_vocab(vocab_txt([*ENTRIES, "a"]))

    def test_missing_special_token_is_refused(self) -> None:
        with pytest.raises(InputError, match=r"\[MASK\] is missing"):
            read_vocab(vocab_txt([*SPECIAL_TOKENS[:4], "a"]))

    def test_special_tokens_may_have_any_ids(self) -> None:
        assert read_vocab(vocab_txt(["a", *reversed(SPECIAL_TOKENS)]))[0] == "a"

    def test_empty_line_is_refused(self) -> None:
        with pytest.raises(InputError, match="line 6: is empty"):
            read_vocab(vocab_txt([*SPECIAL_TOKENS, "", "a"]))

    def test_bytes_that_are_not_utf8_are_refused_with_their_place(self) -> None:
        with pytest.raises(InputError, match="byte 6: not UTF-8"):
            read_vocab(b"[PAD]\n\xff\n")


class TestReadStart:
    def test_returns_the_text_of_a_checked_file(self, tmp_path: Path) -> None:
        path = tmp_path / "vocab.txt"
        path.write_bytes(vocab_txt(ENTRIES))
        assert read_start(str(path)).split("\n")[:-1] == ENTRIES

    def test_no_path_gives_nothing(self) -> None:
        assert read_start("") == ""

    def test_a_file_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"start_from = .*/v\.txt: no such file"):
            read_start(str(tmp_path / "v.txt"))

    def test_the_file_is_named_where_its_entries_are_wrong(self, tmp_path: Path) -> None:
        path = tmp_path / "vocab.txt"
        path.write_bytes(vocab_txt([*ENTRIES, "a"]))
        with pytest.raises(InputError, match=r"/vocab\.txt: 'a' is entry 5 and entry 9"):
            read_start(str(path))


class TestBuildTokenizer:
    RULES = TextRules(lowercase=True, strip_accents=False)

    @pytest.mark.parametrize("lowercase", [True, False])
    @pytest.mark.parametrize("strip_accents", [True, False])
    def test_transformers_opens_the_files_with_the_same_ids(
        self, tmp_path: Path, lowercase: bool, strip_accents: bool
    ) -> None:
        rules = TextRules(lowercase=lowercase, strip_accents=strip_accents)
        entries = [*SPECIAL_TOKENS, "hacia", "hac\u00eda", "Hacia", "Hac\u00eda", "a", "b", "mask"]
        tokenizer = build_tokenizer(entries, rules)
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "vocab.txt").write_bytes(vocab_txt(entries))
        # transformers 5 rebuilds the normaliser from these, whatever tokenizer.json says.
        switches = {"do_lower_case": lowercase, "strip_accents": strip_accents}
        config = {"tokenizer_class": "BertTokenizer", "mask_token": "[MASK]", **switches}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        opened = AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
        for text in "Hac\u00eda hacia HACIA", "a[MASK]b \u4e2d", "":
            encoding = tokenizer.encode(text, "hacia")
            found = opened(text, "hacia")
            assert found["input_ids"] == encoding.ids
            assert found["token_type_ids"] == encoding.type_ids
        assert opened.mask_token_id == 4

    def test_accents_and_case_are_independent_settings(self) -> None:
        entries = [*SPECIAL_TOKENS, "hacia", "hac\u00eda", "Hac\u00eda", "Hacia"]
        found = {
            (lower, strip): build_tokenizer(
                entries, TextRules(lowercase=lower, strip_accents=strip)
            ).encode("Hac\u00eda", add_special_tokens=False)
            for lower in (True, False)
            for strip in (True, False)
        }
        assert {switches: encoding.tokens for switches, encoding in found.items()} == {
            (True, True): ["hacia"],
            (True, False): ["hac\u00eda"],
            (False, True): ["Hacia"],
            (False, False): ["Hac\u00eda"],
        }

    def test_pair_template_decoder_and_special_tokens(self) -> None:
        tokenizer = build_tokenizer(ENTRIES, self.RULES)
        encoding = tokenizer.encode("ab", "abc")
        assert encoding.tokens == ["[CLS]", "a", "##b", "[SEP]", "a", "##b", "##c", "[SEP]"]
        assert encoding.type_ids == [0, 0, 0, 0, 1, 1, 1, 1]
        assert tokenizer.decode(encoding.ids) == "ab abc"
        assert isinstance(tokenizer.decoder, decoders.WordPiece)

    def test_word_length_limit_is_stored(self) -> None:
        tokenizer = build_tokenizer(ENTRIES, self.RULES, max_input_chars_per_word=3)
        reopened = Tokenizer.from_str(tokenizer.to_str())
        assert reopened.encode("abb abbb", add_special_tokens=False).tokens[-1] == "[UNK]"
        assert reopened.encode("abb", add_special_tokens=False).tokens == ["a", "##b", "##b"]

    def test_the_file_is_the_same_bytes_every_time(self) -> None:
        first = build_tokenizer(ENTRIES, self.RULES).to_str()
        assert all(build_tokenizer(ENTRIES, self.RULES).to_str() == first for _ in range(5))

    def test_vocabulary_without_mask_is_refused(self) -> None:
        with pytest.raises(InputError, match=r"\[MASK\] is missing"):
            build_tokenizer([*SPECIAL_TOKENS[:4], "a"], self.RULES)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": {"type": "BPE"}}, "is not a tokenizer of a WordPiece model"),
        ({"model": [1]}, "is not a tokenizer of a WordPiece model"),
        ({"vocab": [1]}, "model.vocab must be a table"),
        ({"vocab": {"a": "0"}}, "'a' has id '0': must be a whole number"),
        ({"vocab": {"a": 0, "b": 0}}, "id 0 is 'a' and 'b': an id must have one entry"),
        ({"vocab": {"a": 0, "b": 2}}, "no entry has id 1 of 2: ids must be 0, 1, "),
        ({"vocab": {"a\nb": 0}}, "a vocabulary of lines cannot hold it"),
        ({"vocab": {"\ud800": 0}}, "a vocabulary of lines cannot hold it"),
        ({"continuing_subword_prefix": "@"}, "pieces must begin with '##'"),
        ({"added_tokens": [5]}, "added_tokens must be a list of tables"),
        ({"added_tokens": [{"id": 0, "content": "x"}]}, r"id 0 is '\[PAD\]' and 'x'"),
    ],
    ids=str,
)
def test_a_tokenizer_json_that_is_no_vocab_txt_is_refused_by_name_and_id(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    model = {"type": "WordPiece", "vocab": {entry: i for i, entry in enumerate(SPECIAL_TOKENS)}}
    table = {"model": model, "added_tokens": []}
    part = table if changed.keys() & table.keys() else model
    part |= changed
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(table))
    with pytest.raises(InputError, match=f"^{path}: .*{message}"):
        read_start(str(path))


def test_added_tokens_have_their_places_in_the_vocabulary_of_a_tokenizer_json(
    tmp_path: Path,
) -> None:
    # Early files do not name the model's type.
    model = {"max_input_chars_per_word": 100, "vocab": {"[UNK]": 1, "[SEP]": 3, "a": 5, "##b": 6}}
    added = [
        {"id": i, "content": token}
        for i, token in enumerate([*SPECIAL_TOKENS, "a", "##b", "[NEW]"])
    ]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": model, "added_tokens": added}))
    assert read_start(str(path)) == "".join(
        f"{token}\n" for token in (*SPECIAL_TOKENS, "a", "##b", "[NEW]")
    )
    path.write_text("{")
    with pytest.raises(InputError, match=f"{path}: not valid JSON"):
        read_start(str(path))
