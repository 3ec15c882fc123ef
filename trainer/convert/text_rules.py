"""What a checkpoint's tokenizer does to the text: case, accents, CJK characters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.normalization import TextRules
from trainer.convert.config_json import ConfigJson

# They make their normaliser from tokenizer_config.json; every other class is tokenizer.json.
_MADE_ANEW = ("BertTokenizer", "BertTokenizerFast")
_CONFIG_KEYS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
_NORMALIZER_KEYS = ("lowercase", "strip_accents", "handle_chinese_chars")


def text_rules(
    tokenizer: ConfigJson, config: ConfigJson, *, default_class: str = ""
) -> tuple[TextRules, bool]:
    """Return the rules that AutoTokenizer has, and whether the two files contradict each other.

    `tokenizer` is the checkpoint's tokenizer.json and `config` its tokenizer_config.json, both may
    be empty; `default_class` is the tokenizer's where that names none. The normaliser is that of
    tokenizer.json, unless there is none or the class makes its own.
    Raises InputError, naming file and key, for a value that is not true, false or null.
    """
    from_config = _rules(config, *_CONFIG_KEYS)
    normalizer = _bert_normalizer(tokenizer.table.get("normalizer"))
    if normalizer is None:
        return from_config, False
    from_normalizer = _rules(ConfigJson(normalizer, tokenizer.uri), *_NORMALIZER_KEYS)
    made_anew = (config.table.get("tokenizer_class") or default_class) in _MADE_ANEW
    config_speaks = made_anew or any(config.table.get(key) is not None for key in _CONFIG_KEYS)
    rules = from_config if made_anew else from_normalizer
    return rules, config_speaks and from_config != from_normalizer


def _rules(table: ConfigJson, case: str, accents: str, chinese: str) -> TextRules:
    """Return what is said under these keys; as in BertTokenizer what is not said is uncased."""
    lowercase = table.yes_or_no(case, True)
    return TextRules(
        lowercase=lowercase,
        strip_accents=table.yes_or_no(accents, lowercase),
        handle_chinese_chars=table.yes_or_no(chinese, True),
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
