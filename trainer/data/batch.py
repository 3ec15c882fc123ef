"""A flat batch of instances: tokens of all sequences in one row, without padding.

Shape suffixes of the trainer: T tokens, B sequences, M masked positions, L longest sequence,
H hidden, V vocabulary, N attention heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pipeline.errors import TrainingError

if TYPE_CHECKING:  # The models run where torch alone is installed.
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-batch as the loader makes it; masks are applied already."""

    input_ids: NDArray[np.int64]
    """[T], the corrupted tokens."""
    token_type_ids: NDArray[np.int64]
    """[T], 0 in [CLS] A [SEP], 1 in B [SEP]."""
    cu_seqlens: NDArray[np.int32]
    """[B + 1], where each sequence starts; the last entry is T."""
    masked_positions: NDArray[np.int64]
    """[M], indices into the T tokens, each at most once."""
    masked_lm_ids: NDArray[np.int64]
    """[M], the original tokens there."""
    pair_labels: NDArray[np.int64] | None
    """[B], 0 = B follows A, 1 = random; None where the objective has no pairs."""


@dataclass(frozen=True)
class SequenceLayout:
    """Where the sequences lie in a flat batch; made once a batch, used by every layer."""

    lengths: tuple[int, ...]
    """[B], tokens of each sequence, on the host."""
    cu_seqlens: Tensor
    """[B + 1] int32, on the model's device."""
    position_ids: Tensor
    """[T] int64, place of each token in its sequence."""
    _bands: dict[tuple[int, int], Tensor] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def max_length(self) -> int:
        """Return L, the tokens of the longest sequence."""
        return max(self.lengths)

    @cached_property
    def first_tokens(self) -> Tensor:
        """Return the index of each sequence's first token, [B] int64."""
        return self.cu_seqlens[:-1].long()

    @cached_property
    def padded_rows(self) -> Tensor:
        """Return the row of each token in a [B * L] grid, [T] int64."""
        lengths = torch.tensor(self.lengths)
        starts = torch.arange(lengths.numel()) * self.max_length
        rows = torch.repeat_interleave(starts, lengths)
        return rows.to(self.position_ids.device) + self.position_ids

    @cached_property
    def key_mask(self) -> Tensor:
        """Return which cells of the [B, 1, 1, L] grid hold a token, bool."""
        grid = torch.arange(self.max_length) < torch.tensor(self.lengths)[:, None]
        return grid.to(self.position_ids.device)[:, None, None, :]

    def band_mask(self, reach: int, block: int) -> Tensor:
        """Return which keys the queries of each block see, [blocks, 1, block, block + 2 reach].

        Bool. Key k of block b is token b * block + k - reach. The places after the last token are
        a sequence of their own, so that no row is empty.
        """
        if (reach, block) not in self._bands:
            lengths = torch.tensor(self.lengths)
            tokens = sum(self.lengths)
            blocks = -(-tokens // block)
            sequence = torch.full((blocks * block + 2 * reach,), -1)
            sequence[reach : reach + tokens] = torch.repeat_interleave(lengths)
            keys = sequence.unfold(0, block + 2 * reach, block)
            queries = sequence[reach : reach + blocks * block].view(blocks, block, 1)
            # k - q + reach
            offset = torch.arange(block + 2 * reach) - torch.arange(block)[:, None]
            band = (offset >= 0) & (offset <= 2 * reach)
            mask = ((queries == keys[:, None]) & band)[:, None]
            self._bands[reach, block] = mask.to(self.position_ids.device)
        return self._bands[reach, block]


@dataclass(frozen=True, kw_only=True)
class GridLayout(SequenceLayout):
    """A padded [B, L] grid, whose T = B L cells are all tokens; no number of it is on the host.

    For tracing (ONNX), where B and L are not known yet. Padding is computed with and not attended
    to.
    """

    attention_mask: Tensor
    """[B, L] bool, true on tokens; each row must begin with one."""

    @staticmethod
    def of(attention_mask: Tensor) -> GridLayout:
        """Return the layout of a grid, from its mask."""
        rows, length = attention_mask.shape
        places = torch.arange(length, device=attention_mask.device)
        return GridLayout(
            lengths=(),
            cu_seqlens=torch.arange(rows + 1, device=attention_mask.device) * length,
            position_ids=places.expand(rows, length).reshape(-1),
            attention_mask=attention_mask,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorBatch:
    """The inputs of a forward pass on the model's device."""

    input_ids: Tensor
    """[T] int64."""
    token_type_ids: Tensor
    """[T] int64."""
    masked_positions: Tensor
    """[M] int64."""
    layout: SequenceLayout


def to_tensors(batch: Batch, device: torch.device) -> TensorBatch:
    """Return the inputs of a batch on `device`; on the CPU they share the batch's memory."""
    return TensorBatch(
        input_ids=as_tensor(batch.input_ids, device),
        token_type_ids=as_tensor(batch.token_type_ids, device),
        masked_positions=as_tensor(batch.masked_positions, device),
        layout=sequence_layout(as_tensor(batch.cu_seqlens, torch.device("cpu")), device),
    )


def sequence_layout(cu_seqlens: Tensor, device: torch.device) -> SequenceLayout:
    """Return the layout on `device` of sequences that start at `cu_seqlens`, [B + 1] on the CPU."""
    starts = cu_seqlens.long()
    lengths = starts.diff()
    positions = torch.arange(int(starts[-1])) - torch.repeat_interleave(starts[:-1], lengths)
    return SequenceLayout(
        lengths=tuple(lengths.tolist()),
        cu_seqlens=cu_seqlens.to(device, torch.int32),
        position_ids=positions.to(device),
    )


def as_tensor(values: NDArray[np.int64] | NDArray[np.int32], device: torch.device) -> Tensor:
    """Return an array as a tensor on `device`; read-only memory (mapped shards) is copied."""
    return torch.from_numpy(values if values.flags.writeable else values.copy()).to(device)


def check_batch(
    batch: Batch, *, vocab_size: int, max_seq_length: int, type_vocab_size: int
) -> None:
    """Raise TrainingError with row and limit for a batch the model has no embeddings for.

    Checked on the host: on a GPU the same fault is an assertion that ends the process.
    """
    import numpy as np

    tokens = batch.input_ids.size
    starts = batch.cu_seqlens
    lengths = np.diff(starts)
    if lengths.size == 0 or starts[0] != 0 or starts[-1] != tokens or lengths.min() < 1:
        raise TrainingError(
            f"batch of {tokens} tokens: cu_seqlens = {starts.tolist()[:8]}...: must rise from 0 to "
            f"the number of tokens, every sequence having one at least"
        )
    longest = int(lengths.argmax())
    if lengths[longest] > max_seq_length:
        raise TrainingError(
            f"row {longest} of the batch has {lengths[longest]} tokens: "
            f"the model has positions for {max_seq_length}; "
            f"shorten instances.max_seq_length or raise model.max_position_embeddings"
        )
    for name, values, limit, what in (
        ("input_ids", batch.input_ids, vocab_size, "the vocabulary has"),
        ("token_type_ids", batch.token_type_ids, type_vocab_size, "model.type_vocab_size ="),
        ("masked_positions", batch.masked_positions, tokens, "the tokens of the batch are"),
        ("masked_lm_ids", batch.masked_lm_ids, vocab_size, "the vocabulary has"),
        ("pair_labels", batch.pair_labels, 2, "the pair labels are"),
    ):
        if values is None or values.size == 0 or 0 <= values.min() <= values.max() < limit:
            continue
        if name == "token_type_ids" and limit == 0:
            continue  # no segment embeddings: the model does not read them
        at = int(np.flatnonzero((values < 0) | (values >= limit))[0])
        token = int(batch.masked_positions[at]) if name == "masked_lm_ids" else at
        token = int(values[at]) if name == "masked_positions" else token
        row = at if name == "pair_labels" else int(np.searchsorted(starts, token, "right")) - 1
        raise TrainingError(
            f"row {row} of the batch: {name} = {values[at]}: {what} {limit}, so ids end at "
            f"{limit - 1}; do shards, vocabulary and model belong together?"
        )
    for name, values, expected in (
        ("token_type_ids", batch.token_type_ids, tokens),
        ("masked_lm_ids", batch.masked_lm_ids, batch.masked_positions.size),
        ("pair_labels", batch.pair_labels, lengths.size),
    ):
        if values is not None and values.size != expected:
            raise TrainingError(f"batch: {name} has {values.size} entries: must be {expected}")


def check_no_padding(batch: Batch, pad_token_id: int) -> None:
    """Raise TrainingError, with row and place, for a token of the batch that is padding."""
    (padding,) = (batch.input_ids == pad_token_id).nonzero()
    if not padding.size:
        return
    row = int(batch.cu_seqlens.searchsorted(padding[0], "right")) - 1
    place = padding[0] - batch.cu_seqlens[row]
    raise TrainingError(
        f"row {row} of the batch: input_ids = {pad_token_id} at token {place}: the padding token, "
        "which has no position of its own in a model that counts positions from behind its id; "
        "take it out of the text, or out of attention_mask"
    )
