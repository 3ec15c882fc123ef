"""What a checkpoint's tokenizer does to the text: case, accents, CJK characters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.normalization import TextRules
from trainer.convert.config_json import ConfigJson

_YES_OR_NO = (True, False)
# They make their normaliser from tokenizer_config.json; every other class is tokenizer.json.
_MADE_ANEW = ("BertTokenizer", "BertTokenizerFast")
_SAID = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")


def text_rules(tokenizer: ConfigJson, config: ConfigJson) -> tuple[TextRules, bool]:
    """Return the rules of a checkpoint, and whether its two files contradict each other.

    `tokenizer` is its tokenizer.json and `config` its tokenizer_config.json, both may be empty. The
    first has the normaliser that the tokenizers library runs, so it is asked first, unless
    BertTokenizer is told the case: that class makes its normaliser anew.
    Raises InputError, naming file and key, for a value that is not true, false or null.
    """
    said = _rules(config, *_SAID)
    normalizer = _bert_normalizer(tokenizer.table.get("normalizer"))
    if normalizer is None:
        return said, False
    held = _rules(
        ConfigJson(normalizer, tokenizer.uri), "lowercase", "strip_accents", "handle_chinese_chars"
    )
    made_anew = config.table.get("tokenizer_class") in _MADE_ANEW
    speaks = made_anew or any(config.table.get(key) is not None for key in _SAID)
    told = made_anew and config.table.get("do_lower_case") is not None
    return said if told else held, speaks and said != held


def _rules(table: ConfigJson, case: str, accents: str, chinese: str) -> TextRules:
    """Return what is said under these keys; as in BertTokenizer what is not said is uncased."""
    lowercase = table.one_of(case, _YES_OR_NO, True)
    return TextRules(
        lowercase=lowercase,
        strip_accents=table.one_of(accents, _YES_OR_NO, lowercase),
        handle_chinese_chars=table.one_of(chinese, _YES_OR_NO, True),
    )


def _bert_normalizer(normalizer: Any) -> Mapping[str, Any] | None:
    """Return BertNormalizer's settings, also where it is one of a sequence; None without one."""
    if not isinstance(normalizer, dict):
        return None
    if normalizer.get("type") == "BertNormalizer":
        return normalizer
    steps = normalizer.get("normalizers")
    found = [_bert_normalizer(step) for step in steps] if isinstance(steps, list) else []
    return next((one for one in found if one is not None), None)
