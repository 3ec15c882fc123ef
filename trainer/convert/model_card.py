"""README.md of an export: which classes find which heads, the tokenizer, the figures of the run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.contract import LABEL_MEANINGS
from trainer.convert.families import family_of
from trainer.convert.names import Heads
from trainer.convert.tokenizer_files import TokenizerSource, tokenizer_class
from trainer.convert.writing import exported_parameters, heads_of_model, twin_of
from trainer.models.encoder_model import EncoderModel

README = "README.md"


def model_card(
    model: EncoderModel,
    source: TokenizerSource,
    *,
    training: Mapping[str, Any],
    instances: Mapping[str, Any],
) -> bytes:
    """Return the model card; `training` and `instances` are those stages' manifests."""
    class_name = twin_of(model).class_name
    config = model.config
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: fill-mask",
        "---",
        f"# {class_name}",
        "",
        f"{config.num_hidden_layers} layers of {config.hidden_size}, "
        f"{config.num_attention_heads} heads, {exported_parameters(model):,} parameters, "
        "pre-trained by clozeline.",
        "",
        "## Classes",
        "",
        *_table(("class", "heads with trained weights"), _classes(model, instances["objective"])),
        "",
        "A class without a head that is in the file names its tensors as unexpected: they are not "
        "needed there.",
        "",
        "## Tokenizer",
        "",
        *_table(("setting", "value"), _tokenizer(model, source)),
        "",
        "## Training",
        "",
        *_table(("figure", "value"), _figures(training, instances)),
        "",
        "## Data",
        "",
        *_table(("", "train", "held out"), _data(instances)),
    ]
    return "\n".join([*lines, ""]).encode()


def _classes(model: EncoderModel, objective: str) -> Iterable[tuple[str, str]]:
    """Yield the classes of the family whose heads the model has all."""
    ours = heads_of_model(model)
    for name, heads in family_of(model.config.architecture).classes.items():
        if all(getattr(ours, head) or not getattr(heads, head) for head in Heads.__slots__):
            named = _heads(heads, objective, pooler=ours.pooler and not heads.masked_lm)
            if not named:
                # transformers makes a pooler for every class without heads but ModernBERT's.
                modern = model.config.architecture == "modern"
                named = "none: hidden states" + ("" if modern else "; its pooler is not trained")
            yield f"`{name}`", named


def _heads(heads: Heads, objective: str, *, pooler: bool) -> str:
    named = ["masked language model"] if heads.masked_lm else []
    if heads.pair:
        zero, one = LABEL_MEANINGS[objective]
        named.append(f"pairs (0: {zero}, 1: {one})")
    if pooler:
        named.append("pooler")
    return ", ".join(named)


def _tokenizer(model: EncoderModel, source: TokenizerSource) -> Iterable[tuple[str, str]]:
    segments = model.config.type_vocab_size >= 2
    yield "class", f"`{tokenizer_class(source, segments=segments)}`"
    yield "entries", f"{model.vocab_size:,}"
    yield "case", "lower-cased" if source.lowercase else "kept"
    yield "accents", "removed" if source.strip_accents else "kept"
    yield "CJK characters", "words of their own" if source.handle_chinese_chars else "in words"
    yield "`[PAD]`", f"id {model.pad_token_id}"
    yield "longest sequence", f"{model.max_seq_length} tokens"
    yield "`token_type_ids`", "0 and 1" if segments else "not read"
    if model.config.position_offset != "none":
        first = model.config.first_position(model.pad_token_id)
        rows = model.config.max_position_embeddings
        yield "position table", f"{rows} rows; the first token has row {first}"


def _figures(
    training: Mapping[str, Any], instances: Mapping[str, Any]
) -> Iterable[tuple[str, str]]:
    evaluation = training["evaluation"]
    yield "objective", f"masked language model, `{instances['objective']}`"
    # Dynamic masks belong to the training, static ones lie in the shards.
    masking = training["identity"].get("masking", instances["masking"])
    yield "masking", f"`{json.dumps(masking, sort_keys=True)}`"
    yield "steps", f"{training['steps']:,}"
    yield "sequences seen", f"{training['sequences_seen']:,}"
    yield "tokens seen", f"{training['tokens_seen']:,}"
    yield "held-out masked-LM loss", f"{evaluation['mlm_loss_nats']:.4f} nats"
    yield "held-out masked-LM perplexity", f"{evaluation['mlm_perplexity']:.4g}"
    for source, figures in evaluation["by_source"].items():
        yield f"held-out masked-LM loss of {source}", f"{figures['mlm_loss_nats']:.4f} nats"
    yield "held-out masked-LM accuracy", f"{evaluation['mlm_accuracy']:.4f}"
    if evaluation["pair_accuracy"] is not None:
        yield "held-out pair accuracy", f"{evaluation['pair_accuracy']:.4f}"
    yield "unigram entropy", f"{training['unigram_entropy_nats']:.4f} nats"


def _data(instances: Mapping[str, Any]) -> Iterable[tuple[str, ...]]:
    splits = [instances["counts"][split] for split in ("train", "held_out")]
    for name in ("documents", "instances", "tokens"):
        yield name, *(f"{counts.get(name, 0):,}" for counts in splits)
    cards = [instances["data_card"][split] for split in ("train", "held_out")]
    for name in sorted(cards[0]):
        yield name, *(f"{card[name]:g}" if name in card else "" for card in cards)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterable[str]:
    for row in (head, ("---",) * len(head), *rows):
        yield "| " + " | ".join(row) + " |"
