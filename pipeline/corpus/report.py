"""What reading leaves beside the documents: what was read, skipped and replaced, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_PLACES = 20


@dataclass(frozen=True, slots=True)
class RawDocument:
    """One document as read: its place and its text, or why it has none."""

    path: str
    offset: int | str
    """Byte, row or page of the uncompressed file; the identifier where the source has an
    `id_field`."""
    text: str
    dropped: str = ""


@dataclass(slots=True)
class ReadReport:
    """What was read, skipped and replaced, by reason; picklable, and JSON by `as_dict`."""

    counts: Counter[str] = field(default_factory=Counter)
    """How often each thing happened: `documents`, `records_skipped`, `undecodable_replaced`..."""
    places: list[str] = field(default_factory=list)
    """The first 20 of what did not go as planned, each "file: offset: reason"."""

    def note(self, reason: str, place: str, *, detail: str = "") -> None:
        """Count `reason` once and keep its place while there are fewer than 20."""
        self.counts[reason] += 1
        if len(self.places) < MOST_PLACES:
            self.places.append(f"{place}: {detail or reason}")

    def merge(self, others: Iterable[ReadReport]) -> None:
        """Add the counts and, while there is room, the places of other reports, in their order."""
        for other in others:
            self.counts.update(other.counts)
            self.places += other.places[: MOST_PLACES - len(self.places)]

    def name_places(self, names: Mapping[str, str]) -> None:
        """Put names for locations at the start of places: a manifest holds no path of a machine.

        `names` is location -> source and path below its root; the longest one that fits counts.
        """
        longest_first = sorted(names, key=len, reverse=True)
        for number, place in enumerate(self.places):
            location = next(filter(place.startswith, longest_first), "")
            self.places[number] = names.get(location, "") + place.removeprefix(location)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON-able values, counts in order of name."""
        return {"counts": dict(sorted(self.counts.items())), "places": list(self.places)}
