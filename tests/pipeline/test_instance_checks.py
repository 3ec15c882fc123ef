"""Which instances are refused, and which are warned of."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.config import InstancesConfig, MaskingConfig, PipelineConfig
from pipeline.contract import LABEL_COUNTS
from pipeline.document_encoding import EncodingVocabulary
from pipeline.encoding import WordPieceEncoder
from pipeline.errors import ConfigError, InputError
from pipeline.instance_checks import require_instances, warnings_of
from pipeline.instance_shards import plan_block
from pipeline.normalization import NormalizationTable, TextRules
from pipeline.vocabulary import SPECIAL_TOKENS, build_tokenizer, special_ids
from tests.pipeline.nsp_reference import Documents, encoded, numbered

RULES = TextRules()
NORMALIZATION = NormalizationTable.build(RULES)
# Id 5 is an ideograph, 6 a piece of a word; `numbered` documents count on from 10.
ENTRIES = [*SPECIAL_TOKENS, "我", "##琵", *(f"word{number}" for number in range(60_000))]
ENCODER = WordPieceEncoder(build_tokenizer(ENTRIES, RULES).to_str(), None, NORMALIZATION)
KNOWN = EncodingVocabulary.of(ENTRIES, special_ids(ENTRIES), ENCODER, NORMALIZATION)


def counts_of(documents: Documents, objective: str = "nsp") -> dict[str, Any]:
    config = InstancesConfig(objective=objective)
    _, counts = plan_block(encoded(documents), config, KNOWN, max_seq_length=32, seed=7)
    return counts


@pytest.mark.parametrize(
    ("shape", "objective", "message"),
    [
        # One document alone: there is no random document to take B from.
        ([[3, 3, 3]], "nsp", "every pair of 1 would follow: .* there are 1"),
        ([[5] * 10_000], "nsp", "every pair of .* would follow"),
        # A blank line after every sentence; a thousand of them must end as fast.
        ([[2], [2], [2]], "nsp", "none from 3 documents: no document has two sentences"),
        ([[6]] * 1000, "nsp", "none from 1000 documents: no document has two sentences"),
        ([[6]] * 1000, "sop", "none from 1000 documents: no document has two sentences"),
        ([], "nsp", "none from 0 documents"),
        ([[0], []], "full_sentences", "none from 2 documents: all are empty"),
        ([[3, 3]], "sop", "every pair of 1 would be (in order|swapped): too few"),
    ],
)
def test_instances_that_teach_nothing_are_refused(
    shape: list[list[int]], objective: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        require_instances(counts_of(numbered(shape), objective), objective)


@pytest.mark.parametrize(
    ("shape", "objective"),
    [
        ([[3, 3, 3, 3] * 50] * 2, "nsp"),
        ([[5] * 10_000], "sop"),
        ([[6]], "full_sentences"),
        ([[6]], "doc_sentences"),
        ([[6]], "sentence"),
    ],
)
def test_instances_that_teach_something_pass(shape: list[list[int]], objective: str) -> None:
    counts = counts_of(numbered(shape), objective)
    require_instances(counts, objective)
    if objective in LABEL_COUNTS:
        assert sum(counts[name] for name in LABEL_COUNTS[objective]) == counts["instances"]


def warnings(documents: Documents, masking: MaskingConfig | None = None) -> str:
    counts = counts_of(documents)
    return "\n".join(warnings_of(PipelineConfig(masking=masking or MaskingConfig()), counts))


def test_documents_of_fewer_than_two_sentences_are_warned_of_where_they_prevail() -> None:
    pairs = [[3, 3]] * 4
    assert warnings(numbered(pairs)) == ""
    assert "5 of 9 documents have fewer than two" in warnings(numbered([*pairs, *[[3]] * 5]))


def test_a_cap_far_below_the_probability_is_warned_of_with_the_rate_it_leaves() -> None:
    documents = numbered([[5] * 40] * 20)
    assert warnings(documents, MaskingConfig(max_predictions_per_seq=5)) == ""
    warned = warnings(documents, MaskingConfig(max_predictions_per_seq=1))
    assert "masking.max_predictions_per_seq = 1 caps the" in warned
    assert "% of the tokens at most" in warned


def test_words_of_ideographs_without_a_segmenter_are_warned_of() -> None:
    chinese = [[[5, 6, 5, 10], [11, 5, 6, 12]]] * 4
    whole_word = MaskingConfig(unit="whole_word")
    assert counts_of(chinese)["ideograph_tokens"] == 12
    warned = warnings(chinese, whole_word)
    assert "12 tokens are ideographs, each a word of its own" in warned
    assert warnings(chinese) == ""  # tokens are masked one by one
    assert warnings(numbered([[5, 5]] * 4), whole_word) == ""


def test_a_record_batch_beyond_32_bit_offsets_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"instances\.rows_per_batch = 262144: .* 32-bit offsets"):
        InstancesConfig(max_seq_length=8192, rows_per_batch=262_144, rows_per_shard=262_144)
    InstancesConfig(max_seq_length=8192, rows_per_batch=131_072, rows_per_shard=262_144)
