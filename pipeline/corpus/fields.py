"""Fields of records: by dotted path, and identifiers that have to differ."""

from __future__ import annotations

import hashlib
from array import array
from typing import Any

from pipeline.corpus.content import Content
from pipeline.errors import InputError

MISSING: Any = object()


def nested_field(record: Any, name: str) -> Any:
    """Return a field of a JSON value: the one of that very name, else the one its dots lead to.

    MISSING if there is none.
    """
    if not isinstance(record, dict):
        return MISSING
    if name in record:
        return record[name]
    for part in name.split("."):
        if not isinstance(record, dict) or part not in record:
            return MISSING
        record = record[part]
    return record


class Identifiers:
    """The identifiers of a file range so far: equal ones would be one document key.

    A 64-bit hash is kept of each, in 13 to 27 bytes, so that those of a large compressed file
    stay in memory. The chance that two of ten million different ones are refused is 3 in a million.
    """

    def __init__(self, content: Content) -> None:
        self._source = content.source
        self._slots = array("Q", bytes(8 * 1024))  # open addressing; 0 is a free slot
        self._count = 0

    def register(self, identifier: str, place: str) -> str:
        """Return the identifier; InputError if an earlier record of the range has it."""
        digest = hashlib.blake2b(identifier.encode(), digest_size=8).digest()
        if not self._add(int.from_bytes(digest, "little") or 1):
            raise InputError(
                f'{place}: "{self._source.id_field}" is "{identifier}" as in an earlier record of '
                "the file; make them differ, or leave out the source's id_field"
            )
        return identifier

    def _add(self, value: int) -> bool:
        slots, mask = self._slots, len(self._slots) - 1
        slot = value & mask
        while found := slots[slot]:
            if found == value:
                return False
            slot = (slot + 1) & mask
        slots[slot] = value
        self._count += 1
        if 5 * self._count > 3 * len(slots):
            self._slots, self._count = array("Q", bytes(16 * len(slots))), 0
            for one in slots:
                if one:
                    self._add(one)
        return True
