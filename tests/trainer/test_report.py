"""The report of a finished run: its page, its plots, its summary."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from pipeline.commit import Generation
from pipeline.config import MaskingConfig
from pipeline.decoding import DecodedToken
from pipeline.errors import CorruptError, InputError
from pipeline.instance_set import InstanceSet
from tests.trainer.finished_runs import (
    ENTRIES,
    ENTROPY,
    EVALUATION,
    MAX_SEQ_LENGTH,
    RECORDS,
    SECONDS,
    TRAINED,
    commit,
    evaluation_record,
    some_rows,
    train_record,
    write_data_stages,
    write_run,
    write_training,
)
from trainer.fill_mask import Prediction
from trainer.report import FillMaskExample, print_summary, summarise, write_report
from trainer.report.curves import run_plots
from trainer.report.figures import PALETTE, draw_length_histogram, draw_plot, thinned
from trainer.report.finished_run import metrics_of
from trainer.report.page import pieces

EXAMPLES = (
    FillMaskExample(
        text="return the [MASK] of <b>a</b> file",
        predictions=[
            [Prediction(token="name", probability=0.75), Prediction(token="a", probability=0.05)]
        ],
        originals=["name"],
    ),
    FillMaskExample(
        text="[MASK] the [MASK]",
        predictions=[
            [Prediction(token="parse", probability=0.5)],
            [Prediction(token="list", probability=0.25)],
        ],
    ),
)


RESTARTED = [train_record(10), train_record(20, attempt=3), train_record(30, attempt=3)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_run(tmp_path)


@pytest.fixture(scope="module")
def html_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Such a run with its report."""
    root = write_run(tmp_path_factory.mktemp("run"))
    write(root)
    return root


@pytest.fixture(scope="module")
def html(html_root: Path) -> str:
    return (html_root / "report.html").read_text(encoding="utf-8")


def write(root: Path, examples: Sequence[FillMaskExample] = EXAMPLES) -> str:
    write_report(
        str(root),
        instances=InstanceSet.open(str(root)),
        masking=MaskingConfig(probability=0.5),
        fill_mask_examples=examples,
    )
    return (root / "report.html").read_text(encoding="utf-8")


VOID = {"meta", "link", "img", "br", "hr", "input", "source", "base", "embed"}


class Page(HTMLParser):
    """Tags with attributes in order, the text, and whether every element was closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def test_summary_holds_the_figures_of_the_model_and_of_its_own_data(root: Path) -> None:
    summary = summarise(str(root))
    tokens = sum(int(some_rows(count, seed).offsets[-1]) for seed, count in enumerate((12, 4)))
    assert summary == {
        "documents": 31,
        "eval_mlm_accuracy": 0.314,
        "eval_mlm_loss_nats": 4.25,
        "eval_mlm_loss_nats_by_source": {},
        "eval_mlm_perplexity": 70.1,
        "eval_nsp_accuracy": 0.625,
        "instances": 16,
        "peak_rss_bytes": 5_000_000,
        "seconds": SECONDS,
        "sequences_seen": 1_920,
        "tokens": tokens,
        "unigram_entropy_nats": ENTROPY,
    }
    assert list(summary["seconds"]) == list(SECONDS)
    # Documents that were made anew since are not those the model was trained on.
    commit(root, "documents", "d2", {"counts": {"kept": 99}})
    assert summarise(str(root)) == summary


def test_written_summary_is_the_returned_one(html_root: Path) -> None:
    assert json.loads((html_root / "summary.json").read_bytes()) == summarise(str(html_root))


def test_an_export_counts_only_if_it_is_of_this_model(root: Path) -> None:
    assert "export" in summarise(str(root))["seconds"]
    write_training(root, "t2")
    assert list(summarise(str(root))["seconds"]) == list(SECONDS)[:-1]


def test_page_refers_to_nothing_outside_itself(html: str) -> None:
    page = Page(html)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe", "object", "embed", "img")
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "xlink:href", "srcset", "action", "data", "poster"):
                assert value is not None and value.startswith("#") and value[1:] in ids, (
                    tag,
                    value,
                )
    for target in re.findall(r"url\(([^)]*)\)", html):
        assert target.startswith("#") and target[1:] in ids
    assert "://" not in html and "@import" not in html


def test_every_colour_of_the_plots_has_a_light_and_a_dark_value(html: str) -> None:
    used = set(re.findall(r"var\(--([\w-]+)\)", html))
    assert set(PALETTE) - {"restart"} <= used
    for name in used:
        assert html.count(f"--{name}: #") == 2, name


def test_corpus_text_is_shown_and_never_interpreted(html: str) -> None:
    assert "<script" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "of <b>a</b> file" in Page(html).text


def test_headline_says_that_the_model_beats_word_frequency(html: str) -> None:
    assert "The model beats word frequency by 1.25 nats" in Page(html).text


def test_page_shows_the_pipelines_counts(html: str) -> None:
    text = Page(html).text
    tokens = int(some_rows(12, 0).offsets[-1])
    for row in (
        "documents read 43",
        "documents kept 31",
        "dropped: beyond limit 1",
        "dropped: duplicate 4",
        "dropped: too short 7",
        "sentences 321",
        "distinct words among them 777",
        "words of the training documents 9,876",
        f"vocabulary entries {len(ENTRIES)}",
        "instances 12 4",
        "pairs where B follows A 50.0% 50.0%",
        f"fill (tokens of {MAX_SEQ_LENGTH} an instance) {tokens / 12 / MAX_SEQ_LENGTH:.1%}",
        # Twice as many tokens were read as the documents have: duplicate_factor is 2.
        "[UNK] among the documents' tokens 0.500% 0.500%",
        "training 3 min 10 s",
        "4.0 MB",
    ):
        assert row in text


def test_every_plot_has_a_title_units_a_legend_where_needed_and_no_fixed_colour(html: str) -> None:
    plots = run_plots(metrics_of(RESTARTED, TRAINED), ENTROPY, "nsp")
    drawings = [draw_plot(plot) for plot in plots]
    assert len(drawings) == 8
    for plot, drawing in zip(plots, drawings, strict=True):
        assert f">{plot.y_label}<" in drawing.svg
        assert ">optimizer steps<" in drawing.svg
        assert ">training<" in drawing.svg
        assert ">restart<" in drawing.svg and "var(--restart)" in drawing.svg
    for drawing in drawings[:4]:
        assert ">held-out<" in drawing.svg
    assert ">unigram entropy, 5.50 nats<" in drawings[0].svg
    drawings.append(draw_length_histogram([1, 2], 128))
    for drawing in drawings:
        assert f"<h3>{drawing.title}</h3>" in html
        assert f'aria-label="{drawing.title}"' in drawing.svg
        assert not re.search(r"#[0-9a-fA-F]{6}\b|<style|font-family", drawing.svg)


def test_a_plot_is_the_same_bytes_each_time() -> None:
    plot = run_plots(metrics_of(RECORDS, TRAINED), ENTROPY, "nsp")[0]
    drawing = draw_plot(plot)
    assert draw_plot(plot) == drawing
    assert ">restart<" not in drawing.svg


@pytest.mark.parametrize("records", [[], [train_record(10)], [evaluation_record(30)]])
def test_a_plot_of_few_points_shows_what_there_is(records: list[dict[str, Any]]) -> None:
    plots = run_plots(metrics_of(records, TRAINED), ENTROPY, "nsp")
    svg = draw_plot(plots[0]).svg
    assert plots[0].held_out == ([30.0], [4.25])
    assert ">held-out<" in svg
    assert (">training<" in svg) == any(record["kind"] == "train" for record in records)


def test_a_run_that_was_restarted_learned_nothing_and_was_not_exported_has_a_page(
    tmp_path: Path,
) -> None:
    write_data_stages(tmp_path)
    worse = {**EVALUATION, "mlm_loss_nats": 5.75}
    write_training(tmp_path, records=RESTARTED[:3], evaluation=worse)
    page = Page(write(tmp_path, examples=()))
    assert "does not beat word frequency: it is 0.25 nats" in page.text
    assert "held-out 5.75 at step 30" in page.text
    assert "restarted after a failure; its records go on from step 20." in page.text
    assert "Fill-mask" not in page.text and "export" not in page.text


def test_a_run_without_its_metrics_says_so(tmp_path: Path) -> None:
    write_data_stages(tmp_path)
    write_training(tmp_path, records=[], evaluation=EVALUATION)
    page = Page(write(tmp_path, examples=()))
    assert "metrics.jsonl of this training is missing or empty: it gives no curve." in page.text


def test_a_restart_is_where_an_attempt_begins() -> None:
    assert metrics_of(RESTARTED, TRAINED).restarts == (20,)
    # The first attempt may have failed before its first record.
    assert metrics_of(RESTARTED[1:], TRAINED).restarts == (20,)
    assert metrics_of(RECORDS, TRAINED).restarts == ()


def test_the_manifests_evaluation_is_a_point_even_if_no_record_has_it() -> None:
    metrics = metrics_of(RECORDS[:3], TRAINED)
    assert [(one["step"], one["mlm_loss_nats"]) for one in metrics.evaluation] == [(30, 4.25)]


def test_values_that_are_not_finite_or_not_there_are_left_out_of_a_curve() -> None:
    broken = {**train_record(20), "mlm_loss": float("nan"), "pair_accuracy": None}
    metrics = metrics_of([train_record(10), broken], TRAINED)
    plots = {plot.name: plot for plot in run_plots(metrics, ENTROPY, "nsp")}
    assert plots["mlm-loss"].train == ([10.0], [8.9])
    assert plots["pair-accuracy"].train == ([10.0], [0.5])
    assert plots["pair-loss"].train == ([10.0, 20.0], [0.7, 0.7])


@settings(deadline=None)
@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400),
    limit=st.integers(min_value=2, max_value=50),
)
def test_a_thinned_curve_keeps_its_mean_and_its_order(values: list[float], limit: int) -> None:
    steps = [float(step) for step in range(len(values))]
    thin_steps, thin_values = thinned((steps, values), limit)
    assert len(thin_steps) == len(thin_values) == min(limit, len(values))
    assert list(thin_steps) == sorted(set(thin_steps))
    assert min(values) - 1e-6 <= min(thin_values) and max(thin_values) <= max(values) + 1e-6
    if len(values) % limit == 0:
        assert np.mean(thin_values) == pytest.approx(np.mean(values), abs=1e-6)


def test_a_long_run_stays_a_small_page() -> None:
    records = [train_record(step) for step in range(1, 5001)]
    drawing = draw_plot(run_plots(metrics_of(records, TRAINED), ENTROPY, "nsp")[0])
    assert len(drawing.svg) < 60_000
    assert "drawn as 800 means of neighbouring records" in drawing.description


def test_predicted_tokens_carry_a_letter_and_the_token_they_hide(html: str) -> None:
    page = Page(html)
    kinds = {
        kind
        for tag, attributes in page.tags
        if tag == "span" and (attributes.get("class") or "").startswith("predicted ")
        for kind in (attributes["class"] or "").split()[1:]
    }
    assert kinds == {"mask", "random", "kept"}
    assert re.search(r"M \[MASK\] → (\w|#)+", page.text)
    assert re.search(r"K (\S+) → \1", page.text)
    assert "B follows A (next_sentence_label 0)" in page.text
    assert "B is random (next_sentence_label 1)" in page.text
    assert len([tag for tag, found in page.tags if found.get("class") == "card pair"]) == 8


def test_word_pieces_join_the_plain_piece_before_them_only() -> None:
    tokens = [
        DecodedToken("[CLS]", "special"),
        DecodedToken("parse", "plain"),
        DecodedToken("##d", "plain"),
        DecodedToken("[MASK]", "mask", "file"),
        DecodedToken("##s", "plain"),
    ]
    shown = [(piece.text, piece.glued, piece.mark) for piece in pieces(tokens)]
    assert shown == [
        ("[CLS]", False, ""),
        ("parse", False, ""),
        ("d", True, ""),
        ("[MASK]", False, "M"),
        ("##s", False, ""),
    ]


def test_fill_mask_examples_show_candidates_and_mark_the_right_one(html: str) -> None:
    text = Page(html).text
    assert "return the [MASK] of" in text
    assert "name ✓ right 75.0%" in text
    assert "The text has name ." in text
    assert "parse 50.0%" in text and "list 25.0%" in text


def test_a_report_before_training_says_what_to_run(tmp_path: Path) -> None:
    write_data_stages(tmp_path)
    with pytest.raises(InputError, match="python -m trainer pretrain"):
        summarise(str(tmp_path))


def test_instances_of_another_generation_are_refused(root: Path) -> None:
    write_training(root, "t2", inputs={"instances": "i0"})
    with pytest.raises(CorruptError, match=r"instances/i0/manifest\.json"):
        summarise(str(root))
    write_training(root, "t3")
    generation = Generation(str(root), "instances", "i2")
    other = InstanceSet(generation, InstanceSet.open(str(root)).manifest)
    with pytest.raises(InputError, match="trained on instances i1"):
        write_report(
            str(root), instances=other, masking=MaskingConfig(), fill_mask_examples=EXAMPLES
        )
    assert not (root / "report.html").exists()


def test_terminal_table_shows_the_same_figures(root: Path) -> None:
    console = Console(width=80, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as captured:
        print_summary(summarise(str(root)), console)
    text = " ".join(captured.get().split())
    for cells in ("documents", "31", "4.250 nats", "5.500 nats", "31.4%", "62.5%", "5.0 MB"):
        assert cells in text
    assert "time of export" in text and "3 min 36 s" in text
    assert "beats word frequency by 1.25 nats" in text
