from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import InputError
from pipeline.vocabulary import count_words, merge_counts, split_counts
from tests.pipeline.vocabulary.word_counts import counts_of, texts, uncased


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
