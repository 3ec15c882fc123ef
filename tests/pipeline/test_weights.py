"""How often each document stands in the corpus: weights of sources, smoothing by language."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from pipeline.config import DocumentsConfig, SourceConfig
from pipeline.corpus import RawDocument
from pipeline.document_keys import document_hashes, hash_words
from pipeline.documents import (
    RUN_SCHEMA,
    Partitions,
    duplicates,
    split_documents,
)
from pipeline.merge import Losses, merge_rows
from pipeline.weights import copies, draws, fixed_point_weights

ONE = 1 << 32


def source(name: str, weight: float = 1.0, locale: str = "en") -> SourceConfig:
    return SourceConfig(name=name, format="lines", path="unused", weight=weight, locale=locale)


def rows(count: int, *sources: SourceConfig) -> pa.Table:
    config = DocumentsConfig(sources=sources, held_out_fraction=0.0)
    chunks = [
        chunk.documents
        for number in range(len(sources))
        for chunk in split_documents(
            [RawDocument("f", n, f"Document {n}. Of {number}.") for n in range(count)],
            number,
            config,
            Partitions(1, 0),
            0,
            Counter(),
        )
    ]
    return pa.concat_tables([RUN_SCHEMA.empty_table(), *chunks])


def keys(
    table: pa.Table, weights: list[int], *, train: bool = True
) -> tuple[list[str], Counter[str]]:
    losses = Losses(len(weights))
    merged = merge_rows(
        [table], [], [], weights, losses, train_partitions=1 if train else 0, seed=0
    )
    hashes = merged["document_hash"].to_pylist()
    assert hashes == sorted(hashes)
    assert hashes == document_hashes(merged["document_key"].to_pylist(), 0)
    return merged["document_key"].to_pylist(), sum(losses.by_source, Counter())


def test_a_weight_of_one_changes_nothing() -> None:
    found, counts = keys(rows(50, source("a")), [ONE])
    assert len(set(found)) == 50 and all(key.endswith(".0") for key in found)
    assert counts == {}


def test_whole_weights_repeat_every_document_under_keys_of_its_own() -> None:
    found, counts = keys(rows(20, source("a")), [3 * ONE])
    assert sorted(found) == sorted(f"a/f#{n}.{copy}" for n in range(20) for copy in range(3))
    assert counts == {"repetitions": 40}


def test_a_fraction_is_drawn_by_document_and_grows_with_the_weight() -> None:
    table = rows(400, source("a"))
    few, counts = keys(table, [ONE // 4])
    assert 60 < len(few) < 140  # 100 +- 4.6 standard deviations
    assert counts["dropped_sampled"] == 400 - len(few)
    more = keys(table, [ONE // 2])[0]
    assert set(few) < set(more)
    assert set(few) == {
        key[:-1] + "0" for key in keys(table, [ONE + ONE // 4])[0] if key[-1] == "1"
    }
    # A draw is the document's own: those read with it do not matter.
    assert set(keys(table.slice(100, 50), [ONE // 4])[0]) <= set(few)


def test_held_out_documents_are_sampled_and_never_repeated() -> None:
    table = rows(40, source("a"))
    assert len(keys(table, [5 * ONE], train=False)[0]) == 40
    assert 0 < len(keys(table, [ONE // 2], train=False)[0]) < 40


def test_each_source_has_its_own_weight() -> None:
    found, _ = keys(rows(10, source("a"), source("b")), [ONE, 2 * ONE])
    assert sum(key.startswith("a/") for key in found) == 10
    assert sum(key.startswith("b/") for key in found) == 20


def test_smoothing_gives_languages_their_share_to_the_power() -> None:
    sources = (source("en"), source("us", locale="en-US"), source("is", locale="is"))
    config = DocumentsConfig(sources=sources, language_smoothing=0.7)
    sizes = [600, 300, 100]
    weights = [one / ONE for one in fixed_point_weights(config, sizes)]
    assert weights[0] == weights[1] < 1.0 < weights[2]
    smoothed = [weight * size for weight, size in zip(weights, sizes, strict=True)]
    assert sum(smoothed) == pytest.approx(1000)
    english, icelandic = smoothed[0] + smoothed[1], smoothed[2]
    assert icelandic / english == pytest.approx((100 / 900) ** 0.7)


def test_without_smoothing_the_weights_are_the_sources() -> None:
    config = DocumentsConfig(sources=(source("a", 2.5), source("b", 0.125, locale="de")))
    assert fixed_point_weights(config, [10, 1]) == [5 * ONE // 2, ONE // 8]
    smoothed = DocumentsConfig(sources=(source("a", 2.0), source("b")), language_smoothing=0.3)
    assert fixed_point_weights(smoothed, [10, 0]) == [2 * ONE, ONE]


def test_a_document_that_is_sampled_out_takes_no_duplicate_with_it() -> None:
    texts = [RawDocument("f", n, f"The same text {n}.") for n in range(200)]
    sources = (source("a"), source("b"))
    config = DocumentsConfig(sources=sources, held_out_fraction=0.0)
    tables = [
        chunk.documents
        for number in range(2)
        for chunk in split_documents(texts, number, config, Partitions(1, 0), 0, Counter())
    ]
    weights = [ONE // 10, ONE]
    every = pa.concat_tables(tables)
    sampled = every.filter(pa.array(copies(every, weights, 1) > 0))
    losses = Losses(2)
    merged = merge_rows(
        [every], [duplicates([sampled])], [], weights, losses, train_partitions=1, seed=0
    )
    assert len(set(map(str, merged["sentences"].to_pylist()))) == merged.num_rows == 200
    of_a, of_b = losses.by_source
    # The rarer source's copy has the smaller key, and stays where it was drawn.
    assert of_a["dropped_sampled"] + of_b["dropped_duplicate"] == 200
    assert 150 < of_a["dropped_sampled"] < 199


def test_the_draw_is_not_the_place() -> None:
    table = rows(2000, source("a"))
    place = hash_words(table["document_hash"])[:, 0] >> np.uint64(32)
    assert abs(np.corrcoef(place.astype(float), draws(table).astype(float))[0, 1]) < 0.1
    assert draws(table.slice(7, 3)).tolist() == draws(table)[7:10].tolist()
    assert 0.45 < (draws(table) < 1 << 31).mean() < 0.55
