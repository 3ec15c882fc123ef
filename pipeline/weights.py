"""How often each document stands in the corpus: the weights of sources, smoothing by language."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.config import DocumentsConfig
from pipeline.keyed_random import derive_key

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


def repeat_documents(
    table: pa.Table, weights: Sequence[int], *, train: bool, seed: int
) -> tuple[pa.Table, NDArray[np.int64]]:
    """Return each document as often as its source weighs, and the row each one came from.

    A copy has a key and a hash of its own: repetition 1, 2... The whole part of the weight is
    certain, its fraction a draw by document. Held-out documents are sampled, never repeated.
    """
    weight = np.array(weights, np.uint64)[np.asarray(table["source"])]
    whole = (weight >> np.uint64(_PLACES)).astype(np.int64)
    fraction = weight & np.uint64((1 << _PLACES) - 1)
    keys = table["document_key"].to_pylist() if (fraction.any() or (whole != 1).any()) else None
    if keys is None:
        return table, np.arange(table.num_rows)
    draw_key = derive_key(seed, "weight").to_bytes(8, "little")
    draws = np.fromiter(
        (
            int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4, key=draw_key).digest())
            for key in keys
        ),
        np.uint64,
        count=len(keys),
    )
    copies = whole + (draws < fraction)
    if not train:
        copies = np.minimum(copies, 1)
    rows = np.repeat(np.arange(table.num_rows), copies)
    repetition = np.arange(rows.size) - np.repeat(np.cumsum(copies) - copies, copies)
    taken = table.take(pa.array(rows))
    if repetition.any():
        taken = _rekeyed(taken, [keys[row] for row in rows], repetition, seed)
    return taken, rows


def _rekeyed(
    table: pa.Table, keys: Sequence[str], repetition: NDArray[np.int64], seed: int
) -> pa.Table:
    names = [
        key if number == 0 else f"{key.rpartition('.')[0]}.{number}"
        for key, number in zip(keys, repetition.tolist(), strict=True)
    ]
    hashes = [document_hash(name, seed) for name in names]
    for name, column in (
        ("document_key", pa.array(names, pa.large_string())),
        ("document_hash", pa.array(hashes, pa.binary(16))),
    ):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(place), column)
    return table


def document_hash(key: str, seed: int) -> bytes:
    """Return the BLAKE2b-128 of a document key that orders and partitions documents."""
    secret = derive_key(seed, "partition").to_bytes(8, "little")
    return hashlib.blake2b(key.encode(), digest_size=16, key=secret).digest()
