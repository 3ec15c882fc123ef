from __future__ import annotations

import functools
import json
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers

from pipeline.encoding import EncodedText, WordPieceEncoder, build_word_table
from pipeline.errors import ConfigError, CorruptError, InputError
from pipeline.normalization import NormalizationTable, TextRules, accent_warnings
from pipeline.pretokenize import WordInterner
from pipeline.vocabulary import (
    SPECIAL_TOKENS,
    build_tokenizer,
    count_words,
    leading_entries,
    pad_entries,
    required_characters,
    train_wordpiece,
)
from pipeline.vocabulary.layout import Layout
from pipeline.vocabulary.training import Algorithm
from pipeline.word_walk import _mix

UNCASED = TextRules()
CASED = TextRules(lowercase=False, strip_accents=False)
RULES = [
    UNCASED,
    CASED,
    TextRules(lowercase=True, strip_accents=False),
    TextRules(lowercase=False, strip_accents=True, handle_chinese_chars=False),
]
LETTERS = "aA\u00e9\u00c9e\u0131\u0130iI\u00df\u1e9e\u03c3\u03c2\u03a3\u4e2d\uac00\u1100\u0e01"
ENTRIES = [
    *SPECIAL_TOKENS,
    *dict.fromkeys(LETTERS + "b!,[]#0\u1161"),
    *("##" + letter for letter in dict.fromkeys(LETTERS + "b\u1161\u0301")),
    *("ab", "##ab", "mask", "aaa", "##ee"),
]
# Marks that outlive accent stripping (and change places), white space, controls, punctuation.
ODD = (
    "\u0301\u0323\u0345\u0334\u302e\u302f\U0001e944\U0001e947\u1b44\ua953\U0001d165\U0001d16d"
    "\0\t\n\r\x85\xa0\u2028\u3000\u200d\ufeff\ufffd\u00ad\ue000 ,!#[]\u2260\u037e\uf900\U0001f4a9"
)


@functools.cache
def normalization(rules: TextRules) -> NormalizationTable:
    return NormalizationTable.build(rules)


@functools.cache
def tokenizer(rules: TextRules) -> Tokenizer:
    built = build_tokenizer(ENTRIES, rules)
    built.encode_special_tokens = True
    return built


@functools.cache
def encoder(rules: TextRules) -> WordPieceEncoder:
    return WordPieceEncoder(tokenizer(rules).to_str(), None, normalization(rules))


def texts(rows: list[str]) -> pa.LargeStringArray:
    return pa.array(rows, pa.large_string())


def rows_of(encoded: EncodedText) -> list[list[int]]:
    return [ids.tolist() for ids in np.split(encoded.ids, encoded.offsets[1:-1])]


def library_ids(rules: TextRules, rows: list[str]) -> list[list[int]]:
    encodings = tokenizer(rules).encode_batch_fast(rows, add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


def library_spans(rules: TextRules, row: str) -> list[list[int]]:
    """The library's offsets, in bytes of the row."""
    encoding = tokenizer(rules).encode(row, add_special_tokens=False)
    return [[len(row[:place].encode()) for place in span] for span in encoding.offsets]


def assert_as_the_library_says(rules: TextRules, rows: list[str]) -> None:
    """Compare ids, word starts and spans."""
    encoded = encoder(rules).encode(texts(rows), with_spans=True)
    assert encoded.offsets[0] == 0
    assert encoded.offsets[-1] == len(encoded.ids) == len(encoded.word_starts)
    assert encoded.spans is not None
    for row, first, end in zip(rows, encoded.offsets, encoded.offsets[1:], strict=False):
        expected = tokenizer(rules).encode(row, add_special_tokens=False)
        assert encoded.ids[first:end].tolist() == expected.ids
        begins = [
            place == 0 or word != expected.word_ids[place - 1]
            for place, word in enumerate(expected.word_ids)
        ]
        assert encoded.word_starts[first:end].tolist() == begins
        assert encoded.spans[first:end].tolist() == library_spans(rules, row)


def library_words(rules: TextRules, row: str) -> list[str]:
    normalized = rules.normalizer().normalize_str(row)
    return [word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normalized)]


@pytest.mark.parametrize("rules", RULES)
def test_every_code_point_between_letters_and_marks_equals_the_library(rules: TextRules) -> None:
    # Whole where characters differ; ideographs of planes 2 and 3 and private use are sampled.
    points = [*range(0x20000), *range(0x20000, 0xE0000, 61), *range(0xE0000, 0xE0200)]
    points += range(0xE0200, 0x110000, 997)
    characters = [chr(point) for point in points if not 0xD800 <= point < 0xE000]
    rows = [
        "".join(f" a{c}b \u00e9\u0301{c}\u0301" for c in characters[first : first + 256])
        for first in range(0, len(characters), 256)
    ]
    interner = WordInterner(normalization(rules), texts([]))
    found = []
    for stream in interner.walk(texts(rows)):
        found += np.split(stream.numbers, stream.row_ends[:-1])
    words = np.array(interner.words().to_pylist(), object)
    for row, numbers in zip(rows, found, strict=True):
        assert words[numbers].tolist() == library_words(rules, row)


def test_planes_the_table_does_not_ask_about_are_kept_as_they_are() -> None:
    text = "".join(map(chr, range(0x40000, 0xE0000)))
    assert library_words(UNCASED, text) == [text]


@pytest.mark.parametrize("rules", RULES)
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_fuzzed_text_equals_the_library(rules: TextRules, data: st.DataObject) -> None:
    letter = st.sampled_from(LETTERS) | st.sampled_from(ODD) | st.characters(codec="utf-8")
    rows = data.draw(st.lists(st.text(letter, max_size=30), max_size=6))
    assert_as_the_library_says(rules, rows)


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize(
    "row",
    [
        "",
        " \t ",
        "a" * 100,
        "a" * 101,
        "\u00e9" * 100 + " " + "\u00e9" * 101,
        "[MASK] [UNK][PAD]a [SEP]",
        "\U0001f4a9\U0001f4a9\U0001f4a9",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "how\tare\xa0you\u2028a\0b\ufeffa",
        "\u0130stanbul \u0131I\u0130i \u03a3\u03c3\u03c2 \u1e9e",
        "\u0e01\u0e33\u0e25\u0e31\u0e07 \u0928\u092e\u0938\u094d\u0924\u0947 \uac00\u1100\u1161",
        "\u302e\U0001e944\u302e\u0345 a\U0001d15e\U0001d16d",
        "a" * 70_000 + ",b",
    ],
)
def test_known_hard_text_equals_the_library(rules: TextRules, row: str) -> None:
    assert_as_the_library_says(rules, [row, "ab", row + "a"])


@pytest.mark.parametrize("layout", ["bert", "compact"])
@pytest.mark.parametrize("algorithm", ["frequency", "likelihood"])
@pytest.mark.parametrize("longest_word", [3, 200])
def test_whatever_the_stage_trains_encodes_as_the_library(
    layout: Layout, algorithm: Algorithm, longest_word: int
) -> None:
    rows = [
        "The cat, the CAT; a cataract \u4e2d\u6587 caf\u00e9s!",
        "tomcats \U0001f600 [MASK] xyz",
        "",
    ]
    trained = train_wordpiece(
        count_words(texts(rows[:1]), normalization(UNCASED)),
        vocab_size=150 + len(leading_entries(layout)),
        leading=[*leading_entries(layout), "tom", "##ts"],
        required=required_characters(UNCASED),
        min_pair_count=1,
        alphabet_limit=100,
        algorithm=algorithm,
    )
    built = build_tokenizer(
        pad_entries(trained.entries, 64), UNCASED, max_input_chars_per_word=longest_word
    )
    built.encode_special_tokens = True
    found = WordPieceEncoder(built.to_str(), None, normalization(UNCASED)).encode(
        texts(rows), with_spans=True
    )
    expected = [built.encode(row, add_special_tokens=False) for row in rows]
    assert rows_of(found) == [encoding.ids for encoding in expected]
    assert found.spans is not None
    assert found.spans.tolist() == [
        [len(row[:place].encode()) for place in span]
        for row, encoding in zip(rows, expected, strict=True)
        for span in encoding.offsets
    ]


def test_text_never_becomes_a_special_token() -> None:
    # Before ids were looked up: "[MASK]" in a corpus must not teach the model a control token.
    encoded = encoder(UNCASED).encode(texts(["[MASK]"]))
    assert encoded.ids.tolist() == [ENTRIES.index(piece) for piece in ("[", "mask", "]")]


def test_emoji_run_is_one_unknown_word() -> None:
    assert encoder(UNCASED).encode(texts(["\U0001f4a9\U0001f4a9\U0001f4a9"])).ids.tolist() == [1]


def test_rows_over_many_blocks_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.pretokenize._BLOCK_BYTES", 7)
    rows = ["ab", "", "", "a b a b a b a b", "b", "", "\u00e9a,"]
    assert rows_of(encoder(UNCASED).encode(texts(rows))) == library_ids(UNCASED, rows)


def test_a_slice_encodes_its_own_rows_only() -> None:
    encoded = encoder(UNCASED).encode(texts(["b", "a", "ab b", "a"]).slice(1, 2))
    assert rows_of(encoded) == library_ids(UNCASED, ["a", "ab b"])


def test_no_rows_give_no_ids() -> None:
    encoded = encoder(UNCASED).encode(texts([]))
    assert encoded.ids.dtype == np.uint16
    assert encoded.offsets.tolist() == [0]


def test_text_of_another_type_or_null_is_refused() -> None:
    with pytest.raises(TypeError, match="string: must be large_string"):
        encoder(UNCASED).encode(pa.array(["a"], pa.string()))
    with pytest.raises(InputError, match="row 0 is null"):
        encoder(UNCASED).encode(pa.array([None, "a"], pa.large_string()))


def test_forgetting_new_words_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.encoding._NEW_BYTES", -1)
    monkeypatch.setattr("pipeline.pretokenize._BLOCK_BYTES", 500)
    tokenizer_json = tokenizer(UNCASED).to_str()
    table = build_word_table(tokenizer_json, texts(["ab", "b"]))
    forgetful = WordPieceEncoder(tokenizer_json, table, normalization(UNCASED))
    for first in range(0, 60, 20):
        rows = [f"ab {'a' * number} b{'a' * number}" for number in range(first, first + 20)]
        assert rows_of(forgetful.encode(texts(rows))) == library_ids(UNCASED, rows)


def words_of_one_hash() -> tuple[str, str]:
    """Two words of 16 letters that the table's hash cannot tell apart."""
    draws = random.Random(0)
    upper_bits = 0xE0E0E0E0E0E0E0E0  # the same in all lower-case letters
    seen: dict[int, bytes] = {}
    while True:
        first = bytes(draws.choices(range(ord("a"), ord("z") + 1), k=8))
        mixed = int(_mix(np.uint64(int.from_bytes(first))))
        other = seen.setdefault(mixed & upper_bits, first)
        if other == first:
            continue
        # The second halves undo the difference of the first.
        apart = (mixed ^ int(_mix(np.uint64(int.from_bytes(other))))).to_bytes(8)
        ends = [
            next((b for b in range(97, 123) if 97 <= b ^ difference <= 122), 0)
            for difference in apart
        ]
        if all(ends):
            end = bytes(b ^ difference for b, difference in zip(ends, apart, strict=True))
            return (first + bytes(ends)).decode(), (other + end).decode()


def test_words_of_one_hash_keep_their_own_ids() -> None:
    one, other = words_of_one_hash()
    digests = set()
    for word in one, other:
        first, second = (np.uint64(int.from_bytes(half.encode())) for half in (word[:8], word[8:]))
        digests.add(int(_mix(_mix(first) ^ second)))
    assert one != other
    assert len(digests) == 1
    tokenizer_json = build_tokenizer([*ENTRIES, one, other], UNCASED).to_str()
    encoder = WordPieceEncoder(tokenizer_json, None, normalization(UNCASED))
    expected = [len(ENTRIES), len(ENTRIES) + 1] * 2
    assert encoder.encode(texts([f"{one} {other} {one} {other}"])).ids.tolist() == expected


def test_large_vocabulary_has_32_bit_ids() -> None:
    entries = [*SPECIAL_TOKENS, *(f"{number:x}" for number in range(1 << 16)), "zz"]
    big = build_tokenizer(entries, UNCASED).to_str()
    encoded = WordPieceEncoder(big, None, normalization(UNCASED)).encode(texts(["zz 0"]))
    assert encoded.ids.dtype == np.uint32
    assert encoded.ids.tolist() == [len(entries) - 1, 5]


class TestWordTable:
    @given(st.sets(st.text(st.sampled_from("ab\u00e9\u4e2d#!"), min_size=1, max_size=120)))
    @settings(deadline=None, max_examples=50)
    def test_holds_the_ids_of_each_word(self, words: set[str]) -> None:
        ordered = sorted(words)
        table = build_word_table(tokenizer(CASED).to_str(), texts(ordered))
        model = tokenizer(CASED).model
        assert table["word"].to_pylist() == ordered
        expected = [[token.id for token in model.tokenize(word)] for word in ordered]
        assert table["ids"].to_pylist() == expected
        assert table.schema.field("ids").type == pa.large_list(pa.uint16())

    def test_a_memory_mapped_table_gives_the_same_ids(self, tmp_path: object) -> None:
        rows = ["ab, aaa", "\u00e9e new"]
        tokenizer_json = tokenizer(UNCASED).to_str()
        words = texts(["ab", ",", "aaa", *(f"w{number}" for number in range(3000))])
        path = f"{tmp_path}/words.arrow"
        table = build_word_table(tokenizer_json, words)
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=1000)
        with pa.memory_map(path) as source:
            mapped = pa.ipc.open_file(source).read_all()
            warm = WordPieceEncoder(tokenizer_json, mapped, normalization(UNCASED))
            assert rows_of(warm.encode(texts(rows))) == library_ids(UNCASED, rows)

    def test_more_words_than_the_library_is_given_at_once(self) -> None:
        words = ["ab"[number & 1] + f"{number:b}".replace("1", "b") for number in range(9000)]
        table = build_word_table(tokenizer(UNCASED).to_str(), texts(words))
        assert table["ids"].to_pylist() == library_ids(UNCASED, words)

    def test_of_another_vocabulary_is_refused(self) -> None:
        other = build_tokenizer([*SPECIAL_TOKENS, "b", "ab", "##a", "##b"], UNCASED).to_str()
        table = build_word_table(other, texts(["ab", "b"]))
        with pytest.raises(ConfigError, match="both must come from one vocabulary"):
            WordPieceEncoder(tokenizer(UNCASED).to_str(), table, normalization(UNCASED))

    def test_with_other_columns_is_refused(self) -> None:
        table = pa.table({"word": texts(["a"])})
        with pytest.raises(CorruptError, match="word table: columns"):
            WordPieceEncoder(tokenizer(UNCASED).to_str(), table, normalization(UNCASED))

    def test_with_a_repeated_word_is_refused(self) -> None:
        table = build_word_table(tokenizer(UNCASED).to_str(), texts(["ab", "ab"]))
        with pytest.raises(InputError, match="2 rows, 1 distinct"):
            WordPieceEncoder(tokenizer(UNCASED).to_str(), table, normalization(UNCASED))

    def test_word_with_nul_is_refused(self) -> None:
        with pytest.raises(InputError, match="a word holds a NUL"):
            build_word_table(tokenizer(UNCASED).to_str(), texts(["a \0 b"]))


class TestNormalizationTable:
    def test_reads_back_from_its_arrow_table(self) -> None:
        built = normalization(UNCASED)
        read = NormalizationTable.from_table(built.to_table())
        assert read.rules == UNCASED
        assert read.to_table().equals(built.to_table(), check_metadata=True)
        for ours, theirs in zip(read.arrays, built.arrays, strict=True):
            np.testing.assert_array_equal(ours, theirs)

    def test_of_other_rules_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="normalization table: built for"):
            WordPieceEncoder(tokenizer(CASED).to_str(), None, normalization(UNCASED))

    def test_another_table_is_refused(self) -> None:
        with pytest.raises(CorruptError, match="not a normalization table"):
            NormalizationTable.from_table(pa.table({"word": texts(["a"])}))


class TestAccentWarnings:
    def test_name_the_languages_whose_spelling_is_changed(self) -> None:
        (warning,) = accent_warnings(UNCASED, ["en", "ja", "fr"])
        assert "language 'ja'" in warning
        assert len(accent_warnings(UNCASED, ["ko", "hi", "th"])) == 3

    def test_are_none_where_accents_stay(self) -> None:
        assert accent_warnings(TextRules(strip_accents=False), ["ja"]) == []

    def test_are_of_marks_that_really_go(self) -> None:
        words = UNCASED.normalizer().normalize_str("\u30d0\u3067 \u0939\u093f\u0902\u0926\u0940")
        assert words == "\u30cf\u3066 \u0939\u093f\u0926\u0940"


class TestTokenizerJson:
    @pytest.mark.parametrize(
        ("part", "value", "message"),
        [
            ("normalizer", None, "normalizer None: must be BertNormalizer"),
            ("normalizer", {"type": "NFC"}, "normalizer NFC: must be BertNormalizer"),
            ("pre_tokenizer", {"type": "Whitespace"}, "pre_tokenizer Whitespace: must be"),
        ],
    )
    def test_that_is_not_berts_is_refused(self, part: str, value: object, message: str) -> None:
        parts = json.loads(tokenizer(UNCASED).to_str())
        parts[part] = value
        with pytest.raises(ConfigError, match=message):
            WordPieceEncoder(json.dumps(parts))

    def test_added_token_that_would_split_words_is_refused(self) -> None:
        added = Tokenizer.from_str(tokenizer(UNCASED).to_str())
        added.add_tokens(["ver"])
        with pytest.raises(ConfigError, match="added token 'ver' is not special"):
            WordPieceEncoder(added.to_str())

    def test_null_strip_accents_follows_lowercase(self) -> None:
        parts = json.loads(tokenizer(UNCASED).to_str())
        parts["normalizer"]["strip_accents"] = None
        assert TextRules.from_normalizer(parts["normalizer"]) == UNCASED
