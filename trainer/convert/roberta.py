"""RoBERTa (Liu et al. 2019): RobertaModel and RobertaForMaskedLM of transformers.

Positions start at pad_token_id + 1, so the position table has pad_token_id + 1 rows more than the
longest sequence has tokens: 514 for 512 with the released pad id of 1, 513 with [PAD] = 0.

RobertaModel may have a pooler, which is then ours too. Beside an MLM head it is left out: no
objective of RoBERTa trains one, and RobertaForMaskedLM does not read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainer.convert.bert import encoder_pairs, read_encoder, write_encoder
from trainer.convert.config_json import ConfigJson
from trainer.convert.family import Family, SpecialIds, modules
from trainer.convert.names import Heads, Pair
from trainer.settings.model import ModelConfig


def _pairs(config: ModelConfig, heads: Heads, base: str) -> Iterator[Pair]:
    yield from encoder_pairs(config, base)
    if heads.pooler:
        yield from modules({"pooler.dense": f"{base}pooler.dense"})
    if heads.masked_lm:
        yield from modules(
            {
                "masked_lm_head.dense": "lm_head.dense",
                "masked_lm_head.layer_norm": "lm_head.layer_norm",
            }
        )
        yield Pair(ours="masked_lm_head.decoder_bias", theirs=("lm_head.bias",), by_token=True)


def _write_config(config: ModelConfig, special: SpecialIds) -> dict[str, Any]:
    # Without these two RobertaConfig takes 0 and 2, which are other tokens of our vocabulary.
    ends = {"bos_token_id": special.cls, "eos_token_id": special.sep}
    return {**write_encoder(config, special), **ends}


def _read_config(table: ConfigJson) -> ModelConfig:
    # The twin's MLM head is exact GELU whatever hidden_act says; ours follows hidden_act.
    table.one_of("hidden_act", ("gelu",), "gelu")
    return table.model_config(
        architecture="roberta",
        pooler=False,
        position_offset="after_pad_token_id",
        **read_encoder(table),
    )


FAMILY = Family(
    architecture="roberta",
    model_type="roberta",
    base="roberta.",
    classes={"RobertaForMaskedLM": Heads(masked_lm=True), "RobertaModel": Heads()},
    head_prefixes={"masked_lm": "lm_head.", "pooler": "{base}pooler."},
    tied={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    default_pad_token_id=1,
    pairs=_pairs,
    write_config=_write_config,
    read_config=_read_config,
)
