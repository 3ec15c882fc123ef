"""Word boundaries of languages without spaces: ICU's, carried over to the tokens as they are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icu4py.breakers import WordBreaker
from tokenizers import Tokenizer

from pipeline.encoding import WordPieceEncoder
from pipeline.normalization import NormalizationTable, TextRules
from pipeline.vocabulary import SPECIAL_TOKENS, build_tokenizer
from pipeline.word_starts import find_word_starts, is_segmented

compiling = settings(deadline=None, max_examples=200)

HAN = "我喜欢弹琵琶研究生命起源日本語"
KANA = "これは本ですテレビをみる"
THAI = "ภาษาไทยสวัสดีครับ"
LATIN = "abé DON'T 12.5!"
ALPHABET = HAN + KANA + THAI + LATIN + "𠀋😀\u0301\u200d"
UNK = SPECIAL_TOKENS.index("[UNK]")


def entries() -> list[str]:
    """Single characters as words and as pieces, a few longer pieces; 欢 and z are unknown."""
    singles = sorted(set(HAN + KANA + THAI + "abedont'125.!é") - {"欢"})
    longer = ["これ", "##れは", "##です", "ภา", "##ษา", "##ไทย", "##ab", "don"]
    return [*SPECIAL_TOKENS, *singles, *(f"##{one}" for one in singles), *longer]


RULES = {True: TextRules(), False: TextRules(lowercase=False, strip_accents=False)}
TOKENIZERS: dict[bool, Tokenizer] = {key: build_tokenizer(entries(), RULES[key]) for key in RULES}
TABLES = {key: NormalizationTable.build(RULES[key]) for key in RULES}
ENCODERS = {key: WordPieceEncoder(TOKENIZERS[key].to_str(), None, TABLES[key]) for key in RULES}


def ours(texts: list[str], locale: str, lowercase: bool = True) -> list[list[bool]]:
    column = pa.array(texts, pa.large_string())
    encoded = ENCODERS[lowercase].encode(column)
    starts = find_word_starts(
        column,
        encoded.ids,
        encoded.offsets,
        locale=locale,
        vocabulary=entries(),
        unk_id=UNK,
        normalization=TABLES[lowercase],
    )
    assert starts.dtype == np.bool_ and starts.size == encoded.ids.size
    return [one.tolist() for one in np.split(starts, encoded.offsets[1:-1])]


def reference(text: str, locale: str, lowercase: bool = True) -> list[bool]:
    """From the library's own character offsets, a token and a boundary at a time."""
    utf16 = {}
    unit = 0
    for place, character in enumerate(text):
        utf16[unit] = place
        unit += 1 + (ord(character) > 0xFFFF)
    bounds = {utf16[start] for start, _ in WordBreaker(text, locale).segments()} | {0}
    found = []
    before = 0
    for start, end in TOKENIZERS[lowercase].encode(text, add_special_tokens=False).offsets:
        found.append(any(before <= bound <= start for bound in bounds))
        before = end
    return found


@compiling
@given(
    texts=st.lists(st.text(ALPHABET, min_size=1, max_size=24), min_size=1, max_size=5),
    locale=st.sampled_from(["zh", "ja", "th"]),
    lowercase=st.booleans(),
)
def test_word_starts_equal_those_of_the_librarys_offsets(texts, locale, lowercase):
    # The library's offsets of a character that becomes several, or joins a mark, overlap.
    texts = [text.replace("\u0301", "").replace("é", "e") for text in texts]
    assert ours(texts, locale, lowercase) == [reference(text, locale, lowercase) for text in texts]


@compiling
@given(texts=st.lists(st.text(ALPHABET, max_size=24), max_size=5), lowercase=st.booleans())
def test_every_sentence_is_aligned_and_its_first_token_begins_a_word(texts, lowercase):
    for starts in ours(texts, "zh", lowercase) if texts else []:
        assert all(starts[:1])


def test_chinese_words_of_two_ideographs_are_found():
    (starts,) = ours(["我喜欢弹琵琶"], "zh")  # 我 / 喜欢 / 弹 / 琵琶, 欢 is [UNK]
    assert starts == [True, True, False, True, True, False]


def test_thai_words_are_found_inside_of_a_run_without_spaces():
    (starts,) = ours(["ภาษาไทย"], "th")  # ภาษา / ไทย: ภา ##ษา ##ไทย
    assert starts == [True, False, True]


def test_a_boundary_inside_of_a_token_is_passed_over():
    (starts,) = ours(["本ですこれは"], "ja", lowercase=False)  # with their accents
    encoded = ENCODERS[False].encode(pa.array(["本ですこれは"], pa.large_string()))
    tokens = [entries()[token] for token in encoded.ids]
    assert tokens == ["本", "で", "##す", "##こ", "##れは"]
    assert starts == [True, True, False, True, False]  # これ / は meet inside of ##れは


def test_sentences_do_not_depend_on_their_neighbours_or_on_windows():
    texts = ["我喜欢弹琵琶", "これは本です", "abc 12"] * 9000  # more than one window
    alone = [ours([text], "zh")[0] for text in texts[:3]]
    assert ours(texts, "zh") == alone * 9000


def test_no_sentences_have_no_word_starts():
    no_ids = np.zeros(0, np.uint16)
    made = find_word_starts(
        pa.array([], pa.large_string()),
        no_ids,
        np.zeros(1, np.int64),
        locale="zh",
        vocabulary=entries(),
        unk_id=UNK,
        normalization=TABLES[True],
    )
    assert made.size == 0


def test_ids_of_another_text_are_refused():
    column = pa.array(["我", "弹琵琶"], pa.large_string())
    encoded = ENCODERS[True].encode(pa.array(["我", "弹琵"], pa.large_string()))
    with pytest.raises(ValueError, match="sentence 1: its ids are not what"):
        find_word_starts(
            column,
            encoded.ids,
            encoded.offsets,
            locale="zh",
            vocabulary=entries(),
            unk_id=UNK,
            normalization=TABLES[True],
        )


@pytest.mark.parametrize("locale", ["zh", "zh-Hant-TW", "JA", "th_TH", "yue", "my"])
def test_languages_with_a_dictionary_are_known(locale):
    assert is_segmented(locale)


@pytest.mark.parametrize("locale", ["en", "ko", "vi", "zha"])
def test_languages_with_spaces_are_not_segmented(locale):
    assert not is_segmented(locale)
