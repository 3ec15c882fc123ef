"""The [instances] and [masking] tables of a run's TOML."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from pydantic import ConfigDict

from pipeline.config_fields import STRICT, Identity, require
from pipeline.contract import Compression, Objective


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InstancesConfig:
    """Documents to instances in Arrow shards."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    objective: Identity[Objective] = "nsp"
    """nsp: next sentence prediction (Devlin et al. 2019, 3.1); sop: sentence order prediction
    (Lan et al. 2020, 3.1); full_sentences, doc_sentences: rows packed with sentences across or
    within documents (Liu et al. 2019, 4.2); sentence: one sentence a row."""
    max_seq_length: Identity[int | tuple[int, ...]] = 512
    """Tokens of an instance at most, special tokens included. Several, as [128, 512], make a set of
    instances each from one encoding (the two phases of Devlin et al. 2019, A.2)."""
    short_seq_prob: Identity[float] = 0.1
    """Share of the documents with a shorter random target length (nsp and sop)."""
    duplicate_factor: Identity[int] = 1
    """Times each document is cut into instances, differently each time."""
    compression: Identity[Compression] = "zstd"
    """Of the shards' columns: zstd is the smallest, lz4 and none are faster to read."""
    rows_per_batch: Identity[int] = 1_024
    """Instances in one Arrow record batch."""
    rows_per_shard: Identity[int] = 131_072
    """Instances in one shard; the last shard of a partition may have fewer."""

    def __post_init__(self) -> None:
        lengths = self.max_seq_lengths
        require(
            bool(lengths) and all(8 <= length <= 8192 for length in lengths),
            "instances.max_seq_length",
            self.max_seq_length,
            "must be in [8, 8192]",
        )
        require(
            list(lengths) == sorted(set(lengths)),
            "instances.max_seq_length",
            self.max_seq_length,
            "must rise; write every length once",
        )
        if len(lengths) == 1:  # [128] is 128, so that their fingerprint is one
            object.__setattr__(self, "max_seq_length", lengths[0])
        require(
            0.0 <= self.short_seq_prob <= 1.0,
            "instances.short_seq_prob",
            self.short_seq_prob,
            "must be in [0, 1]",
        )
        require(
            1 <= self.duplicate_factor <= 255,
            "instances.duplicate_factor",
            self.duplicate_factor,
            "must be in [1, 255]",
        )
        require(
            self.rows_per_batch >= 1,
            "instances.rows_per_batch",
            self.rows_per_batch,
            "must be at least 1",
        )
        require(
            self.rows_per_batch * max(lengths) < 1 << 31,
            "instances.rows_per_batch",
            self.rows_per_batch,
            f"with max_seq_length = {max(lengths)} a record batch could pass 2**31 tokens, "
            "more than its 32-bit offsets reach; lower it",
        )
        require(
            self.rows_per_shard >= 1 and self.rows_per_shard % self.rows_per_batch == 0,
            "instances.rows_per_shard",
            self.rows_per_shard,
            f"must be a multiple of instances.rows_per_batch = {self.rows_per_batch}",
        )

    @property
    def max_seq_lengths(self) -> tuple[int, ...]:
        """The length of every set of instances, the shortest first."""
        lengths = self.max_seq_length
        return (lengths,) if isinstance(lengths, int) else lengths


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MaskingConfig:
    """Which tokens are masked, and how; static in the shards or dynamic in the loader."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    mode: Identity[Literal["dynamic", "static"]] = "dynamic"
    """dynamic: anew each epoch in the loader (Liu et al. 2019, 4.1); static: once, in the
    shards."""
    unit: Identity[Literal["token", "whole_word", "ngram", "span"]] = "token"
    """What is masked together: a token, a word, 1 to max_ngram words with p(n) ~ 1/n (Lan et al.
    2020, 3.1), or 1 to 10 words with geometric p = 0.2 (Joshi et al. 2020, 3.1)."""
    amount: Identity[Literal["exact", "bernoulli"]] = "exact"
    """exact: round(probability x maskable tokens) of each instance; bernoulli: each unit alone."""
    probability: Identity[float] = 0.15
    """Share of the maskable tokens that are predicted."""
    mask_share: Identity[float] = 0.8
    """Share of the predicted tokens replaced by [MASK]."""
    random_share: Identity[float] = 0.1
    """Share of the predicted tokens replaced by a random ordinary token; the rest is kept."""
    max_ngram: Identity[int] = 3
    """Words of an n-gram at most (unit = "ngram")."""
    max_predictions_per_seq: Identity[int] = 0
    """Most predicted tokens of an instance; 0 means no limit beyond the probability."""

    def __post_init__(self) -> None:
        require(
            0.0 < self.probability <= 1.0,
            "masking.probability",
            self.probability,
            "must be in (0, 1]",
        )
        for name in ("mask_share", "random_share"):
            value = getattr(self, name)
            require(0.0 <= value <= 1.0, f"masking.{name}", value, "must be in [0, 1]")
        require(
            self.mask_share + self.random_share <= 1.0 + 1e-9,
            "masking.random_share",
            self.random_share,
            f"with masking.mask_share = {self.mask_share} the shares pass 1",
        )
        require(
            self.max_predictions_per_seq >= 0,
            "masking.max_predictions_per_seq",
            self.max_predictions_per_seq,
            "must be >= 0",
        )
        require(
            self.amount == "exact" or self.max_predictions_per_seq == 0,
            "masking.max_predictions_per_seq",
            self.max_predictions_per_seq,
            'limits an exact amount only; leave it out, or set masking.amount = "exact"',
        )
        require(
            self.amount == "exact" or self.unit in ("token", "whole_word"),
            "masking.amount",
            self.amount,
            f'masking.unit = "{self.unit}" spends a budget; set masking.amount = "exact"',
        )
        require(
            1 <= self.max_ngram <= 64, "masking.max_ngram", self.max_ngram, "must be in [1, 64]"
        )
