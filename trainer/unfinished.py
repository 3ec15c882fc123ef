"""A training that was begun and not ended is gone on with, or left by a decision, never forgotten.

A changed identity field makes another training. So that a changed line in a TOML does not begin
from nothing unnoticed, `pretrain` refuses while one with checkpoints lies unfinished beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.commit import MANIFEST, Generation, differences, parse_json
from pipeline.contract import canonical_json
from pipeline.errors import ConfigError
from pipeline.storage import Storage

IDENTITY = "identity.json"

_CHECKPOINT = re.compile(r"(training/[0-9a-f]+)/checkpoints/step-(\d+)-attempt-\d+/manifest\.json")


def begin(generation: Generation, facts: Mapping[str, Any]) -> None:
    """Leave what a training's fingerprint is of in its generation; every time the same bytes."""
    generation.storage.create(generation.name(IDENTITY), canonical_json(_keys(facts)))


def _keys(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts under the names that a TOML has for them."""
    return {**facts["identity"], **facts["inputs"], "versions": facts["versions"]}


def refuse_changed(generation: Generation, facts: Mapping[str, Any]) -> None:
    """Raise ConfigError if another training lies unfinished under the root and this one is new.

    It names every key that differs. Trainings that have ended are nobody's loss, and one that has
    checkpoints of its own is gone on with.
    """
    found = dict(_unfinished(generation.storage))
    if generation.prefix in found:
        return
    for prefix, step in sorted(found.items(), key=lambda one: one[1], reverse=True):
        other = Generation(generation.root, "training", prefix.removeprefix("training/"))
        name = other.name(IDENTITY)
        if other.storage.size(name) is None:
            continue
        theirs = parse_json(other.storage.read(name), f"{other.root}/{name}")
        raise ConfigError(
            f"{generation.root}/{prefix}: a training of other settings lies here unfinished, at "
            f"step {step} ({'; '.join(differences(theirs, _keys(facts)))}). Set them back to go on "
            "with it, or begin a new one with --training.beside_unfinished"
        )


def _unfinished(storage: Storage) -> Iterator[tuple[str, int]]:
    """Yield the trainings with a checkpoint and without a manifest, and their last step."""
    names = [name for name, _ in storage.list("training/")]
    ended = {name.removesuffix(f"/{MANIFEST}") for name in names if name.endswith(f"/{MANIFEST}")}
    steps: dict[str, int] = {}
    for name in names:
        match = _CHECKPOINT.fullmatch(name)
        if match is not None and match[1] not in ended:
            steps[match[1]] = max(steps.get(match[1], 0), int(match[2]))
    yield from steps.items()
