"""Instances as a person reads them: masks of both kinds, labels and segments."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.__main__ import main
from pipeline.config import MaskingConfig
from pipeline.decoding import DecodedToken, decode_instances, spaced
from pipeline.errors import InputError
from pipeline.instance_set import InstanceSet
from tests.pipeline.small_run import VOCABULARY, masked_rows, random_rows, write_run

RULES = MaskingConfig(probability=0.5, mask_share=0.4, random_share=0.3)


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory: pytest.TempPathFactory) -> InstanceSet:
    return InstanceSet.open(str(write_run(tmp_path_factory.mktemp("dynamic"))))


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> InstanceSet:
    return InstanceSet.open(str(write_run(tmp_path_factory.mktemp("static"), static_rules=RULES)))


def unmasked(token: DecodedToken) -> str:
    return token.original or token.text


def test_decoding_with_masks_undone_gives_the_original_instances(dynamic: InstanceSet) -> None:
    rows = random_rows(40, seed=0)
    decoded = list(decode_instances(dynamic, "train", 40, RULES, 0))
    assert len(decoded) == 40
    for number, one in enumerate(decoded):
        start, end = rows.offsets[number : number + 2]
        expected = [VOCABULARY[token] for token in rows.input_ids[start:end]]
        assert [unmasked(token) for token in (*one.first_segment, *one.second_segment)] == expected
        assert len(one.first_segment) == rows.first_segment_length[number]
        assert (one.number, one.label) == (number, rows.pair_labels[number])
        assert one.tokens == end - start


def test_static_masks_are_those_of_the_shards(static: InstanceSet) -> None:
    rows = masked_rows(random_rows(40, seed=0), 0, RULES)
    assert rows.masked_offsets is not None and rows.masked_lm_ids is not None
    decoded = list(decode_instances(static, "train", 40, MaskingConfig(), 3))
    for number, one in enumerate(decoded):
        tokens = (*one.first_segment, *one.second_segment)
        start, end = rows.offsets[number : number + 2]
        assert [token.text for token in tokens] == [
            VOCABULARY[token] for token in rows.input_ids[start:end]
        ]
        span = slice(*rows.masked_offsets[number : number + 2])
        originals = [token.original for token in tokens if token.original]
        assert originals == [VOCABULARY[token] for token in rows.masked_lm_ids[span]]


def test_each_kind_of_prediction_is_told_apart(dynamic: InstanceSet) -> None:
    kinds: dict[str, int] = {}
    for one in decode_instances(dynamic, "train", 80, RULES, 0):
        for token in (*one.first_segment, *one.second_segment):
            kinds[token.kind] = kinds.get(token.kind, 0) + 1
            if token.kind == "mask":
                assert token.text == "[MASK]" and str(token) == f"{{[MASK] <- {token.original}}}"
            elif token.kind == "random":
                assert token.text not in ("[MASK]", token.original)
            elif token.kind == "kept":
                assert token.text == token.original and str(token) == f"{{{token.original}}}"
            else:
                assert token.original == ""
                assert (token.kind == "special") == (token.text in ("[CLS]", "[SEP]"))
    assert kinds["special"] == 3 * 80
    predicted = {kind: kinds[kind] for kind in ("mask", "random", "kept")}
    shares = np.array(list(predicted.values())) / sum(predicted.values())
    # About 900 predictions: four standard deviations are under 0.07.
    assert shares == pytest.approx([0.4, 0.3, 0.3], abs=0.07)


def test_dynamic_masks_differ_by_epoch_and_split(dynamic: InstanceSet) -> None:
    def masks(epoch: int) -> list[str]:
        return [
            spaced(one.first_segment) for one in decode_instances(dynamic, "train", 9, RULES, epoch)
        ]

    assert masks(0) == masks(0)
    assert masks(0) != masks(1)


def test_instances_are_numbered_on_over_batches_and_shards(dynamic: InstanceSet) -> None:
    numbers = [one.number for one in decode_instances(dynamic, "train", 60, RULES, 0)]
    assert numbers == [*range(40), *range(1 << 40, (1 << 40) + 20)]
    assert [one.number >> 40 for one in decode_instances(dynamic, "held_out", 1, RULES, 0)] == [2]
    assert list(decode_instances(dynamic, "train", 0, RULES, 0)) == []
    assert len(list(decode_instances(dynamic, "train", 1000, RULES, 0))) == 80


def test_a_split_without_instances_is_refused(dynamic: InstanceSet) -> None:
    with pytest.raises(InputError, match="no test instances"):
        list(decode_instances(dynamic, "test", 1, RULES, 0))


def test_pieces_join_the_word_before_them_unless_one_is_predicted() -> None:
    plain = [DecodedToken(text, "plain") for text in ("play", "##ing", "##s", "now")]
    assert spaced(plain) == "playings now"
    hidden = DecodedToken("[MASK]", "mask", "##ing")
    assert spaced([plain[0], hidden, plain[2], plain[3]]) == "play {[MASK] <- ##ing} ##s now"
    assert spaced([]) == ""


def test_inspect_prints_counts_and_instances(
    dynamic: InstanceSet, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", dynamic.generation.root, "--rows", "2", "--split", "held_out"]) == 0
    printed = capsys.readouterr().out
    for stage in ("documents", "vocabulary", "instances"):
        assert stage in printed
    assert "train.instances" in printed and "kept" in printed
    # The vocabulary's card: of all held-out text and of English.
    assert printed.count("0.987654") == printed.count("12,345") == printed.count("none") == 2
    assert printed.count("next_sentence_label") == 2
    assert printed.count("  A: [CLS]") == 2
    first = next(decode_instances(dynamic, "held_out", 1, MaskingConfig(), 0))
    assert spaced(first.second_segment) in " ".join(printed.split())
