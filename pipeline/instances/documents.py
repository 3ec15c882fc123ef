"""A partition's documents as token ids, sentence by sentence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.ragged import Ids, check_offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedDocuments:
    """The tokens of a partition's documents.

    `ids` uint16 or uint32 [T], without special tokens; `sentence_offsets` int64 [S + 1] into
    `ids`; `document_offsets` int64 [D + 1] into the sentences; `document_hashes` uint64 [D],
    each document's identity for random draws; `originals` uint64 [D], equal for copies of one
    document, a document's own hash where there are none; `sources` uint16 [D], the number of each
    document's source, None where there is only one; `word_starts` bool [T], where a segmenter set
    word boundaries, else None. Sentences and documents may be empty.
    """

    ids: Ids
    sentence_offsets: NDArray[np.int64]
    document_offsets: NDArray[np.int64]
    document_hashes: NDArray[np.uint64]
    originals: NDArray[np.uint64]
    sources: NDArray[np.uint16] | None = None
    word_starts: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        if self.ids.dtype not in (np.uint16, np.uint32):
            raise ValueError(f"ids are {self.ids.dtype}: must be uint16 or uint32")
        check_offsets("sentence_offsets", self.sentence_offsets, self.ids.size)
        check_offsets("document_offsets", self.document_offsets, self.sentence_offsets.size - 1)
        of_documents: dict[str, tuple[NDArray[Any], type]] = {
            "document_hashes": (self.document_hashes, np.uint64),
            "originals": (self.originals, np.uint64),
        }
        if self.sources is not None:
            of_documents["sources"] = self.sources, np.uint16
        for name, (values, dtype) in of_documents.items():
            if values.dtype != dtype:
                raise ValueError(f"{name} are {values.dtype}: must be {dtype.__name__}")
            if values.size != self.document_offsets.size - 1:
                raise ValueError(
                    f"{values.size} {name} for {self.document_offsets.size - 1} documents: "
                    "must be one each"
                )
        if self.word_starts is not None and self.word_starts.shape != self.ids.shape:
            raise ValueError(
                f"{self.word_starts.size} word_starts for {self.ids.size} ids: must be one each"
            )

    def without_empty(self) -> EncodedDocuments:
        """Return the same tokens without empty sentences and documents."""
        filled = np.diff(self.sentence_offsets) > 0
        filled_before = np.zeros(filled.size + 1, dtype=np.int64)
        np.cumsum(filled, out=filled_before[1:])
        document_offsets = filled_before[self.document_offsets]
        used = np.diff(document_offsets) > 0
        # An empty span begins where the next one does, so the starts of the filled ones suffice.
        return replace(
            self,
            sentence_offsets=np.append(
                self.sentence_offsets[:-1][filled], self.sentence_offsets[-1]
            ),
            document_offsets=np.append(document_offsets[:-1][used], document_offsets[-1]),
            document_hashes=self.document_hashes[used],
            originals=self.originals[used],
            sources=None if self.sources is None else self.sources[used],
        )
