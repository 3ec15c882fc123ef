"""The report as one HTML page that needs nothing beside itself: no network, no script."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from pipeline.contract import LABEL_COUNTS, LABEL_MEANINGS, PAIR_LABELS, SPLITS
from pipeline.decoding import DecodedInstance, DecodedToken
from trainer.fill_mask import Prediction
from trainer.report.curves import run_plots
from trainer.report.figures import draw_length_histogram, draw_plot
from trainer.report.finished_run import FinishedRun, Metrics
from trainer.report.summary import human_bytes, human_count, human_seconds, verdict

Row = tuple[str, ...]

_MASK = "[MASK]"
# A letter beside each colour, so that nothing rests on colour alone.
_MARKS = {"mask": "M", "random": "R", "kept": "K"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FillMaskExample:
    """A text with [MASK] in it and what the trained model puts there."""

    text: str
    predictions: Sequence[Sequence[Prediction]]
    """For each [MASK], likeliest first, as `trainer.fill_mask.fill_mask` returns them."""
    originals: Sequence[str] = ()
    """The token behind each [MASK], where the text is a real one."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A token as the page shows it; `glued` if no space stands before it."""

    text: str
    kind: str
    mark: str = ""
    original: str = ""
    glued: bool = False


def render_page(
    run: FinishedRun,
    summary: Mapping[str, Any],
    decoded: Sequence[DecodedInstance],
    examples: Sequence[FillMaskExample],
) -> str:
    """Render the report; figures are inline SVG, the style lies in the page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"svg": lambda drawing: Markup(drawing.svg)}
    static = run.instances["masking"]["mode"] == "static"
    objective = run.instances["objective"]
    plots = run_plots(run.metrics, summary["unigram_entropy_nats"], objective)
    return environment.get_template("page.html.j2").render(
        title=f"clozeline: {run.root}",
        root=run.root,
        subtitle=_subtitle(run),
        beaten=summary["unigram_entropy_nats"] > summary["eval_mlm_loss_nats"],
        verdict=verdict(summary),
        tiles=_tiles(summary),
        drawings=[draw_plot(plot) for plot in plots],
        curves_note=_curves_note(run.metrics),
        sources=_source_rows(run),
        corpus=corpus_rows(run),
        splits=[name.replace("_", "-") for name in SPLITS],
        instances=instance_rows(run.instances),
        lengths=draw_length_histogram(
            run.instances["counts"]["train"]["length_histogram"], run.instances["max_seq_length"]
        ),
        stages=_stage_rows(run, summary),
        pairs=[_pair(one, objective) for one in decoded],
        when_masked="every epoch" if static else "epoch 0",
        marks=_MARKS,
        examples=[_example(one) for one in examples],
        settings=_flattened(run.training["identity"]),
        fingerprints=run.fingerprints,
    )


def _subtitle(run: FinishedRun) -> str:
    training = run.training
    made = (
        f"{training['parameters']:,} parameters, {training['steps']:,} steps, "
        f"{training['tokens_seen']:,} tokens seen"
    )
    report = run.reports.get("training")
    if report is None:
        return made
    started = min(one["started_unix_seconds"] for one in run.reports.values())
    when = datetime.datetime.fromtimestamp(started, datetime.UTC)
    return f"{made}; begun {when:%Y-%m-%d %H:%M} UTC on {report['host']} ({report['cpus']} CPUs)"


def _tiles(summary: Mapping[str, Any]) -> list[Row]:
    loss, entropy = summary["eval_mlm_loss_nats"], summary["unigram_entropy_nats"]
    return [
        (
            "held-out MLM loss",
            f"{loss:.2f} nats",
            f"perplexity {human_count(summary['eval_mlm_perplexity'])}: as unsure as among so many "
            "equally likely tokens",
        ),
        (
            "unigram entropy",
            f"{entropy:.2f} nats",
            "the loss of a model that knows only how frequent each token is",
        ),
        ("MLM accuracy", f"{summary['eval_mlm_accuracy']:.1%}", "held-out masked tokens guessed"),
        *(
            (
                f"{name.upper()} accuracy",
                f"{summary[f'eval_{name}_accuracy']:.1%}",
                "held-out pairs; a coin gets 50%",
            )
            for name in LABEL_MEANINGS
            if f"eval_{name}_accuracy" in summary
        ),
        ("sequences seen", f"{summary['sequences_seen']:,}", "in training"),
        ("time", human_seconds(sum(summary["seconds"].values())), "all stages"),
        ("peak memory", human_bytes(summary["peak_rss_bytes"]), "resident, all processes"),
    ]


def _source_rows(run: FinishedRun) -> list[tuple[str, ...]]:
    """Return the last evaluation of each source; nothing where there is only one."""
    by_source = run.training["evaluation"]["by_source"]
    return [
        (
            source,
            f"{figures['mlm_loss_nats']:.3f}",
            human_count(figures["mlm_perplexity"]),
            f"{figures['mlm_accuracy']:.1%}",
            "" if figures["pair_accuracy"] is None else f"{figures['pair_accuracy']:.1%}",
            f"{figures['masked_tokens']:,}",
        )
        for source, figures in by_source.items()
    ]


def _curves_note(metrics: Metrics) -> str:
    notes = []
    if not metrics.train:
        notes.append("metrics.jsonl of this training is missing or empty: it gives no curve.")
    if metrics.unreadable:
        notes.append(f"{metrics.unreadable} damaged lines of metrics.jsonl are left out.")
    if metrics.restarts:
        steps = ", ".join(f"{step:,}" for step in metrics.restarts)
        notes.append(
            f"Training was restarted after a failure; its records go on from step {steps}."
        )
    notes += [
        f"{one['reason']}; back to step {one['to_step']:,}, and on without "
        f"{one['skipped_sequences']:,} sequences."
        for one in metrics.rollbacks
    ]
    notes += [f"Step {one['step']:,}: {one['text']}." for one in metrics.warnings]
    return " ".join(notes)


def corpus_rows(run: FinishedRun) -> list[Row]:
    """Return (what, how many) of raw input, documents and vocabulary."""
    counts, words = run.documents["counts"], run.vocabulary["counts"]
    dropped = {
        name.removeprefix("dropped_").replace("_", " "): count
        for name, count in counts.items()
        if name.startswith("dropped_")
    }
    return [
        ("input files", f"{counts['input_files']:,}"),
        ("input", human_bytes(counts["input_bytes"])),
        ("input read", human_bytes(counts["read_bytes"])),
        ("documents read", f"{counts['read']:,}"),
        *((f"dropped: {reason}", f"{count:,}") for reason, count in sorted(dropped.items())),
        ("documents kept", f"{counts['kept']:,}"),
        ("sentences", f"{counts['sentences']:,}"),
        ("text kept", human_bytes(counts["text_bytes"])),
        ("words of the training documents", f"{words['words']:,}"),
        ("distinct words among them", f"{words['distinct_words']:,}"),
        ("vocabulary entries", f"{run.vocabulary['vocab_size']:,}"),
    ]


def instance_rows(manifest: Mapping[str, Any]) -> list[Row]:
    """Return (what, of train, of held-out) of the instances."""
    limit, objective = manifest["max_seq_length"], manifest["objective"]
    # tokens_read counts a document once for each time it is cut into instances.
    times = manifest["identity"]["instances"]["duplicate_factor"]

    def row(name: str, show: Callable[[Mapping[str, Any]], str]) -> Row:
        return (name, *(show(manifest["counts"][split]) for split in SPLITS))

    rows = [
        row("documents", lambda one: f"{one.get('documents', 0):,}"),
        row("instances", lambda one: f"{one.get('instances', 0):,}"),
        row("tokens", lambda one: f"{one.get('tokens', 0):,}"),
        row(
            f"fill (tokens of {limit:,} an instance)",
            lambda one: _share(one.get("tokens", 0), one.get("instances", 0) * limit),
        ),
        row(
            "[UNK] among the documents' tokens",
            lambda one: _share(
                one.get("unknown_tokens", 0) * times, one.get("tokens_read", 0), digits=3
            ),
        ),
    ]
    if objective in LABEL_COUNTS:
        zeros, _ = LABEL_COUNTS[objective]
        rows.insert(
            4,
            row(
                f"pairs where {LABEL_MEANINGS[objective][0]}",
                lambda one: _share(one.get(zeros, 0), one.get("instances", 0)),
            ),
        )
    if manifest["masking"]["mode"] == "static":
        rows.append(
            row(
                "masked tokens",
                lambda one: _share(one.get("masked_tokens", 0), one.get("tokens", 0)),
            )
        )
    return rows


def _share(part: int, whole: int, digits: int = 1) -> str:
    return f"{part / whole:.{digits}%}" if whole else "none"


def _stage_rows(run: FinishedRun, summary: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return (stage, time, share of all time as a CSS width, peak memory)."""
    total = sum(summary["seconds"].values()) or 1.0
    return [
        (
            stage,
            human_seconds(report["seconds"]),
            f"{report['seconds'] / total:.1%}",
            human_bytes(report["peak_rss_bytes"]),
        )
        for stage, report in run.reports.items()
    ]


def _pair(instance: DecodedInstance, objective: str) -> dict[str, Any]:
    tokens = (*instance.first_segment, *instance.second_segment)
    predicted = sum(token.kind in _MARKS for token in tokens)
    label = ""
    if instance.label is not None:
        meaning = LABEL_MEANINGS[objective][instance.label]
        label = f"{meaning} ({PAIR_LABELS[objective]} {instance.label}); "
    return {
        "number": instance.number,
        "label": label,
        "tokens": instance.tokens,
        "predicted": predicted,
        "segments": (
            ("A", pieces(instance.first_segment)),
            *((("B", pieces(instance.second_segment)),) if instance.second_segment else ()),
        ),
    }


def pieces(tokens: Sequence[DecodedToken]) -> list[Piece]:
    """Lay tokens out as words: a ## piece joins the plain one before it and loses its ##."""
    laid_out: list[Piece] = []
    before = "special"
    for token in tokens:
        glued = token.kind == before == "plain" and token.text.startswith("##")
        text = token.text[2:] if glued else token.text
        mark = _MARKS.get(token.kind, "")
        laid_out.append(Piece(text, token.kind, mark, token.original, glued))
        before = token.kind
    return laid_out


def _example(example: FillMaskExample) -> dict[str, Any]:
    originals = example.originals or ("",) * len(example.predictions)
    guesses = [
        {
            "original": original,
            "candidates": [
                (one.token, f"{one.probability:.1%}", one.token == original) for one in predictions
            ],
        }
        for predictions, original in zip(example.predictions, originals, strict=True)
    ]
    return {"parts": example.text.split(_MASK), "guesses": guesses}


def _flattened(table: Mapping[str, Any], prefix: str = "") -> list[Row]:
    rows: list[Row] = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            rows += _flattened(value, f"{prefix}{key}.")
        else:
            rows.append((prefix + key, json.dumps(value, ensure_ascii=False)))
    return rows
