"""A committed set of instance shards as its readers see it: inspect, verify and the loader.

A generation of the instances stage has one set for every length of instances.max_seq_length.
"""

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
    """One set of instances; everything a reader needs lies in its generation, the vocabulary too.

    `manifest` has what the generation's manifest says of all its sets, and of this one
    max_seq_length, counts, data_card and shards.
    """

    generation: Generation
    manifest: Mapping[str, Any]

    @staticmethod
    def all_of(generation: Generation, manifest: Mapping[str, Any]) -> list[InstanceSet]:
        """Return the sets of a generation with this manifest, the shortest length first."""
        shared = {name: value for name, value in manifest.items() if name != "sets"}
        return [InstanceSet(generation, {**shared, **one}) for one in manifest["sets"]]

    @staticmethod
    def one_of(
        generation: Generation, manifest: Mapping[str, Any], max_seq_length: int = 0
    ) -> InstanceSet:
        """Return the generation's set of that length; 0: its only one.

        Raises InputError, which lists the lengths, if there is none, or 0 does not say which.
        """
        sets = InstanceSet.all_of(generation, manifest)
        found = [one for one in sets if max_seq_length in (0, one.max_seq_length)]
        if len(found) != 1:
            lengths = " and of ".join(str(one.max_seq_length) for one in sets)
            raise InputError(
                f"{generation.root}/{generation.prefix}: has a set of {lengths} tokens; set "
                f"training.max_seq_length, which is {max_seq_length}, to one of these"
            )
        return found[0]

    @staticmethod
    def open(root: str, max_seq_length: int = 0) -> InstanceSet:
        """Open a set of the current instances below a run's root; InputError if there is none."""
        return InstanceSet.one_of(*current(root, STAGE, COMMAND), max_seq_length)

    @property
    def max_seq_length(self) -> int:
        """Tokens of an instance at most; the set's name among those of its generation."""
        return int(self.manifest["max_seq_length"])

    @cached_property
    def schema(self) -> pa.Schema:
        """The shards' schema."""
        return shard_schema(
            vocab_size=self.vocab_size,
            objective=self.objective,
            word_starts=self.manifest["word_starts"],
            static_masking=self.static_masking,
            sources=len(self.sources),
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
    def sources(self) -> tuple[str, ...]:
        """Names of the corpus' sources, as the column `source` numbers them."""
        return tuple(self.manifest["sources"])

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
                f"{self.uri}: no {split} instances of {self.max_seq_length} tokens; raise "
                "documents.held_out_fraction or add text"
            )
        return chosen

    @property
    def uri(self) -> str:
        """Where the set's generation lies."""
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
