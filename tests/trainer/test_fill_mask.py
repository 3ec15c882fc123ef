from __future__ import annotations

import pytest
import tokenizers
import torch
from tokenizers import models, normalizers, pre_tokenizers

from pipeline.errors import InputError
from tests.trainer.batches import VOCAB_SIZE, make_model
from trainer.fill_mask import fill_mask

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "function", "returns", "a", "list"]


@pytest.fixture(scope="module")
def tokenizer() -> tokenizers.Tokenizer:
    words = WORDS + [f"word{i}" for i in range(VOCAB_SIZE - len(WORDS))]
    model = models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    result = tokenizers.Tokenizer(model)
    result.normalizer = normalizers.BertNormalizer()
    result.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    result.add_special_tokens(WORDS[:5])
    return result


def test_each_mask_gets_its_likeliest_tokens_in_order(tokenizer: tokenizers.Tokenizer) -> None:
    model = make_model()
    answers = fill_mask(model, tokenizer, "the [MASK] returns a [MASK]", VOCAB_SIZE)
    assert len(answers) == 2
    for answer in answers:
        probabilities = [prediction.probability for prediction in answer]
        assert probabilities == sorted(probabilities, reverse=True)
        assert sum(probabilities) == pytest.approx(1.0, rel=1e-5)
        assert len({prediction.token for prediction in answer}) == VOCAB_SIZE
    assert answers[0] != answers[1]
    assert model.training


def test_a_head_that_knows_one_word_says_it(tokenizer: tokenizers.Tokenizer) -> None:
    model = make_model()
    with torch.no_grad():
        model.masked_lm_head.decoder_bias[WORDS.index("function")] = 100.0
    ((prediction,),) = fill_mask(model, tokenizer, "The [MASK].", 1)
    assert prediction.token == "function"
    assert prediction.probability == pytest.approx(1.0)


def test_the_longest_text_fits_and_one_more_is_refused(tokenizer: tokenizers.Tokenizer) -> None:
    model = make_model()
    assert fill_mask(model, tokenizer, "[MASK]" + " the" * 77, 1)
    with pytest.raises(InputError, match=r"81 tokens .*: the model takes 80"):
        fill_mask(model, tokenizer, "[MASK]" + " the" * 78, 1)


def test_text_without_mask_is_refused(tokenizer: tokenizers.Tokenizer) -> None:
    with pytest.raises(InputError, match=r"no \[MASK\] in 'the list'"):
        fill_mask(make_model(), tokenizer, "the list", 1)


@pytest.mark.parametrize("top_k", [0, VOCAB_SIZE + 1])
def test_top_k_out_of_range_is_refused(tokenizer: tokenizers.Tokenizer, top_k: int) -> None:
    with pytest.raises(InputError, match=f"top_k = {top_k}"):
        fill_mask(make_model(), tokenizer, "[MASK]", top_k)


def test_a_tokenizer_of_another_family_is_refused() -> None:
    other = tokenizers.Tokenizer(models.WordPiece({"<mask>": 0, "[UNK]": 1}, unk_token="[UNK]"))
    with pytest.raises(InputError, match=r"no \[CLS\]"):
        fill_mask(make_model(), other, "[MASK]", 1)
