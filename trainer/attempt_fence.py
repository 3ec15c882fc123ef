"""Attempts of a run are numbered, and only the newest one may write checkpoints."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.commit import Generation
from pipeline.contract import canonical_json
from pipeline.errors import ConflictError
from pipeline.storage import Storage


@dataclass(frozen=True, slots=True)
class AttemptFence:
    """The right of one attempt to write checkpoints; it ends when the next attempt begins."""

    generation: Generation
    attempt: int

    @staticmethod
    def take(generation: Generation) -> AttemptFence:
        """Begin the next attempt: from here on no earlier one can commit a checkpoint.

        Take it before you look for the latest checkpoint, or an earlier attempt could still
        commit one that you do not see.
        """
        storage = generation.storage
        attempt = max(_attempts(storage, generation), default=0) + 1
        # Bytes of our own, or two attempts that create the same number would both succeed.
        mark = canonical_json({"attempt": secrets.token_hex(16)})
        while True:
            try:
                storage.create(generation.name(_attempt_name(attempt)), mark)
                return AttemptFence(generation, attempt)
            except ConflictError:
                attempt += 1

    def require_newest(self, storage: Storage) -> None:
        """Raise ConflictError if a later attempt has begun."""
        # Numbers are taken without gaps, so looking for the next one is enough.
        if storage.size(self.generation.name(_attempt_name(self.attempt + 1))) is not None:
            raise ConflictError(
                f"{self.generation.root}/{self.generation.prefix}: attempt {self.attempt} was "
                "superseded by a later attempt of the same run and may not write checkpoints: "
                "this worker group was cut off, or the command was given twice; it must end"
            )


def _attempts(storage: Storage, generation: Generation) -> Iterator[int]:
    for name, _ in storage.list(generation.name("attempts")):
        match = re.fullmatch(r"attempts/(\d{4,})\.json", name.removeprefix(generation.name("")))
        if match is not None:
            yield int(match[1])


def _attempt_name(attempt: int) -> str:
    return f"attempts/{attempt:04d}.json"
