"""Which instances are refused, and which are warned of."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.config import (
    DocumentsConfig,
    InstancesConfig,
    MaskingConfig,
    PipelineConfig,
    SourceConfig,
)
from pipeline.contract import LABEL_COUNTS
from pipeline.document_encoding import EncodingVocabulary
from pipeline.document_keys import are_held_out
from pipeline.encoding import WordPieceEncoder
from pipeline.errors import ConfigError, CorruptError, InputError
from pipeline.instance_checks import (
    mask_warnings,
    require_instances,
    require_split,
    warnings_of,
)
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


def test_pairs_that_are_all_random_are_refused() -> None:
    counts = {"documents": 2, "instances": 1, "is_next": 0, "random_next": 1}
    with pytest.raises(InputError, match=r"every pair of 1 would be random: .* there are 2"):
        require_instances(counts, "nsp")


def test_documents_without_another_to_draw_from_are_counted_and_warned_of() -> None:
    alone, together = (counts_of(numbered([[3, 3, 3, 3]] * number)) for number in (1, 9))
    assert (alone["documents_alone"], together["documents_alone"]) == (1, 0)
    assert counts_of(numbered([[3, 3, 3, 3]]), "sop")["documents_alone"] == 0
    config = PipelineConfig()
    assert "have no other beside them" not in "".join(warnings_of(config, together))
    both = {name: alone[name] + value for name, value in together.items()}
    said = "".join(warnings_of(config, both))
    assert "1 of 10 documents with pairs have no other beside them" in said


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


def masked_counts(**changed: int) -> dict[str, int]:
    """100 instances of 120 maskable tokens, masked as asked for."""
    counts = {"instances": 100, "maskable_tokens": 12_000, "masked_tokens": 1_800}
    return {**counts, "masked_by_mask": 1_440, **changed}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({}, ""),
        ({"masked_tokens": 2_300, "masked_by_mask": 1_840}, ""),
        # Everything counts as special, or a word is all of a row.
        ({"masked_tokens": 0, "masked_by_mask": 0}, "0.0% of the maskable tokens are masked"),
        ({"masked_tokens": 6_000, "masked_by_mask": 4_800}, "50.0% of the .* not about 15.0%"),
        # Elsewhere nested comparisons never chose [MASK] at all.
        ({"masked_by_mask": 0}, r"masking.mask_share = 0.8: \[MASK\] stands for 0.0%"),
    ],
)
def test_masks_far_from_what_was_asked_for_are_told(changed: dict[str, int], message: str) -> None:
    warned = "\n".join(mask_warnings(masked_counts(**changed), MaskingConfig()))
    assert re.search(message, warned) if message else not warned


def test_short_rows_and_limits_are_no_alarm() -> None:
    """An instance of two tokens has one of them masked; a limit is warned of by itself."""
    short = masked_counts(maskable_tokens=200, masked_tokens=100, masked_by_mask=80)
    assert list(mask_warnings(short, MaskingConfig())) == []
    limited = masked_counts(masked_tokens=500, masked_by_mask=400)
    assert list(mask_warnings(limited, MaskingConfig(max_predictions_per_seq=5))) == []


def test_documents_of_the_other_split_are_refused() -> None:
    source = SourceConfig(name="news", format="text", path="x")
    config = PipelineConfig(
        seed=3, documents=DocumentsConfig(sources=(source,), held_out_fraction=0.3)
    )
    keys = [f"news/file#{number}.0" for number in range(300)]
    held_out = are_held_out(keys, 0.3, 3)
    assert 50 < held_out.sum() < 130
    table = pa.table({"document_key": pa.array(keys, pa.large_string())})
    own = {True: table.filter(pa.array(held_out)), False: table.filter(pa.array(~held_out))}
    for split, is_held_out in (("train", False), ("held_out", True)):
        assert require_split(own[is_held_out], split, config, "a") == own[is_held_out].num_rows
        with pytest.raises(
            CorruptError, match=f"a: document news/file#.* of the {split} documents"
        ):
            require_split(own[not is_held_out], split, config, "a")
    # A copy stands where its original is.
    copies = pa.table({"document_key": [keys[int(np.argmax(held_out))].replace(".0", ".7")]})
    assert require_split(copies, "held_out", config, "a") == 1
