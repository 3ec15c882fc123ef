"""What a training's first masks are like, looked at before its first step."""

from __future__ import annotations

from pipeline.config import MaskingConfig
from pipeline.data_card import mask_counts
from pipeline.instance_checks import mask_warnings
from pipeline.instance_set import InstanceSet
from pipeline.instance_shards import mask_statically


def first_mask_warnings(instances: InstanceSet, rules: MaskingConfig, seed: int) -> list[str]:
    """Return what the masks of epoch 0 of the first record batch have other than `rules` ask.

    Nothing for a static set: it was looked at when it was built.
    """
    if instances.static_masking:
        return []
    shard = instances.shards("train")[0]
    rows = mask_statically(
        instances.read_rows(shard, 0),
        rules,
        seed=seed,
        first=shard.first_instance,
        split="train",
        classes=instances.token_classes,
    )
    counts = {"instances": rows.rows, **mask_counts(rows, instances.token_classes)}
    return list(mask_warnings(counts, rules))
