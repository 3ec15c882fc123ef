"""A committed set of instance shards as its readers see it: inspect, verify and the loader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.commit import Generation, current
from pipeline.contract import ObjectEntry, Objective, ShardEntry, shard_schema
from pipeline.errors import InputError
from pipeline.instance_rows import InstanceRows
from pipeline.masking import TokenClasses, token_classes
from pipeline.shards import decode_message, instance_rows, read_message, read_row_tokens
from pipeline.storage import Storage
from pipeline.vocabulary import read_vocab

STAGE = "instances"
COMMAND = "python -m pipeline instances"


@dataclass(frozen=True)
class InstanceSet:
    """One generation of instances; everything a reader needs lies in it, the vocabulary too."""

    generation: Generation
    manifest: Mapping[str, Any]

    @staticmethod
    def open(root: str) -> InstanceSet:
        """Open the current instances below a run's root; InputError if there are none."""
        return InstanceSet(*current(root, STAGE, COMMAND))

    @cached_property
    def schema(self) -> pa.Schema:
        """The shards' schema."""
        return shard_schema(
            vocab_size=self.vocab_size,
            objective=self.objective,
            # Sets that were made before there was such a column do not name it.
            word_starts=bool(self.manifest.get("word_starts")),
            static_masking=self.static_masking,
        )

    @cached_property
    def _storage(self) -> Storage:
        # Kept: a client of an object store takes longer to make than a record batch to read.
        return self.generation.storage

    @property
    def vocab_size(self) -> int:
        """Entries of the vocabulary."""
        return int(self.manifest["vocab_size"])

    @property
    def objective(self) -> Objective:
        """What the instances were cut for."""
        objective: Objective = self.manifest["objective"]
        return objective

    @property
    def static_masking(self) -> bool:
        """Whether the shards hold masked instances."""
        return bool(self.manifest["masking"]["mode"] == "static")

    @property
    def special_ids(self) -> dict[str, int]:
        """Ids of [PAD], [UNK], [CLS], [SEP] and [MASK]."""
        return dict(self.manifest["special_ids"])

    def shards(self, split: str) -> list[ShardEntry]:
        """Return the shards of "train" or "held_out", in the order of instance numbers.

        Raises InputError if that split has no instances.
        """
        chosen = [
            ShardEntry.from_json(one) for one in self.manifest["shards"] if one["split"] == split
        ]
        if not chosen:
            raise InputError(
                f"{self.uri}: no {split} instances; raise documents.held_out_fraction or add text"
            )
        return chosen

    @property
    def uri(self) -> str:
        """Where the set lies."""
        return f"{self.generation.root}/{self.generation.prefix}"

    @cached_property
    def tokenizer_json(self) -> bytes:
        """The tokenizer the shards were made with; CorruptError if it was exchanged."""
        return self.generation.read(ObjectEntry(**self.manifest["tokenizer"]["tokenizer_json"]))

    @cached_property
    def vocab_txt(self) -> bytes:
        """Its vocabulary, an entry a line."""
        return self.generation.read(ObjectEntry(**self.manifest["tokenizer"]["vocab_txt"]))

    @cached_property
    def token_classes(self) -> TokenClasses:
        """What masking must know of the vocabulary."""
        return token_classes(read_vocab(self.vocab_txt), sorted(self.special_ids.values()))

    def read_rows(self, shard: ShardEntry, number: int) -> InstanceRows:
        """Read and verify one record batch of a shard."""
        return self.decode(self.read_message(shard, number))

    def read_message(self, shard: ShardEntry, number: int) -> bytes:
        """Read and verify the IPC message of one record batch of a shard."""
        return read_message(self._storage, self.generation.prefix, shard, number)

    def decode(self, message: bytes) -> InstanceRows:
        """View the rows of a record batch's IPC message."""
        return instance_rows(decode_message(message, self.schema))

    def read_row_tokens(self, shard: ShardEntry, number: int) -> NDArray[np.int64]:
        """Read the tokens of each row of one record batch from the lengths sidecar, int64."""
        return read_row_tokens(self._storage, self.generation.prefix, shard, number)
