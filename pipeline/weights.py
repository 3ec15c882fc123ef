"""How often each document stands in the corpus: the weights of sources, smoothing by language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.config import DocumentsConfig
from pipeline.document_keys import document_hashes, hash_words, repeated_key

# Weights are fixed-point numbers of so many binary places, so that they mean the same anywhere.
_PLACES = 32


def fixed_point_weights(config: DocumentsConfig, text_bytes: Sequence[int]) -> list[int]:
    """Return the weight of each source, in order, in units of 2**-32.

    `text_bytes` is what was read of each source. With smoothing s a language that has the share
    p of the weighted text gets the share p**s / sum of p**s over languages (Devlin et al. 2018,
    multilingual BERT; Conneau and Lample 2019), the size of the whole corpus staying as it is.
    """
    weights = [source.weight for source in config.sources]
    shares: dict[str, float] = {}
    for source, size in zip(config.sources, text_bytes, strict=True):
        language = language_of(source.locale)
        shares[language] = shares.get(language, 0.0) + size * source.weight
    factors = _smoothing(shares, config.language_smoothing)
    return [
        round(weight * factors.get(language_of(source.locale), 1.0) * (1 << _PLACES))
        for source, weight in zip(config.sources, weights, strict=True)
    ]


def language_of(locale: str) -> str:
    """Return the language of a BCP 47 tag, without its region and script."""
    return locale.replace("_", "-").split("-")[0].lower()


def _smoothing(sizes: Mapping[str, float], exponent: float) -> dict[str, float]:
    total = sum(sizes.values())
    if exponent == 1.0 or not total:
        return {}
    raised = {language: (size / total) ** exponent for language, size in sizes.items() if size}
    whole = sum(raised.values())
    return {one: raised[one] / whole / (sizes[one] / total) for one in raised}


def copies(table: pa.Table, weights: Sequence[int], train_partitions: int) -> NDArray[np.int64]:
    """Return how often each document stands in the corpus, int64; 0 where it is sampled out.

    `table` has document_hash, source and partition. The whole part of a weight is certain, its
    fraction a draw by document. Held-out documents are sampled, never repeated.
    """
    weight = np.array(weights, np.uint64)[np.asarray(table["source"])]
    fraction = weight & np.uint64((1 << _PLACES) - 1)
    number: NDArray[np.int64] = (weight >> np.uint64(_PLACES)).astype(np.int64) + (
        draws(table) < fraction
    )
    held_out = np.asarray(table["partition"]) >= train_partitions
    number[held_out] = np.minimum(number[held_out], 1)
    return number


def draws(table: pa.Table) -> NDArray[np.uint64]:
    """Return a 32-bit draw a document: the last bits of its hash, the first are its place."""
    return hash_words(table["document_hash"])[:, 1] & np.uint64(0xFFFFFFFF)


def repeat_documents(table: pa.Table, number: NDArray[np.int64], seed: int) -> pa.Table:
    """Return each document as often as `number` says.

    A copy has a key and a hash of its own: repetition 1, 2...
    """
    if (number == 1).all():
        return table
    rows = np.repeat(np.arange(table.num_rows), number)
    repetition = np.arange(rows.size) - np.repeat(np.cumsum(number) - number, number)
    taken = table.take(pa.array(rows))
    return _rekeyed(taken, taken["document_key"].to_pylist(), repetition, seed)


def _rekeyed(
    table: pa.Table, keys: Sequence[str], repetition: NDArray[np.int64], seed: int
) -> pa.Table:
    names = [
        key if number == 0 else repeated_key(key, number)
        for key, number in zip(keys, repetition.tolist(), strict=True)
    ]
    hashes = document_hashes(names, seed)
    for name, column in (
        ("document_key", pa.array(names, pa.large_string())),
        ("document_hash", pa.array(hashes, pa.binary(16))),
    ):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(place), column)
    return table
