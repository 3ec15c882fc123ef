from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from pipeline.errors import ConfigError
from pipeline.masking import token_classes
from pipeline.vocabulary import (
    SPECIAL_TOKENS,
    TextRules,
    build_tokenizer,
    check_user_tokens,
    leading_entries,
    pad_entries,
    required_characters,
    special_ids,
    unused_ids,
    vocab_txt,
)


def test_berts_layout_has_the_ids_of_the_released_vocabularies() -> None:
    entries = leading_entries("bert")
    assert special_ids(entries) == {
        "[PAD]": 0,
        "[UNK]": 100,
        "[CLS]": 101,
        "[SEP]": 102,
        "[MASK]": 103,
    }
    assert entries[1] == "[unused0]"
    assert entries[99] == "[unused98]"
    assert unused_ids(entries) == list(range(1, 100))


def test_the_compact_layout_begins_with_the_special_tokens() -> None:
    assert leading_entries("compact") == list(SPECIAL_TOKENS)


def test_transformers_opens_berts_layout_with_the_same_ids(tmp_path: Path) -> None:
    entries = [*leading_entries("bert"), "a", "##b"]
    tokenizer = build_tokenizer(entries, TextRules())
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "vocab.txt").write_bytes(vocab_txt(entries))
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "strip_accents": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    opened = AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    assert opened("ab x")["input_ids"] == tokenizer.encode("ab x").ids == [101, 104, 105, 100, 102]
    assert (opened.pad_token_id, opened.mask_token_id, len(opened)) == (0, 103, 106)


class TestPadding:
    def test_adds_unused_entries_up_to_the_multiple(self) -> None:
        entries = pad_entries([*SPECIAL_TOKENS, "a"], 8)
        assert entries == [*SPECIAL_TOKENS, "a", "[unused0]", "[unused1]"]
        assert pad_entries(entries, 8) == entries

    def test_numbers_go_on_from_those_there_are(self) -> None:
        assert pad_entries(leading_entries("bert"), 64)[104] == "[unused99]"

    def test_entries_nothing_gives_are_never_random_replacements(self) -> None:
        entries = pad_entries([*leading_entries("bert"), "a", "b"], 64)
        classes = token_classes(entries, sorted(special_ids(entries).values()))
        assert classes.random_ids.tolist() == [104, 105]
        assert not set(classes.random_ids.tolist()) & set(unused_ids(entries))


class TestRequiredCharacters:
    def test_a_cased_vocabulary_has_all_printable_ascii(self) -> None:
        found = required_characters(TextRules(lowercase=False))
        assert found == "".join(map(chr, range(33, 127)))

    def test_an_uncased_one_has_no_capitals_which_no_text_gives(self) -> None:
        found = required_characters(TextRules())
        assert len(found) == 94 - 26
        assert found.lower() == found


class TestUserTokens:
    RULES = TextRules()

    def test_stand_for_whole_words_and_never_cut_one_in_two(self) -> None:
        letters = "overwit"
        entries = [*SPECIAL_TOKENS, "ver", "rw", *letters, *("##" + letter for letter in letters)]
        check_user_tokens(["ver", "rw"], self.RULES, 100)
        encode = Tokenizer.from_str(build_tokenizer(entries, self.RULES).to_str()).encode
        assert encode("ver rw", add_special_tokens=False).tokens == ["ver", "rw"]
        assert encode("overwrite", add_special_tokens=False).tokens == [
            "o",
            *("##v", "##e", "##r", "##w", "##r", "##i", "##t", "##e"),
        ]

    def test_a_token_that_stands_twice_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="user_tokens: 'covid': stands there twice"):
            check_user_tokens(["covid", "corona", "covid"], self.RULES, 100)

    @pytest.mark.parametrize("token", ["covid", "##ing", "\u4e2d", "#", "\U0001f600"])
    def test_words_and_pieces_as_text_gives_them_are_taken(self, token: str) -> None:
        check_user_tokens([token], self.RULES, 100)

    @pytest.mark.parametrize(
        ("token", "given"),
        [
            ("COVID", "'covid'"),
            ("caf\u00e9", "'cafe'"),
            ("new york", "'new york'"),
            ("e-mail", "'e - mail'"),
            ("[ENTITY]", r"'\[ entity \]'"),
            ("##", "'# #'"),
            ("", "'nothing'"),
        ],
    )
    def test_what_no_text_gives_is_refused_with_what_text_gives(
        self, token: str, given: str
    ) -> None:
        with pytest.raises(ConfigError, match=f"text gives {given} for it"):
            check_user_tokens(["fine", token], self.RULES, 100)

    def test_longer_than_a_word_may_be_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="5 characters: words beyond"):
            check_user_tokens(["abcde"], self.RULES, 4)
