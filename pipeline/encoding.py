"""Text to WordPiece ids at memory speed: a walk over the bytes and a table from word to ids.

The tokenizers library is asked for the ids of each distinct word once, in bulk; the vocabulary
stage does so for the corpus's own words and every worker reads that table.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numba as nb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pipeline.errors import ConfigError, CorruptError
from pipeline.normalization import NormalizationTable
from pipeline.pretokenize import WordInterner, text_buffers
from pipeline.token_spans import piece_lengths, token_spans
from pipeline.word_pieces import WORDS_PER_TEXT, TokenIds, WordPieces

_NEW_BYTES = 1 << 27  # memory for words beyond the word table before starting from it again


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EncodedText:
    """Token ids of some rows: ids uint16 or uint32 [tokens], offsets int64 [rows + 1].

    `word_starts` bool [tokens] is true at the first token of each word. `spans` int32 [tokens, 2],
    if asked for: the first byte of each token in its row's UTF-8 text, and the one after its last.
    """

    ids: TokenIds
    offsets: NDArray[np.int64]
    word_starts: NDArray[np.bool_]
    spans: NDArray[np.int32] | None = None


class WordPieceEncoder:
    """Encodes as the tokenizers library does, without special tokens; text is never one."""

    def __init__(
        self,
        tokenizer_json: str,
        word_table: pa.Table | None = None,
        normalization: NormalizationTable | None = None,
    ) -> None:
        """Take `word_table` from `build_word_table`; what is not given is asked of the library.

        Raises ConfigError for a tokenizer that is not BERT's WordPiece, or one that does not
        belong to `word_table` or `normalization`.
        """
        self._pieces = WordPieces(tokenizer_json)
        self._piece_lengths = piece_lengths(self._pieces.entries)
        # For the spans of rows in which marks change places; text is never a special token.
        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        rules = self._pieces.rules
        self._normalization = normalization or NormalizationTable.build(rules)
        if self._normalization.rules != rules:
            raise ConfigError(
                f"normalization table: built for {self._normalization.rules}, tokenizer.json says"
                f" {rules}: both must come from one vocabulary"
            )
        if word_table is None:
            word_table = self._pieces.table(pa.array([], pa.large_string()))
        self._word_table = _checked(self._pieces, word_table)
        self._restart()

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """Return uint16 where every id of the vocabulary fits it, else uint32."""
        return self._pieces.id_dtype

    def encode(self, text: pa.LargeStringArray, *, with_spans: bool = False) -> EncodedText:
        """Return the ids of each row of `text`; new words are asked of the library in bulk.

        Raises InputError for a null row.
        """
        if self._words.nbytes > self._restart_bytes:
            self._restart()
        blocks: list[Any] = [np.empty(0, self.id_dtype)]
        word_starts = [np.empty(0, np.bool_)]
        spans = [np.empty((0, 2), np.int32)]
        row_ends = [np.zeros(1, np.int64)]
        rows = 0
        for stream in self._words.walk(text):
            self._learn()
            ends = np.empty(len(stream.row_ends), np.int64)
            ids: Any = np.empty(_count_ids(stream.numbers, self._id_starts), self.id_dtype)
            starts = np.zeros(len(ids), np.bool_)
            _gather(stream.numbers, stream.row_ends, self._id_starts, self._ids, ids, starts, ends)
            if with_spans:
                block = text.slice(rows, len(ends))
                spans.append(self._spans(block, stream.reordered, ids, ends))
            rows += len(ends)
            blocks.append(ids)
            word_starts.append(starts)
            row_ends.append(ends + row_ends[-1][-1])
        return EncodedText(
            ids=np.concatenate(blocks),
            offsets=np.concatenate(row_ends),
            word_starts=np.concatenate(word_starts),
            spans=np.concatenate(spans) if with_spans else None,
        )

    def _spans(
        self,
        text: pa.LargeStringArray,
        reordered: list[int],
        ids: TokenIds,
        row_ends: NDArray[np.int64],
    ) -> NDArray[np.int32]:
        spans = np.empty((len(ids), 2), np.int32)
        passed_over = np.zeros(len(text), np.bool_)
        passed_over[reordered] = True
        values, offsets = text_buffers(text)
        arrays = self._normalization.arrays
        token_spans(values, offsets, passed_over, arrays, ids, row_ends, self._piece_lengths, spans)
        for row in reordered:
            first = row_ends[row - 1] if row else 0
            spans[first : row_ends[row]] = self._library_spans(text[row].as_py())
        return spans

    def _library_spans(self, text: str) -> NDArray[np.int64]:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        starts = np.cumsum([0, *(len(character.encode()) for character in text)])
        return starts[np.array(encoding.offsets, np.int64).reshape(-1, 2)]

    def _restart(self) -> None:
        table = self._word_table
        self._words = WordInterner(self._normalization, _one_chunk(table["word"]))
        self._restart_bytes = self._words.nbytes + _NEW_BYTES
        self._known = table.num_rows
        self._ids, self._id_starts = _flat_ids(_one_chunk(table["ids"]))

    def _learn(self) -> None:
        """Ask the library for the words met since the last call."""
        if len(self._words) == self._known:
            return
        ids, starts = self._pieces.ids_of(self._words.words(self._known))
        self._id_starts = np.concatenate((self._id_starts, starts[1:] + self._id_starts[-1]))
        self._ids = np.concatenate((self._ids, ids), dtype=self.id_dtype)
        self._known = len(self._words)


def build_word_table(tokenizer_json: str, words: pa.LargeStringArray) -> pa.Table:
    """Return {word: large_string, ids: large_list<uint16 or uint32>} for distinct `words`.

    `words` are words as count_words gives them: normalised, without white space.
    """
    return WordPieces(tokenizer_json).table(words)


def _checked(pieces: WordPieces, table: pa.Table) -> pa.Table:
    id_type = pa.from_numpy_dtype(pieces.id_dtype)
    expected = {"word": pa.large_string(), "ids": pa.large_list(id_type)}
    found = dict(zip(table.schema.names, table.schema.types, strict=True))
    if found != expected:
        raise CorruptError(f"word table: columns {found}: must be {expected}")
    sample = table.slice(0, WORDS_PER_TEXT)
    if pieces.table(_one_chunk(sample["word"]))["ids"].to_pylist() != sample["ids"].to_pylist():
        raise ConfigError(
            "word table: its ids are not those of tokenizer.json: both must come from one"
            " vocabulary"
        )
    return table


def _one_chunk(column: pa.ChunkedArray) -> Any:
    chunk = column.combine_chunks()
    return chunk.chunk(0) if isinstance(chunk, pa.ChunkedArray) else chunk


def _flat_ids(lists: pa.LargeListArray) -> tuple[TokenIds, NDArray[np.int64]]:
    offsets = lists.offsets.to_numpy()
    return lists.values.to_numpy()[offsets[0] : offsets[-1]].copy(), offsets - offsets[0]


@nb.njit(cache=True, _nrt=False)
def _count_ids(numbers: NDArray[np.int32], id_starts: NDArray[np.int64]) -> np.int64:
    total = np.int64(0)
    for number in numbers:
        total += id_starts[number + 1] - id_starts[number]
    return total


@nb.njit(cache=True, _nrt=False)
def _gather(
    numbers: NDArray[np.int32],
    row_ends: NDArray[np.int64],
    id_starts: NDArray[np.int64],
    word_ids: TokenIds,
    ids: TokenIds,
    word_starts: NDArray[np.bool_],
    id_row_ends: NDArray[np.int64],
) -> None:
    """Write the ids of each word to `ids`, where it starts, and where each row ends."""
    count = np.int64(0)
    word = np.int64(0)
    for row in range(row_ends.size):
        while word < row_ends[row]:
            start = id_starts[numbers[word]]
            word_starts[count] = True
            for index in range(start, id_starts[numbers[word] + 1]):
                ids[count] = word_ids[index]
                count += 1
            word += 1
        id_row_ends[row] = count
