"""Instances to flat batches: put rows together, mask them, cut them into micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numba as nb
import numpy as np
from numpy.typing import NDArray

from pipeline.config import MaskingConfig
from pipeline.instance_rows import InstanceRows
from pipeline.masking import TokenClasses, mask_tokens
from pipeline.ragged import read_only
from trainer.data.batch import Batch
from trainer.data.epoch_order import Unit

Ragged = tuple[NDArray[Any], NDArray[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """B instances by column, so that every column is cut, joined and taken alike.

    `ragged`: (values, int64 offsets [B + 1]) of input_ids, of word_starts where the set has
    them, and with static masking of masked_positions and masked_lm_ids. `flat`: [B] of
    instance_number uint64, first_segment_length, and pair_labels where the objective has pairs.
    """

    ragged: dict[str, Ragged]
    flat: dict[str, NDArray[Any]]

    @staticmethod
    def of(rows: InstanceRows, first_instance: int) -> Instances:
        """View the rows of a record batch whose first has instance number `first_instance`."""
        ragged: dict[str, Ragged] = {"input_ids": (rows.input_ids, rows.offsets)}
        if rows.word_starts is not None:
            ragged["word_starts"] = rows.word_starts, rows.offsets
        if rows.masked_offsets is not None:
            assert rows.masked_positions is not None and rows.masked_lm_ids is not None
            ragged["masked_positions"] = rows.masked_positions, rows.masked_offsets
            ragged["masked_lm_ids"] = rows.masked_lm_ids, rows.masked_offsets
        flat: dict[str, NDArray[Any]] = {
            "instance_number": np.arange(
                first_instance, first_instance + rows.rows, dtype=np.uint64
            ),
            "first_segment_length": rows.first_segment_length,
        }
        if rows.pair_labels is not None:
            flat["pair_labels"] = rows.pair_labels
        return Instances(ragged=ragged, flat=flat)

    @property
    def count(self) -> int:
        """B."""
        return self.flat["instance_number"].size

    def span(self, start: int, end: int) -> Instances:
        """Return instances [start, end), without a copy."""
        return Instances(
            ragged={
                name: (
                    values[offsets[start] : offsets[end]],
                    offsets[start : end + 1] - offsets[start],
                )
                for name, (values, offsets) in self.ragged.items()
            },
            flat={name: values[start:end] for name, values in self.flat.items()},
        )

    def row_tokens(self) -> NDArray[np.int64]:
        """Return the tokens of each instance, [B] int64."""
        return np.diff(self.ragged["input_ids"][1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Rows of a window that were taken together, for one or more steps."""

    instances: Instances
    """The window."""
    rows: NDArray[np.int64]
    """[N], rows of it, step by step."""
    counts: NDArray[np.int64]
    """[S], how many of them are of each step."""


def gather(taken: Sequence[Taken]) -> tuple[Instances, NDArray[np.int64]]:
    """Return a copy of all rows taken (of one piece at least), step by step, and where steps end.

    In a step they stand in the order of the pieces; the ends are int64 [S].
    """
    counts = np.array([piece.counts for piece in taken])
    steps = np.repeat(np.tile(np.arange(counts.shape[1]), counts.shape[0]), counts.ravel())
    # A stable sort keeps the order of the pieces within a step.
    by_step = np.argsort(steps, kind="stable")
    place = np.empty(by_step.size, dtype=np.int64)
    place[by_step] = np.arange(by_step.size)
    first = taken[0].instances
    instances = Instances(
        ragged={name: _gather_ragged(taken, name, place, by_step) for name in first.ragged},
        flat={
            name: np.concatenate([piece.instances.flat[name][piece.rows] for piece in taken])[
                by_step
            ]
            for name in first.flat
        },
    )
    return instances, np.cumsum(counts.sum(axis=0))


def _gather_ragged(
    taken: Sequence[Taken], name: str, place: NDArray[np.int64], by_step: NDArray[np.int64]
) -> Ragged:
    columns = [piece.instances.ragged[name] for piece in taken]
    lengths = np.concatenate(
        [
            row_offsets[piece.rows + 1] - row_offsets[piece.rows]
            for piece, (_, row_offsets) in zip(taken, columns, strict=True)
        ]
    )
    offsets = np.zeros(place.size + 1, dtype=np.int64)
    np.cumsum(lengths[by_step], out=offsets[1:])
    values = np.empty(int(offsets[-1]), dtype=columns[0][0].dtype)
    targets = offsets[place]
    first = 0
    for piece, (row_values, row_offsets) in zip(taken, columns, strict=True):
        last = first + piece.rows.size
        _copy_rows(row_values, row_offsets, piece.rows, targets[first:last], values)
        first = last
    return values, offsets


@nb.njit(cache=True, nogil=True)
def _copy_rows(
    values: NDArray[Any],
    offsets: NDArray[np.int64],
    rows: NDArray[np.int64],
    targets: NDArray[np.int64],
    copied: NDArray[Any],
) -> None:
    for at in range(rows.size):
        source = offsets[rows[at]]
        target = targets[at]
        for index in range(offsets[rows[at] + 1] - source):
            copied[target + index] = values[source + index]


def concatenate(pieces: Sequence[Instances]) -> Instances:
    """Return a copy of all instances of the pieces (at least one) in their order."""
    return Instances(
        ragged={name: _join([piece.ragged[name] for piece in pieces]) for name in pieces[0].ragged},
        flat={
            name: np.concatenate([piece.flat[name] for piece in pieces]) for name in pieces[0].flat
        },
    )


def _join(columns: Sequence[Ragged]) -> Ragged:
    lengths = np.concatenate([offsets[1:] - offsets[:-1] for _, offsets in columns])
    offsets = np.zeros(lengths.size + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return np.concatenate([values for values, _ in columns]), offsets


def make_batch(
    instances: Instances,
    *,
    seed: int,
    purpose: Literal["mask", "evaluation_mask"],
    epoch: int,
    rules: MaskingConfig,
    classes: TokenClasses,
) -> Batch:
    """Return the instances as one flat batch.

    Instances of a static set bring their masks along; else (seed, purpose, epoch, instance
    number) fix them.
    """
    ids, offsets = instances.ragged["input_ids"]
    if "masked_lm_ids" in instances.ragged:
        masked_lm_ids, masked_offsets = instances.ragged["masked_lm_ids"]
        in_row, _ = instances.ragged["masked_positions"]
        positions = in_row + np.repeat(offsets[:-1], np.diff(masked_offsets))
    else:
        masked = mask_tokens(
            ids,
            offsets,
            instances.flat["instance_number"],
            seed=seed,
            purpose=purpose,
            epoch=epoch,
            repetition=0,
            rules=rules,
            classes=classes,
            word_starts=instances.ragged["word_starts"][0]
            if "word_starts" in instances.ragged
            else None,
        )
        ids, positions, masked_lm_ids = masked.input_ids, masked.positions, masked.masked_lm_ids
    input_ids = np.empty(ids.size, dtype=np.int64)
    token_type_ids = np.empty(ids.size, dtype=np.int64)
    first_segment_length = instances.flat["first_segment_length"]
    _widen(
        read_only(ids),
        read_only(offsets),
        read_only(first_segment_length),
        input_ids,
        token_type_ids,
    )
    labels = instances.flat.get("pair_labels")
    return Batch(
        input_ids=input_ids,
        token_type_ids=token_type_ids,
        cu_seqlens=offsets.astype(np.int32),
        masked_positions=positions,
        masked_lm_ids=masked_lm_ids.astype(np.int64),
        pair_labels=None if labels is None else labels.astype(np.int64),
    )


@nb.njit(cache=True, nogil=True)
def _widen(
    ids: NDArray[Any],
    offsets: NDArray[np.int64],
    first_segment_length: NDArray[np.uint16],
    input_ids: NDArray[np.int64],
    token_type_ids: NDArray[np.int64],
) -> None:
    for row in range(first_segment_length.size):
        second = offsets[row] + np.int64(first_segment_length[row])
        for token in range(offsets[row], offsets[row + 1]):
            input_ids[token] = ids[token]
            token_type_ids[token] = token >= second


def cut_batch(batch: Batch, start: int, end: int, size: int, unit: Unit) -> Iterator[Batch]:
    """Cut sequences [start, end) into batches of at most `size` units; they share its memory.

    A sequence of more tokens than `size` is a batch of its own.
    """
    first = start
    while first < end:
        last = min(first + size, end)
        if unit == "tokens":
            limit = batch.cu_seqlens[first] + size
            last = int(np.searchsorted(batch.cu_seqlens[: end + 1], limit, side="right")) - 1
            last = max(last, first + 1)
        yield batch_span(batch, first, last)
        first = last


def batch_span(batch: Batch, first: int, last: int) -> Batch:
    """Return sequences [first, last) of a batch; they share its memory."""
    begin, stop = int(batch.cu_seqlens[first]), int(batch.cu_seqlens[last])
    # Masked positions ascend, so a run of sequences has a run of them.
    low, high = np.searchsorted(batch.masked_positions, [begin, stop])
    labels = batch.pair_labels
    return Batch(
        input_ids=batch.input_ids[begin:stop],
        token_type_ids=batch.token_type_ids[begin:stop],
        cu_seqlens=batch.cu_seqlens[first : last + 1] - batch.cu_seqlens[first],
        masked_positions=batch.masked_positions[low:high] - begin,
        masked_lm_ids=batch.masked_lm_ids[low:high],
        pair_labels=None if labels is None else labels[first:last],
    )


def join_batches(parts: Sequence[Batch]) -> Batch:
    """Return the sequences of all parts (at least one) as one batch."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(part.input_ids.size for part in parts)])
    labels = [part.pair_labels for part in parts if part.pair_labels is not None]
    ends = [part.cu_seqlens[1:] + start for part, start in zip(parts, starts[:-1], strict=True)]
    masked = [part.masked_positions + start for part, start in zip(parts, starts[:-1], strict=True)]
    return Batch(
        input_ids=np.concatenate([part.input_ids for part in parts]),
        token_type_ids=np.concatenate([part.token_type_ids for part in parts]),
        cu_seqlens=np.concatenate([[0], *ends]).astype(np.int32),
        masked_positions=np.concatenate(masked),
        masked_lm_ids=np.concatenate([part.masked_lm_ids for part in parts]),
        pair_labels=np.concatenate(labels) if labels else None,
    )
