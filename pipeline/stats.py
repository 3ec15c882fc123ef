"""The data card of a set of instances as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from pipeline.contract import LABEL_MEANINGS, PAIR_LABELS, SPLITS
from pipeline.data_card import LENGTH_BUCKETS

_BAR = 24  # characters of the longest bar: a table fits 80 columns

_SHARES = {
    "fill": "tokens of the max_seq_length places",
    "used_share": "tokens read that are in instances",
    "truncation_loss": "tokens read that were cut from pairs",
    "unpaired_share": "tokens read that found no pair",
    "unknown_rate": "[UNK] among the documents' tokens",
    "mask_rate": "masked of the maskable tokens",
    "mask_share": "masked tokens replaced by [MASK]",
    "random_share": "masked tokens replaced by a random one",
    "kept_share": "masked tokens kept",
}


def tables(manifest: Mapping[str, Any]) -> Iterator[Table]:
    """Yield what a set's manifest says of its rows: amounts, shares, lengths by split."""
    yield _amounts(manifest)
    yield _shares(manifest)
    for split in SPLITS:
        yield _lengths(manifest, split)


def _by_split(title: str) -> Table:
    table = Table(title, title_justify="left")
    for split in SPLITS:
        table.add_column(split.replace("_", "-"), justify="right")
    return table


def _amounts(manifest: Mapping[str, Any]) -> Table:
    table = _by_split("amounts")
    counts, cards = manifest["counts"], manifest["data_card"]
    for name in ("documents", "documents_used", "instances", "tokens"):
        table.add_row(
            name.replace("_", " "), *(f"{counts[split].get(name, 0):,}" for split in SPLITS)
        )
    means = (cards[split].get("mean_length_tokens") for split in SPLITS)
    table.add_row("tokens an instance", *("-" if mean is None else f"{mean:.1f}" for mean in means))
    sizes = []
    for split in SPLITS:
        shards = [one for one in manifest["shards"] if one["split"] == split]
        size = sum(one["object"]["bytes"] + one["lengths"]["bytes"] for one in shards)
        rows = sum(one["rows"] for one in shards)
        sizes.append(f"{size / rows:.1f}" if rows else "-")
    table.add_row("bytes an instance on disk", *sizes)
    return table


def _shares(manifest: Mapping[str, Any]) -> Table:
    objective, mode = manifest["objective"], manifest["masking"]["mode"]
    table = _by_split(f"shares ({objective}, {mode} masks)")
    names = dict(_SHARES)
    if objective in PAIR_LABELS:
        meaning = LABEL_MEANINGS[objective][1]
        names["label_one_share"] = f"{PAIR_LABELS[objective]} 1: {meaning}"
    for name, about in names.items():
        values = [manifest["data_card"][split].get(name) for split in SPLITS]
        if any(value is not None for value in values):
            table.add_row(about, *("-" if value is None else f"{value:.3%}" for value in values))
    return table


def _lengths(manifest: Mapping[str, Any], split: str) -> Table:
    limit = manifest["max_seq_length"]
    table = Table(f"{split.replace('_', '-')}: tokens of an instance")
    table.add_column("instances", justify="right")
    table.add_column("")
    histogram = manifest["counts"][split]["length_histogram"]
    for bucket, count in enumerate(histogram):
        # Buckets are [low, high) but for the last, which holds max_seq_length itself.
        low, high = (limit * edge / LENGTH_BUCKETS for edge in (bucket, bucket + 1))
        bar = "█" * round(_BAR * count / max(1, *histogram))
        table.add_row(f"{low:g} to {high:g}", f"{count:,}", bar)
    return table
