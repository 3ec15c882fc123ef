from __future__ import annotations

import collections
import functools
import itertools
import json
import random
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from pipeline.errors import ConfigError, InputError
from pipeline.vocabulary import (
    SPECIAL_TOKENS,
    NormalizationTable,
    TextRules,
    build_tokenizer,
    count_words,
    merge_counts,
    read_vocab,
    split_counts,
    train_wordpiece,
    vocab_txt,
)

ENTRIES = [*SPECIAL_TOKENS, "a", "b", "##b", "##c"]


@functools.cache
def uncased() -> NormalizationTable:
    return NormalizationTable.build(TextRules())


def texts(rows: list[str]) -> pa.LargeStringArray:
    return pa.array(rows, pa.large_string())


def counts_of(words: dict[str, int]) -> pa.Table:
    counts = pa.array(list(words.values()), pa.int64())
    return pa.table({"word": texts(list(words)), "count": counts})


def train(
    words: dict[str, int],
    vocab_size: int,
    *,
    min_frequency: int = 1,
    alphabet_limit: int = 1000,
) -> list[str]:
    return train_wordpiece(
        counts_of(words),
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        min_frequency=min_frequency,
        alphabet_limit=alphabet_limit,
    )


def reference(words: dict[str, int], vocab_size: int, min_frequency: int) -> tuple[list[str], bool]:
    """Recount every pair before each merge; also tell whether any choice was between equals."""
    pieces = {word: [word[0], *("##" + letter for letter in word[1:])] for word in words}
    forms = {piece for spelling in pieces.values() for piece in spelling}
    alphabet = sorted(forms, key=lambda piece: (len(piece) > 1, piece))
    entries = [*SPECIAL_TOKENS, *alphabet]
    tied = False
    while len(entries) < vocab_size:
        pairs: collections.Counter[tuple[str, str]] = collections.Counter()
        for word, spelling in pieces.items():
            for pair in itertools.pairwise(spelling):
                pairs[pair] += words[word]
        if not pairs or max(pairs.values()) < min_frequency:
            break
        best = max(pairs.values())
        equals = [pair for pair, count in pairs.items() if count == best]
        tied |= len(equals) > 1
        left, right = min(equals, key=lambda pair: (entries.index(pair[0]), entries.index(pair[1])))
        merged = left + right[2:]
        if merged not in entries:
            entries.append(merged)
        for spelling in pieces.values():
            place = 0
            while place + 1 < len(spelling):
                if (spelling[place], spelling[place + 1]) == (left, right):
                    spelling[place : place + 2] = [merged]
                place += 1
    return entries, tied


class TestCountWords:
    def test_counts_normalised_words_in_the_order_of_their_bytes(self) -> None:
        counts = count_words(texts(["The the, the", "", "Caf\u00e9 \u4e2d\u6587"]), uncased())
        assert counts.to_pydict() == {
            "word": [",", "cafe", "the", "\u4e2d", "\u6587"],
            "count": [1, 1, 3, 1, 1],
        }
        assert counts.schema.types == [pa.large_string(), pa.int64()]

    def test_white_space_of_any_kind_separates_words(self) -> None:
        counts = count_words(texts(["you\tnice\xa05\u2028x\ny\rz\u3000w"]), uncased())
        assert counts["word"].to_pylist() == ["5", "nice", "w", "x", "y", "you", "z"]

    def test_marks_in_another_order_are_one_word(self) -> None:
        # Two Adlam marks of different classes, which stripping accents leaves and reorders.
        one, other = "\U0001e900\U0001e944\u302e", "\U0001e900\u302e\U0001e944"
        counts = count_words(texts([one, other, one + " a"]), uncased())
        assert counts["count"].to_pylist() == [1, 3]

    def test_more_words_than_the_table_begins_with(self) -> None:
        words = [f"w{number}" for number in range(5000)]
        counts = count_words(texts([" ".join(words), " ".join(words[:10])]), uncased())
        expected = {word: 2 if place < 10 else 1 for place, word in enumerate(words)}
        assert dict(zip(*counts.to_pydict().values(), strict=True)) == expected

    def test_null_row_is_refused_with_its_number(self) -> None:
        with pytest.raises(InputError, match="row 1 is null"):
            count_words(pa.array(["a", None], pa.large_string()), uncased())

    def test_a_slice_counts_its_own_rows_only(self) -> None:
        counts = count_words(texts(["a", "b b", "c", "d"]).slice(1, 2), uncased())
        assert counts.to_pydict() == {"word": ["b", "c"], "count": [2, 1]}

    @settings(deadline=None)
    @given(st.lists(st.text(st.sampled_from("aAb\u00e9 ,\u4e2d\u0301"), max_size=12)))
    def test_partitions_and_buckets_do_not_change_the_counts(self, rows: list[str]) -> None:
        whole = merge_counts([count_words(texts(rows), uncased())])
        for partitions in 2, 5:
            parts = [count_words(texts(rows[i::partitions]), uncased()) for i in range(partitions)]
            split = [split_counts(part, 3) for part in parts]
            reduced = [merge_counts(bucket) for bucket in zip(*split, strict=True)]
            assert merge_counts(reduced).equals(whole)


class TestMergeCounts:
    def test_most_frequent_first_then_by_bytes(self) -> None:
        merged = merge_counts([counts_of({"b": 2, "a": 1}), counts_of({"a": 1, "\u00e9": 9})])
        assert merged.to_pydict() == {"word": ["\u00e9", "a", "b"], "count": [9, 2, 2]}

    def test_nothing_gives_an_empty_table(self) -> None:
        assert merge_counts([]).num_rows == 0

    def test_total_beyond_64_bits_is_refused(self) -> None:
        with pytest.raises(InputError, match=f"{2**63} words in all"):
            merge_counts([counts_of({"a": 2**62}), counts_of({"a": 2**62})])

    def test_count_below_one_is_refused(self) -> None:
        with pytest.raises(InputError, match="'a' has count 0"):
            merge_counts([counts_of({"a": 0})])


class TestTrainWordPiece:
    @settings(deadline=None, max_examples=200)
    @given(
        st.dictionaries(
            st.text(st.sampled_from("ab\u00e9\U0001d518"), min_size=1, max_size=8),
            st.integers(1, 4) | st.integers(2**31, 2**40),
            min_size=1,
            max_size=30,
        ),
        st.integers(14, 60),
        st.integers(1, 3),
    )
    def test_equals_recounting_every_pair_before_each_merge(
        self, words: dict[str, int], vocab_size: int, min_frequency: int
    ) -> None:
        expected, _ = reference(words, vocab_size, min_frequency)
        if len(expected) < vocab_size:
            with pytest.raises(ConfigError, match=f"at most {len(expected)} entries"):
                train(words, vocab_size, min_frequency=min_frequency)
        else:
            assert train(words, vocab_size, min_frequency=min_frequency) == expected

    @pytest.mark.parametrize("seed", range(5))
    def test_equals_the_tokenizers_library_where_no_choice_is_tied(self, seed: int) -> None:
        draws = random.Random(seed)
        while True:
            spellings = ("".join(draws.choices("abcd", k=draws.randint(2, 5))) for _ in range(60))
            words = {word: draws.randint(20, 900) for word in spellings}
            base = len(reference(words, 1, 1)[0])
            expected, tied = reference(words, base + 12, 1)
            if not tied:
                break
        library = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        library.pre_tokenizer = pre_tokenizers.Whitespace()
        letters = {letter for word in words for letter in word}
        initials = {word[0] for word in words}
        trainer = trainers.WordPieceTrainer(
            # The library also gives letters that begin no word an entry of their own.
            vocab_size=len(expected) + len(letters - initials),
            special_tokens=list(SPECIAL_TOKENS),
            show_progress=False,
        )
        library.train_from_iterator((f"{w} " * count for w, count in words.items()), trainer)
        theirs = set(library.get_vocab()) - (letters - initials)
        assert theirs == set(train(words, len(expected)))

    def test_does_not_depend_on_the_order_of_the_counts(self) -> None:
        draws = random.Random(0)
        words = {"".join(draws.choices("abcdef", k=draws.randint(1, 7))): 1 for _ in range(300)}
        expected = train(words, 120)
        for _ in range(5):
            shuffled = list(words.items())
            draws.shuffle(shuffled)
            assert train(dict(shuffled), 120) == expected

    def test_many_pairs_and_long_words_grow_the_tables(self) -> None:
        alphabet = [chr(0x4E00 + number) for number in range(400)]
        draws = random.Random(0)
        words = {"".join(draws.choices(alphabet, k=40)): 2 for _ in range(3000)}
        words["abababab" * 20] = 10**6
        entries = train(words, 1000)
        assert len(entries) == len(set(entries)) == 1000
        assert "ab" * 80 in entries

    def test_counts_beyond_32_bits_rank_right(self) -> None:
        # 2**32 + 1 truncated to 32 bits would be 1, and "cd" would come first.
        assert train({"ab": 2**32 + 1, "cd": 3, "ab cd": 1}, 11)[-1] == "ab"

    def test_character_total_beyond_64_bits_is_refused(self) -> None:
        with pytest.raises(InputError, match=r"lower the\s+corpus weights"):
            train({"abcd": 2**61}, 20)

    def test_special_tokens_come_first_in_the_order_given(self) -> None:
        assert train({"ab": 1}, 8) == [*SPECIAL_TOKENS, "a", "##b", "ab"]

    def test_a_character_has_both_forms_where_it_occurs_so(self) -> None:
        assert set(train({"ab": 1, "ba": 1, "c": 1}, 10)) == {
            *SPECIAL_TOKENS,
            *("a", "b", "c", "##a", "##b"),
        }

    def test_alphabet_limit_keeps_the_frequent_then_the_smaller_code_point(self) -> None:
        words = {"\u4e03": 5, "\u4e02": 5, "\u4e01": 5, "\u4e04": 9}
        assert train(words, 8, alphabet_limit=3)[5:] == ["\u4e01", "\u4e02", "\u4e04"]

    def test_printable_ascii_is_never_left_out(self) -> None:
        words = {chr(0x4E00 + number): 40 for number in range(1200)} | {"?": 30}
        entries = train(words, 1005, alphabet_limit=1000)
        assert "?" in entries
        assert len(entries) == 1005

    def test_a_larger_alphabet_than_the_vocabulary_is_an_error_before_training(self) -> None:
        words = {chr(0x4E00 + number): 1 for number in range(5000)}
        with pytest.raises(ConfigError, match=r"vocab_size = 1000: .* are 1005 entries"):
            train(words, 1000, alphabet_limit=1000)

    def test_no_entry_is_white_space(self) -> None:
        entries = train({"\xa0": 9, "a\u2028": 9, "\u3000": 5, "ab": 1}, 8)
        assert not [entry for entry in entries if entry.removeprefix("##").isspace()]

    def test_empty_counts_are_refused(self) -> None:
        with pytest.raises(InputError, match="the corpus has no words"):
            train({}, 10)

    def test_size_below_one_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="vocab_size = 0"):
            train({"a": 1}, 0)


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

    def test_misplaced_special_token_is_refused(self) -> None:
        with pytest.raises(InputError, match=r"\[PAD\] has id 1: it must be there once, with id 0"):
            read_vocab(vocab_txt(["a", *SPECIAL_TOKENS]))

    def test_bytes_that_are_not_utf8_are_refused_with_their_place(self) -> None:
        with pytest.raises(InputError, match="byte 6: not UTF-8"):
            read_vocab(b"[PAD]\n\xff\n")


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
