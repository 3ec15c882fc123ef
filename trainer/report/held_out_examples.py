"""Held-out text with one word hidden: what the report lets the model guess."""

from __future__ import annotations

from itertools import islice

from pipeline.config import MaskingConfig
from pipeline.decoding import DecodedInstance, decode_instances
from pipeline.instance_set import InstanceSet

# Tokens shown on each side of the hidden word, and instances looked through for such words.
_CONTEXT_TOKENS = 16
_INSTANCES = 64


def held_out_examples(
    instances: InstanceSet, rules: MaskingConfig, count: int
) -> list[tuple[str, str]]:
    """Return up to `count` pairs (text with one [MASK], the word it hides), one an instance.

    The word is one of those that the evaluation hides, of letters or digits and of a single
    token, so that one guess can be right.
    """
    decoded = decode_instances(instances, "held_out", _INSTANCES, rules, epoch=0)
    return list(islice(filter(None, map(_example, decoded)), count))


def _example(instance: DecodedInstance) -> tuple[str, str] | None:
    tokens = instance.first_segment[1:-1]  # without [CLS] and [SEP]
    pieces = [token.original or token.text for token in tokens]
    whole = [
        at
        for at, token in enumerate(tokens)
        if token.original.isalnum() and not "".join(pieces[at + 1 : at + 2]).startswith("##")
    ]
    if not whole:
        return None
    at = whole[len(whole) // 2]
    shown = [*pieces[:at], "[MASK]", *pieces[at + 1 :]][max(0, at - _CONTEXT_TOKENS) :]
    text = " ".join(shown[: 2 * _CONTEXT_TOKENS + 1]).replace(" ##", "")
    return text.removeprefix("##"), pieces[at]
