"""The tokenizers library asked for the ids of whole words, in bulk: the definition of WordPiece."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pipeline.errors import ConfigError, InputError
from pipeline.normalization import TextRules

TokenIds = NDArray[np.uint16] | NDArray[np.uint32]

WORDS_PER_TEXT = 4096  # words the library is given as one text
_END_OF_WORD = "\0"  # clean_text drops it, so no word holds it


class WordPieces:
    """The model of a tokenizer.json, asked about whole words."""

    def __init__(self, tokenizer_json: str) -> None:
        """Read `entries` (entry to id), `rules` and `id_dtype`; ConfigError if it is not BERT's."""
        parts = json.loads(tokenizer_json)
        for part, kind in ("model", "WordPiece"), ("pre_tokenizer", "BertPreTokenizer"):
            found = (parts.get(part) or {}).get("type")
            if found != kind:
                raise ConfigError(f"tokenizer.json: {part} {found}: must be {kind}")
        for token in parts["added_tokens"]:
            if not token["special"]:
                raise ConfigError(
                    f"tokenizer.json: added token {token['content']!r} is not special: put it"
                    " into the vocabulary of the model"
                )
        self.rules = TextRules.from_normalizer(parts["normalizer"])
        vocabulary = parts["model"]["vocab"]
        self.entries: dict[str, int] = dict(vocabulary)
        self._end_id = 1 + max(vocabulary.values())
        self.id_dtype = np.dtype(np.uint16 if self._end_id <= 1 << 16 else np.uint32)
        # Words come normalised and split; an entry of its own marks where each one ends.
        vocabulary[_END_OF_WORD] = self._end_id
        parts |= {"normalizer": None, "post_processor": None, "added_tokens": []}
        parts |= {"pre_tokenizer": {"type": "WhitespaceSplit"}, "truncation": None, "padding": None}
        self._tokenizer = Tokenizer.from_str(json.dumps(parts))

    def ids_of(self, words: pa.LargeStringArray) -> tuple[TokenIds, NDArray[np.int64]]:
        """Return the ids of all words, one after another, and int64 [words + 1] offsets."""
        texts = [
            f" {_END_OF_WORD} ".join([*words[first : first + WORDS_PER_TEXT].to_pylist(), ""])
            for first in range(0, len(words), WORDS_PER_TEXT)
        ]
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        parts = [np.array(encoding.ids, np.uint32) for encoding in encodings]
        marked = np.concatenate([np.empty(0, np.uint32), *parts])
        ends = np.flatnonzero(marked == self._end_id)
        if len(ends) != len(words):
            raise InputError(f"words: {len(words)} given, {len(ends)} found: a word holds a NUL")
        offsets = np.concatenate(([0], ends - np.arange(len(ends))))
        return marked[marked != self._end_id].astype(self.id_dtype), offsets

    def table(self, words: pa.LargeStringArray) -> pa.Table:
        """Return {word: large_string, ids: large_list<uint16 or uint32>}."""
        ids, offsets = self.ids_of(words)
        lists = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(ids))
        return pa.table({"word": words, "ids": lists})
