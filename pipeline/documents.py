"""Raw text -> cleaned documents of sentences, each with its key, its hash and its partition."""

from __future__ import annotations

import functools
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numba as nb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import regex
from numpy.typing import NDArray

from pipeline.cleaning import CleanedTexts, clean
from pipeline.config import CleaningConfig, DocumentsConfig, SourceConfig
from pipeline.contract import DOCUMENT_SCHEMA
from pipeline.corpus import RawDocument
from pipeline.document_keys import are_held_out, document_hashes, document_key, hash_words
from pipeline.documents_config import unicode_scripts
from pipeline.paragraphs import PARAGRAPH_SCHEMA, fingerprints
from pipeline.sentences import lines_as_sentences, split_sentences
from pipeline.utf8 import decode

# Characters of documents that are cleaned and split together: bounds memory, not results.
_BATCH_CHARACTERS = 4_000_000
# Text of one run file: what the split pass holds before it writes.
_CHUNK_TEXT_BYTES = 64_000_000
# Text of a partition, or of the part of one, that a merge holds.
_MERGE_TEXT_BYTES = 256_000_000
_PARTITION_BYTES = 64_000_000
# Bytes of text that a compressed byte of input stands for, about.
_EXPANSION = 4

# What the split pass leaves for the next ones, beside the contract's columns.
RUN_SCHEMA = pa.schema(
    [
        *DOCUMENT_SCHEMA,
        pa.field("content_hash", pa.binary(16)),  # null where nobody looks for duplicates
        pa.field("ordinal", pa.uint32(), nullable=False),  # place among the split's documents
        pa.field("text_bytes", pa.int64(), nullable=False),
        pa.field("partition", pa.uint32(), nullable=False),
        pa.field("source", pa.uint16(), nullable=False),  # number of its source in the config
        pa.field("paragraphs", pa.large_list(pa.uint32())),  # line of each sentence
    ]
)
FINGERPRINT_SCHEMA = pa.schema(
    [
        RUN_SCHEMA.field(name)
        for name in (
            "document_hash", "document_key", "content_hash", "ordinal", "text_bytes", "partition",
            "source",
        )
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Partitions:
    """How many partitions the training and the held-out documents are dealt over."""

    train: int
    held_out: int
    ranges: int = 1
    """Parts by document hash that a partition is merged in, one after the other."""

    @property
    def total(self) -> int:
        """Partitions of both splits; the held-out ones come after the training ones."""
        return self.train + self.held_out

    @property
    def groups(self) -> int:
        """Groups of a run file: each partition's ranges, in order."""
        return self.total * self.ranges


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some documents of a split, in the order read."""

    documents: pa.Table
    """RUN_SCHEMA."""
    paragraphs: pa.Table
    """PARAGRAPH_SCHEMA; empty unless repeated paragraphs are dropped."""


def unit_bytes(text_bytes: int, least: int) -> int:
    """Return the text of a partition or a split of a corpus: `least`, and more from 1.6 GB on.

    Splits times partitions are the pieces of the shuffle: growing both with the root of the
    corpus keeps them in the millions at 10 TB.
    """
    return max(least, math.isqrt(text_bytes * 2_500_000) if least >= _PARTITION_BYTES else least)


def estimated_text_bytes(plain_bytes: int, compressed_bytes: int) -> int:
    """Return about how much text raw input holds."""
    return plain_bytes + _EXPANSION * compressed_bytes


def choose_partitions(text_bytes: int, config: DocumentsConfig) -> Partitions:
    """Choose partitions from the bytes of raw input alone, so that they never depend on a run."""
    train = config.partitions or -(-text_bytes // unit_bytes(text_bytes, _PARTITION_BYTES))
    train = max(1, train)
    held_out = max(1, round(train * config.held_out_fraction)) if config.held_out_fraction else 0
    return Partitions(train, held_out, max(1, -(-text_bytes // train // _MERGE_TEXT_BYTES)))


def split_documents(
    raw: Iterable[RawDocument],
    source_number: int,
    config: DocumentsConfig,
    partitions: Partitions,
    seed: int,
    counts: Counter[str],
) -> Iterator[Chunk]:
    """Clean documents, split them into sentences and give each its partition.

    Yields chunks of about 64 MB of text, and counts the documents read and dropped by reason and
    what cleaning changed. A document is in memory once, in a chunk twice.
    """
    source = config.sources[source_number]
    pending: list[Chunk] = []
    size = 0
    ordinal = 0
    raw = iter(raw)
    while True:
        places: list[tuple[str, int]] = []  # key, ordinal
        texts = _batch(raw, source, places, counts, ordinal)
        cleaned = clean(texts, config.cleaning, counts)
        read = counts["read"] - ordinal
        if read == 0:
            break
        ordinal += read
        cleaned, kept = _selected(cleaned, config.cleaning, counts)
        chosen = [places[index] for index in kept.tolist()]
        del places
        pending.append(_chunk(cleaned, chosen, source, source_number, config, partitions, seed))
        size += cleaned.utf8.size
        if size >= _CHUNK_TEXT_BYTES:
            yield _together(pending)
            pending, size = [], 0
    if pending:
        yield _together(pending)


def _together(chunks: Sequence[Chunk]) -> Chunk:
    documents = pa.concat_tables([one.documents for one in chunks])
    return Chunk(documents, pa.concat_tables([one.paragraphs for one in chunks]))


def _batch(
    raw: Iterator[RawDocument],
    source: SourceConfig,
    places: list[tuple[str, int]],
    counts: Counter[str],
    ordinal: int,
) -> Iterator[str]:
    """Yield texts until there are enough for a batch; only the consumer holds them."""
    characters = 0
    for document in raw:
        counts["read"] += 1
        if document.dropped:
            counts[f"dropped_{document.dropped}"] += 1
        else:
            places.append((document_key(source.name, document.path, document.offset), ordinal))
            characters += len(document.text)
            yield document.text
        del document  # its text may be large, and the next one is read before this is forgotten
        ordinal += 1
        if characters >= _BATCH_CHARACTERS:
            return


def _selected(
    texts: CleanedTexts, rules: CleaningConfig, counts: Counter[str]
) -> tuple[CleanedTexts, NDArray[np.int64]]:
    """Return the documents that the rules keep, and their numbers."""
    characters = _characters(texts.utf8, texts.ends)
    reasons = {
        "empty": characters == 0,
        "too_short": characters < rules.minimum_characters,
        "too_long": (characters > rules.maximum_characters) & (rules.maximum_characters > 0),
    }
    if rules.scripts:
        letters, wanted = _letters(texts.utf8, texts.ends, _letter_classes(rules.scripts))
        reasons["other_script"] = wanted < rules.minimum_script_share * letters
    kept = np.ones(characters.size, np.bool_)
    for reason, applies in reasons.items():
        dropped = int((kept & applies).sum())
        if dropped:
            counts[f"dropped_{reason}"] += dropped
        kept &= ~applies
    counts["kept"] += int(kept.sum())
    return (texts if kept.all() else texts.select(kept)), np.flatnonzero(kept)


@functools.lru_cache(maxsize=4)
def _letter_classes(scripts: tuple[str, ...]) -> NDArray[np.uint8]:
    """Return 1 for each code point that is a letter, 2 for one of these scripts, uint8."""
    table = np.zeros(0x110000, np.uint8)
    # Every character at its own place; a surrogate is no character.
    text = "".join(chr(one) if not 0xD800 <= one < 0xE000 else " " for one in range(0x110000))
    names = "".join(rf"\p{{Script={one}}}" for one in unicode_scripts(scripts))
    for pattern, kind in ((r"\p{L}+", 1), (rf"[\p{{L}}&&[{names}]]+", 2)):
        for match in regex.finditer(pattern, text, flags=regex.V1):
            table[match.start() : match.end()] = kind
    return table


@nb.njit(cache=True)
def _characters(utf8: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the characters of each document, int64."""
    counts = np.zeros(ends.size, np.int64)
    start = 0
    for document in range(ends.size):
        counts[document] = ((utf8[start : ends[document]] & 0xC0) != 0x80).sum()
        start = ends[document] + 1
    return counts


@nb.njit(cache=True)
def _letters(
    utf8: NDArray[np.uint8], ends: NDArray[np.int64], classes: NDArray[np.uint8]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (letters, letters of the wanted scripts) of each document, int64."""
    letters = np.zeros(ends.size, np.int64)
    wanted = np.zeros(ends.size, np.int64)
    at = 0
    for document in range(ends.size):
        while at < ends[document]:
            point, width = decode(utf8, at)
            letters[document] += classes[point] > 0
            wanted[document] += classes[point] == 2
            at += width
        at += 1
    return letters, wanted


def _chunk(
    texts: CleanedTexts,
    places: Sequence[tuple[str, int]],
    source: SourceConfig,
    source_number: int,
    config: DocumentsConfig,
    partitions: Partitions,
    seed: int,
) -> Chunk:
    if not places:
        return Chunk(RUN_SCHEMA.empty_table(), PARAGRAPH_SCHEMA.empty_table())
    keys = [key for key, _ in places]
    hashes, partition = _placed(keys, config, partitions, seed)
    contents = _content_hashes(texts) if config.cleaning.deduplicate else [None] * len(keys)
    split = split_sentences(texts, source.locale) if source.sentences == "icu" else None
    sentences = split or lines_as_sentences(texts)
    threshold = config.cleaning.deduplicate_paragraphs
    lines = sentences.paragraph_lists() if threshold else pa.nulls(len(keys), RUN_SCHEMA.types[-1])
    documents = pa.table(
        [
            pa.array(hashes, pa.binary(16)),
            pa.array(keys, pa.large_string()),
            sentences.as_lists(),
            pa.array(contents, pa.binary(16)),
            pa.array([ordinal for _, ordinal in places], pa.uint32()),
            pa.array(np.diff(texts.ends, prepend=-1) - 1),
            pa.array(partition),
            pa.array(np.full(len(keys), source_number, np.uint16)),
            lines,
        ],
        schema=RUN_SCHEMA,
    )
    if not threshold:
        return Chunk(documents, PARAGRAPH_SCHEMA.empty_table())
    return Chunk(documents, fingerprints(texts, documents, threshold))


def _content_hashes(texts: CleanedTexts) -> list[bytes]:
    utf8 = memoryview(texts.utf8)  # type: ignore[arg-type]  # an array is a buffer
    return [
        hashlib.blake2b(utf8[start:end], digest_size=16).digest() for start, end in texts.spans()
    ]


def _placed(
    keys: Sequence[str], config: DocumentsConfig, partitions: Partitions, seed: int
) -> tuple[list[bytes], NDArray[np.uint32]]:
    """Return the hash and the partition of each document."""
    hashes = document_hashes(keys, seed)
    place = np.frombuffer(b"".join(hashes), ">u8")[::2]
    partition = place % np.uint64(partitions.train)
    if partitions.held_out:
        held_out = are_held_out(keys, config.held_out_fraction, seed)
        partition[held_out] = partitions.train + place[held_out] % np.uint64(partitions.held_out)
    return hashes, partition.astype(np.uint32)


def run_groups(table: pa.Table, partitions: Partitions) -> NDArray[np.int64]:
    """Return the group of each row of a run table: its partition, then its range of hashes."""
    high = hash_words(table["document_hash"])[:, 0] >> np.uint64(32)
    place = (high * np.uint64(partitions.ranges)) >> np.uint64(32)
    return np.asarray(table["partition"]).astype(np.int64) * partitions.ranges + place.astype(
        np.int64
    )


def content_groups(table: pa.Table, groups: int) -> NDArray[np.int64]:
    """Return the deduplication range of each row's content hash; 0 where there are none."""
    if table["content_hash"].null_count:
        return np.zeros(table.num_rows, np.int64)
    return (hash_words(table["content_hash"])[:, 0] % np.uint64(groups)).astype(np.int64)


def duplicates(tables: Iterable[pa.Table]) -> pa.Table:
    """Return the rows that repeat an earlier text: all but the smallest document key of each."""
    table = pa.concat_tables(tables)
    table = table.sort_by([("content_hash", "ascending"), ("document_key", "ascending")])
    contents = table["content_hash"].combine_chunks()
    if len(contents) < 2:
        return table.slice(0, 0)
    same = pc.equal(contents.slice(1), contents.slice(0, len(contents) - 1))
    return table.filter(pa.concat_arrays([pa.array([False]), same]))
