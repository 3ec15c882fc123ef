"""Documents as token ids: what a worker holds of a vocabulary, and how it encodes with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import regex
from numpy.typing import NDArray

from pipeline.document_keys import hash_words, source_names
from pipeline.encoding import WordPieceEncoder
from pipeline.instances import EncodedDocuments
from pipeline.masking import TokenClasses, token_classes
from pipeline.normalization import NormalizationTable
from pipeline.ragged import take_rows
from pipeline.source_config import SourceConfig
from pipeline.word_starts import find_word_starts, is_segmented

_IDEOGRAPH = regex.compile(r"\p{Script=Han}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EncodingVocabulary:
    """A vocabulary of V entries with what takes time to make of it: one serves many partitions."""

    entries: Sequence[str]
    special_ids: Mapping[str, int]
    encoder: WordPieceEncoder
    normalization: NormalizationTable
    classes: TokenClasses
    is_ideograph: NDArray[np.bool_]
    """[V]; entries that are one ideograph."""

    @staticmethod
    def of(
        entries: Sequence[str],
        special_ids: Mapping[str, int],
        encoder: WordPieceEncoder,
        normalization: NormalizationTable,
    ) -> EncodingVocabulary:
        """Classify the entries, which are in id order."""
        return EncodingVocabulary(
            entries=entries,
            special_ids=special_ids,
            encoder=encoder,
            normalization=normalization,
            classes=token_classes(entries, sorted(special_ids.values())),
            is_ideograph=np.array([bool(_IDEOGRAPH.fullmatch(entry)) for entry in entries]),
        )


def has_word_starts(sources: Sequence[SourceConfig]) -> bool:
    """Return whether a source's language needs the column word_starts: then all rows have it."""
    return any(is_segmented(source.locale) for source in sources)


def _originals(keys: pa.StringArray, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the lowest hash among the copies of each document, its own where it has none."""
    if pc.all(pc.ends_with(keys, ".0"), min_count=0).as_py():
        return hashes
    texts = pc.replace_substring_regex(keys, r"\.\d+$", "").dictionary_encode()
    numbers = np.asarray(texts.indices)
    lowest = np.full(len(texts.dictionary), np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(lowest, numbers, hashes)
    originals: NDArray[np.uint64] = lowest[numbers]
    return originals


def _source_numbers(keys: pa.StringArray, names: Sequence[str]) -> NDArray[np.uint16]:
    """Return the place in `names` of the source that each document's key begins with."""
    found = source_names(keys)
    numbers = pc.index_in(found, pa.array(names, found.type))
    return np.asarray(numbers.cast(pa.uint16()))


def encode_documents(
    table: pa.Table, vocabulary: EncodingVocabulary, sources: Sequence[SourceConfig]
) -> EncodedDocuments:
    """Encode documents (DOCUMENT_SCHEMA), with word_starts where a source's language needs them."""
    sentences = table["sentences"].combine_chunks()
    text = sentences.flatten()
    encoded = vocabulary.encoder.encode(text)
    document_offsets = np.asarray(sentences.offsets).astype(np.int64)
    document_offsets -= document_offsets[0]
    keys = table["document_key"].combine_chunks()
    numbers = _source_numbers(keys, [source.name for source in sources])
    # The first half of each, as a little-endian word.
    hashes = hash_words(table["document_hash"])[:, 0].byteswap()
    documents = EncodedDocuments(
        ids=encoded.ids,
        sentence_offsets=encoded.offsets,
        document_offsets=document_offsets,
        document_hashes=hashes,
        originals=_originals(keys, hashes),
        sources=numbers if len(sources) > 1 else None,
    )
    if not has_word_starts(sources):
        return documents
    word_starts = ~vocabulary.classes.continuation[documents.ids]
    locales = np.array([source.locale for source in sources], dtype=np.str_)[numbers]
    for locale in sorted({source.locale for source in sources if is_segmented(source.locale)}):
        rows = np.flatnonzero(np.repeat(locales == locale, np.diff(document_offsets)))
        if rows.size == 0:
            continue
        ids, offsets = take_rows(documents.ids, documents.sentence_offsets, rows)
        found = find_word_starts(
            text.take(pa.array(rows)),
            ids,
            offsets,
            locale=locale,
            vocabulary=vocabulary.entries,
            unk_id=vocabulary.special_ids["[UNK]"],
            normalization=vocabulary.normalization,
        )
        moved = np.repeat(documents.sentence_offsets[rows] - offsets[:-1], np.diff(offsets))
        word_starts[np.arange(ids.size) + moved] = found
    return dataclasses.replace(documents, word_starts=word_starts)
