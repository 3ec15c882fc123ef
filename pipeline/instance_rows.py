"""Instances as flat arrays: what is built, written into shards, read back and batched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRows:
    """I instances; columns that the objective, the languages or the masking do not need are None.

    `input_ids` [N] uint16 or uint32; `offsets` int64 [I + 1]; `first_segment_length` uint16 [I],
    the tokens of [CLS] A [SEP], or of the whole row where the objective has no pairs;
    `pair_labels` int8 [I], next_sentence_label or sentence_order_label; `sources` uint16 [I], the
    number of the source that the document of the first segment is of; `word_starts` bool [N],
    whether a token begins a word. With static masking `masked_positions` uint16 [M], within the
    row; `masked_offsets` int64 [I + 1] into them; `masked_lm_ids` [M] of the ids' dtype.
    """

    input_ids: NDArray[Any]
    offsets: NDArray[np.int64]
    first_segment_length: NDArray[np.uint16]
    pair_labels: NDArray[np.int8] | None = None
    sources: NDArray[np.uint16] | None = None
    word_starts: NDArray[np.bool_] | None = None
    masked_positions: NDArray[np.uint16] | None = None
    masked_offsets: NDArray[np.int64] | None = None
    masked_lm_ids: NDArray[Any] | None = None

    @staticmethod
    def concatenate(pieces: Sequence[InstanceRows]) -> InstanceRows:
        """Return the rows of all pieces (at least one, not masked) in their order."""
        if len(pieces) == 1:
            return pieces[0]
        lengths = np.concatenate([np.diff(piece.offsets) for piece in pieces])
        labels = [piece.pair_labels for piece in pieces if piece.pair_labels is not None]
        sources = [piece.sources for piece in pieces if piece.sources is not None]
        starts = [piece.word_starts for piece in pieces if piece.word_starts is not None]
        return InstanceRows(
            input_ids=np.concatenate([piece.input_ids for piece in pieces]),
            offsets=np.concatenate([[0], np.cumsum(lengths)]),
            first_segment_length=np.concatenate([piece.first_segment_length for piece in pieces]),
            pair_labels=np.concatenate(labels) if labels else None,
            sources=np.concatenate(sources) if sources else None,
            word_starts=np.concatenate(starts) if starts else None,
        )

    @property
    def rows(self) -> int:
        """Number of instances."""
        return self.offsets.size - 1

    def flat_masked_positions(self) -> NDArray[np.int64]:
        """Return the masked positions as int64 [M] indices of `input_ids` (static masking)."""
        assert self.masked_positions is not None and self.masked_offsets is not None
        starts = np.repeat(self.offsets[:-1], np.diff(self.masked_offsets))
        return starts + self.masked_positions

    def original_ids(self) -> NDArray[Any]:
        """Return `input_ids` with static masks undone."""
        if self.masked_offsets is None:
            return self.input_ids
        ids = self.input_ids.copy()
        ids[self.flat_masked_positions()] = self.masked_lm_ids
        return ids
