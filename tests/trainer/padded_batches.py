"""Flat batches as the padded ones that transformers takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.batch import Batch
from trainer.padded import IGNORED_LABEL


@dataclass(frozen=True)
class PaddedBatch:
    """Arrays of [B, L]."""

    input_ids: NDArray[np.int64]
    attention_mask: NDArray[np.int64]
    token_type_ids: NDArray[np.int64]
    labels: NDArray[np.int64]

    def inputs(self, *, pad_token_id: int = 0, segments: bool = True) -> dict[str, Tensor]:
        """The arguments of a transformers model, padding being `pad_token_id`."""
        ids = np.where(self.attention_mask == 1, self.input_ids, pad_token_id)
        arrays = {"input_ids": ids, "attention_mask": self.attention_mask}
        if segments:
            arrays["token_type_ids"] = self.token_type_ids
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    @property
    def label_tensor(self) -> Tensor:
        return torch.from_numpy(self.labels)

    def real(self, values_BL: Tensor) -> Tensor:
        """What a padded model answers, without the padding: [B, L, ...] -> [T, ...]."""
        return values_BL[torch.from_numpy(self.attention_mask).bool()]


def pad(batch: Batch, width: int | None = None) -> PaddedBatch:
    """Pad every sequence to the longest, or to `width`."""
    lengths = np.diff(batch.cu_seqlens)
    mask = np.arange(width or int(lengths.max())) < lengths[:, None]
    labels = np.full(batch.input_ids.size, IGNORED_LABEL)
    labels[batch.masked_positions] = batch.masked_lm_ids

    def grid(values: NDArray[np.int64], padding: int) -> NDArray[np.int64]:
        padded = np.full(mask.shape, padding, dtype=np.int64)
        padded[mask] = values
        return padded

    return PaddedBatch(
        input_ids=grid(batch.input_ids, 0),
        attention_mask=mask.astype(np.int64),
        token_type_ids=grid(batch.token_type_ids, 0),
        labels=grid(labels, IGNORED_LABEL),
    )
