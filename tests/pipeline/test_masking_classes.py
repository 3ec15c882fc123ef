"""What masking must know of a vocabulary, and which vocabularies it refuses."""

from __future__ import annotations

import pytest

from pipeline.errors import ConfigError
from pipeline.masking import token_classes


def test_token_classes_of_a_vocabulary():
    classes = token_classes(["[PAD]", "[unused0]", "##a", "a", "##", "[MASK]", "[X]"], [0, 5, 6])
    assert classes.maskable.tolist() == [False, True, True, True, True, False, False]
    assert classes.continuation.tolist() == [False, False, True, False, False, False, False]
    assert classes.random_ids.tolist() == [2, 3, 4]
    assert classes.mask_id == 5


@pytest.mark.parametrize(
    ("vocabulary", "special_ids", "message"),
    [
        (["[PAD]", "a"], [0], r"has no \[MASK\]"),
        (["[PAD]", "[MASK]", "a"], [0], r"\[MASK\] \(id 1\)"),
        (["[PAD]", "[MASK]", "[unused1]"], [0, 1], "special and unused entries only"),
        (["[MASK]", "a"], [0, 2], "special id 2"),
        (["[MASK]", "a"], [0, -1], "special id -1"),
    ],
)
def test_a_vocabulary_that_cannot_be_masked_is_refused(vocabulary, special_ids, message):
    with pytest.raises(ConfigError, match=message):
        token_classes(vocabulary, special_ids)
