"""The report of objectives beside next sentence prediction."""

from __future__ import annotations

import dataclasses
import io
from html.parser import HTMLParser
from pathlib import Path

from rich.console import Console

from pipeline.decoding import DecodedInstance, DecodedToken
from tests.trainer.finished_runs import EVALUATION, RECORDS, write_run
from trainer.report import print_summary
from trainer.report.finished_run import metrics_of, read_run
from trainer.report.page import instance_rows, render_page
from trainer.report.summary import summary_of


class _Text(HTMLParser):
    """The words of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.feed(html)

    def handle_data(self, data: str) -> None:
        self.words += data.split()


def text_of(html: str) -> str:
    return " ".join(_Text(html).words)


def test_a_run_without_pairs_has_no_figure_of_them(tmp_path: Path) -> None:
    run = read_run(str(write_run(tmp_path)))
    evaluation = {**EVALUATION, "pair_accuracy": None, "pair_loss": None, "pairs": 0}
    records = [{**one, "pair_loss": None, "pair_accuracy": None} for one in RECORDS[:3]]
    run = dataclasses.replace(
        run,
        instances={**run.instances, "objective": "full_sentences"},
        training={**run.training, "evaluation": evaluation},
        metrics=metrics_of(records, {"evaluation": evaluation, "steps": 30}),
    )
    summary = summary_of(run)
    assert not [name for name in summary if "nsp" in name or "sop" in name]
    console = Console(record=True, file=io.StringIO())
    print_summary(summary, console)
    assert "NSP" not in console.export_text()
    segment = DecodedToken("of", "plain")
    instance = DecodedInstance(number=7, label=None, first_segment=(segment,), second_segment=())
    text = text_of(render_page(run, summary, [instance], []))
    assert "Instance 7 1 tokens, 0 to predict" in text
    for absent in ("NSP", "next_sentence_label", "Next sentence", "pairs where"):
        assert absent not in text


def test_sentence_order_carries_its_own_name(tmp_path: Path) -> None:
    run = read_run(str(write_run(tmp_path)))
    counts = {
        split: {**one, "in_order": 9, "swapped": 3}
        for split, one in run.instances["counts"].items()
    }
    instances = {**run.instances, "objective": "sop", "counts": counts}
    run = dataclasses.replace(run, instances=instances)
    summary = summary_of(run)
    assert summary["eval_sop_accuracy"] == 0.625 and "eval_nsp_accuracy" not in summary
    segment = (DecodedToken("of", "plain"),)
    instance = DecodedInstance(number=7, label=1, first_segment=segment, second_segment=segment)
    text = text_of(render_page(run, summary, [instance], []))
    assert "A follows B (sentence_order_label 1); 2 tokens" in text
    assert "Sentence order prediction: accuracy" in text
    assert "SOP accuracy 62.5%" in text
    assert "pairs where B follows A 75.0%" in text


def test_static_masking_shows_its_share_and_an_empty_split_none() -> None:
    counts = {"instances": 10, "masked_tokens": 150, "tokens": 1_000}
    manifest = {
        "counts": {"held_out": {}, "train": counts},
        "identity": {"instances": {"duplicate_factor": 1}},
        "masking": {"mode": "static"},
        "max_seq_length": 128,
        "objective": "sentence",
    }
    rows = {name: (train, held_out) for name, train, held_out in instance_rows(manifest)}
    assert rows["masked tokens"] == ("15.0%", "none")
    assert rows["fill (tokens of 128 an instance)"] == ("78.1%", "none")


def test_sources_and_warnings_are_shown_where_there_are_some(tmp_path: Path) -> None:
    run = read_run(str(write_run(tmp_path)))
    alone = {name: value for name, value in EVALUATION.items() if name != "by_source"}
    books = {**alone, "mlm_loss_nats": 3.125, "mlm_perplexity": 22.8, "pair_accuracy": 0.75}
    evaluation = {**EVALUATION, "by_source": {"books": books, "2/wiki": alone}}
    warning = {"kind": "warning", "step": 1_020, "attempt": 2, "text": "a shard is missing"}
    training = {**run.training, "evaluation": evaluation}
    run = dataclasses.replace(
        run, training=training, metrics=metrics_of([*RECORDS, warning], training)
    )
    summary = summary_of(run)
    assert summary["eval_mlm_loss_nats_by_source"] == {"books": 3.125, "2/wiki": 4.25}
    console = Console(record=True, file=io.StringIO())
    print_summary(summary, console)
    assert "held-out MLM loss of books" in console.export_text()
    text = text_of(render_page(run, summary, [], []))
    assert "books 3.125 23 31.4% 75.0% 800" in text and "2/wiki 4.250 70" in text
    assert "Step 1,020: a shard is missing." in text
