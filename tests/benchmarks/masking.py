"""Masking beside transformers' collator, one core: `python -m tests.benchmarks.masking`.

Two peers: the collator as it is called (lists of ids in, a padded masked batch out), and its
masking function alone on tensors made beforehand.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

from pipeline.config import MaskingConfig
from pipeline.masking import mask_tokens, token_classes
from tests.benchmarks.harness import Case, run

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CLS, SEP = 2, 3
WORDS = 24_000
VOCABULARY = [
    *SPECIAL,
    *(f"word{number}" for number in range(WORDS)),
    *(f"##piece{number}" for number in range(30_522 - WORDS - len(SPECIAL))),
]
BATCH_TOKENS = 1 << 17

Ids = NDArray[np.uint16]


def sequences(tokens: int, total: int = BATCH_TOKENS) -> Ids:
    """Full sequences of [CLS] A [SEP] B [SEP]; word frequencies by Zipf, one piece in five."""
    rng = np.random.default_rng(0)
    shape = (total // tokens, tokens)
    ids = len(SPECIAL) + (WORDS ** rng.random(shape)).astype(np.int64)
    pieces = rng.random(shape) < 0.2
    ids[pieces] = rng.integers(len(SPECIAL) + WORDS, len(VOCABULARY), np.count_nonzero(pieces))
    ids[:, 0] = CLS
    ids[:, tokens // 2] = ids[:, -1] = SEP
    return ids.astype(np.uint16)


def ours(ids: Ids, rules: MaskingConfig) -> Callable[[], object]:
    rows, tokens = ids.shape
    return partial(
        mask_tokens,
        ids.ravel(),
        np.arange(rows + 1, dtype=np.int64) * tokens,
        np.arange(rows, dtype=np.uint64),
        seed=0,
        purpose="mask",
        epoch=0,
        repetition=0,
        rules=rules,
        classes=token_classes(VOCABULARY, range(len(SPECIAL))),
    )


def tokenizer() -> PreTrainedTokenizerFast:
    ids = {token: number for number, token in enumerate(VOCABULARY)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordPiece(vocab=ids, unk_token="[UNK]")),
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def collator(*, whole_word: bool) -> DataCollatorForLanguageModeling:
    with warnings.catch_warnings():
        # It has no random replacement with whole words, and says so.
        warnings.simplefilter("ignore", UserWarning)
        return DataCollatorForLanguageModeling(tokenizer(), whole_word_mask=whole_word)


def offset_mapping(row: Ids) -> list[tuple[int, int]]:
    """Character spans that tell words: a piece begins where the token before it ends."""
    spans = []
    end = 0
    for token in row.tolist():
        start = end if VOCABULARY[token].startswith("##") else end + 1
        end = start + 1
        spans.append((start, end))
    return spans


def collator_call(ids: Ids, *, whole_word: bool) -> Callable[[], object]:
    special = ids < len(SPECIAL)
    rows: list[dict[str, Any]] = [
        {"input_ids": row.tolist(), "special_tokens_mask": mask.tolist()}
        for row, mask in zip(ids, special.astype(np.int64), strict=True)
    ]
    if whole_word:
        for row, features in zip(ids, rows, strict=True):
            features["offset_mapping"] = offset_mapping(row)
    call = collator(whole_word=whole_word)
    return lambda: call([dict(features) for features in rows])


def masking_alone(ids: Ids) -> Callable[[], object]:
    inputs = torch.from_numpy(ids.astype(np.int64))
    special = inputs < len(SPECIAL)
    call = collator(whole_word=False).torch_mask_tokens
    return lambda: call(inputs.clone(), special_tokens_mask=special)


def cases() -> list[Case]:
    exact = MaskingConfig()
    bernoulli = MaskingConfig(amount="bernoulli")
    whole_word = MaskingConfig(unit="whole_word")
    found = []
    for tokens in (128, 512):
        ids = sequences(tokens)
        for name, rules, peer, theirs in (
            ("token, exact", exact, "collator", collator_call(ids, whole_word=False)),
            ("token, exact", exact, "collator's masking alone", masking_alone(ids)),
            ("token, bernoulli", bernoulli, "collator", collator_call(ids, whole_word=False)),
            ("whole word, exact", whole_word, "collator", collator_call(ids, whole_word=True)),
        ):
            found.append(
                Case(
                    case=f"{name}, {tokens} tokens a row",
                    unit="tokens/s",
                    amount=ids.size,
                    ours=ours(ids, rules),
                    peer=f"transformers {peer}",
                    theirs=theirs,
                )
            )
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    run("masking", cases())
