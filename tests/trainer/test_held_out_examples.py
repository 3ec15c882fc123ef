"""Held-out text with one word hidden, as the report shows it."""

from __future__ import annotations

import pytest

from pipeline.config import MaskingConfig
from pipeline.decoding import decode_instances
from pipeline.instance_set import InstanceSet
from tests.pipeline.small_run import VOCABULARY, write_run
from trainer.report import held_out_examples

RULES = MaskingConfig(probability=0.3)


@pytest.fixture(scope="module")
def instances(tmp_path_factory: pytest.TempPathFactory) -> InstanceSet:
    return InstanceSet.open(str(write_run(tmp_path_factory.mktemp("run"))))


def test_the_hidden_word_put_back_gives_the_held_out_text(instances: InstanceSet) -> None:
    decoded = decode_instances(instances, "held_out", 64, RULES, epoch=0)
    texts = [
        " ".join(token.original or token.text for token in one.first_segment).replace(" ##", "")
        for one in decoded
    ]
    examples = held_out_examples(instances, RULES, 5)
    assert len(examples) == 5
    for text, original in examples:
        assert text.count("[MASK]") == 1
        assert original in VOCABULARY
        assert any(text.replace("[MASK]", original) in one for one in texts)
