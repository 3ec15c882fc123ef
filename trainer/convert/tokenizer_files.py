"""The tokenizer of an export: tokenizer.json, tokenizer_config.json and vocab.txt.

What AutoTokenizer opens is BertTokenizer wherever that class gives the same tokens, so that older
versions and other libraries know it by name. It makes itself anew from the vocabulary, with words
of at most 100 characters and with two segments; for anything else the class is
PreTrainedTokenizerFast, which is tokenizer.json as it is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from pipeline.errors import InputError

_SPECIAL_TOKENS = {
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
    "pad_token": "[PAD]",
    "sep_token": "[SEP]",
    "unk_token": "[UNK]",
}
_BERT_TOKENIZER_LONGEST_WORD = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSource:
    """The tokenizer that made a model's instances, and its settings."""

    tokenizer_json: bytes
    vocab_txt: bytes
    lowercase: bool
    strip_accents: bool
    handle_chinese_chars: bool

    @property
    def entries(self) -> int:
        """Entries of the vocabulary: line feeds only end them, never Unicode's separators."""
        return self.vocab_txt.count(b"\n") + (not self.vocab_txt.endswith(b"\n"))

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer."""
        return Tokenizer.from_str(self.tokenizer_json.decode())

    def id_of(self, token: str) -> int:
        """Return a token's id; InputError if the vocabulary has no such entry."""
        found = self.tokenizer().token_to_id(token)
        if found is None:
            raise InputError(f"the vocabulary has no {token}: it is not one of a BERT model")
        return int(found)


def tokenizer_class(source: TokenizerSource, *, segments: bool) -> str:
    """Return the class of transformers that AutoTokenizer makes of an export."""
    longest_word = json.loads(source.tokenizer_json)["model"]["max_input_chars_per_word"]
    as_bert = segments and longest_word == _BERT_TOKENIZER_LONGEST_WORD
    return "BertTokenizer" if as_bert else "PreTrainedTokenizerFast"


def tokenizer_files(
    source: TokenizerSource, *, max_seq_length: int, segments: bool
) -> dict[str, bytes]:
    """Return file name -> bytes; without `segments` every token is of segment 0.

    Case, accents and CJK stand in tokenizer_config.json as well as in tokenizer.json, because
    some loaders read only one of them.
    """
    tokenizer = json.loads(source.tokenizer_json)
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    if not segments:
        # A model with a table of one row, or none, would fail on the second segment's 1.
        inputs.remove("token_type_ids")
        for piece in tokenizer["post_processor"]["pair"]:
            for part in piece.values():
                part["type_id"] = 0
    config: dict[str, Any] = {
        **_SPECIAL_TOKENS,
        "do_lower_case": source.lowercase,
        # The generic class leaves out token_type_ids unless they are asked for.
        "model_input_names": inputs,
        "model_max_length": max_seq_length,
        "strip_accents": source.strip_accents,
        "tokenize_chinese_chars": source.handle_chinese_chars,
        "tokenizer_class": tokenizer_class(source, segments=segments),
    }
    return {
        "tokenizer.json": source.tokenizer_json
        if segments
        else json.dumps(tokenizer, ensure_ascii=False, indent=2).encode(),
        "tokenizer_config.json": (json.dumps(config, indent=2, sort_keys=True) + "\n").encode(),
        "vocab.txt": source.vocab_txt,
    }
