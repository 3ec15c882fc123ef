"""The report of a finished run, on synthetic artefacts of every stage."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
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
from pipeline.contract import ObjectEntry, shard_schema
from pipeline.decoding import DecodedToken
from pipeline.errors import CorruptError, InputError
from pipeline.instance_set import InstanceSet
from pipeline.shards import InstanceRows, write_shard
from pipeline.vocabulary import SPECIAL_TOKENS, TextRules, build_tokenizer, vocab_txt
from trainer.fill_mask import Prediction
from trainer.report import FillMaskExample, print_summary, summarise, write_report
from trainer.report.curves import run_plots
from trainer.report.figures import draw_length_histogram, draw_plot, thinned
from trainer.report.finished_run import parse_metrics
from trainer.report.page import pieces

WORDS = ("a", "dictionary", "file", "list", "name", "of", "parse", "return", "the", "##d", "##s")
HOSTILE = ("<script>alert(1)</script>", "x" * 90)
ENTRIES = (*SPECIAL_TOKENS, *WORDS, *HOSTILE)
MAX_SEQ_LENGTH = 32
ENTROPY = 5.5
EVALUATION = {
    "masked_tokens": 800,
    "mlm_accuracy": 0.314,
    "mlm_loss_nats": 4.25,
    "pair_accuracy": 0.625,
    "pair_loss": 0.66,
    "pairs": 40,
}
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
SECONDS = {
    "documents": 12.5,
    "vocabulary": 4.0,
    "instances": 8.25,
    "training": 190.0,
    "export": 1.5,
}
PEAKS = {name: (number + 1) * 1_000_000 for number, name in enumerate(SECONDS)}


def train_record(step: int, attempt: int = 1) -> dict[str, Any]:
    return {
        "attempt": attempt,
        "data_wait_seconds": 0.01,
        "grad_norm": 1.0,
        "kind": "train",
        "learning_rate": 1e-3,
        "mlm_accuracy": 0.1,
        "mlm_loss": 9.0 - 0.01 * step,
        "pair_accuracy": 0.5,
        "pair_loss": 0.7,
        "seconds": 0.1 * step,
        "sequences_seen": 64 * step,
        "step": step,
        "step_seconds": 0.1,
        "tokens_per_second": 60_000.0,
        "tokens_seen": 6_000 * step,
    }


def evaluation_record(step: int) -> dict[str, Any]:
    return {**EVALUATION, "kind": "evaluation", "step": step}


def metrics_bytes(records: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


TRAINED = {"evaluation": EVALUATION, "steps": 30}
RECORDS = [train_record(10), train_record(20), train_record(30), evaluation_record(30)]


def commit(
    root: Path,
    stage: str,
    fingerprint: str,
    manifest: Mapping[str, Any],
    seconds: float | None = None,
) -> Generation:
    generation = Generation(str(root), stage, fingerprint)
    run_report = {
        "cpus": 2,
        "host": "somewhere",
        "peak_rss_bytes": PEAKS[stage],
        "seconds": SECONDS[stage] if seconds is None else seconds,
        "started_unix_seconds": 1_700_000_000.0,
    }
    generation.commit(manifest, run_report)
    return generation


def some_rows(count: int, seed: int) -> InstanceRows:
    """Pairs [CLS] A [SEP] B [SEP] of ordinary tokens, 20 to 32 long."""
    rng = np.random.default_rng(seed)
    rows, firsts = [], []
    for _ in range(count):
        ids = rng.integers(len(SPECIAL_TOKENS), len(ENTRIES), int(rng.integers(20, 33)))
        first = ids.size // 2
        ids[0], ids[first - 1], ids[-1] = 2, 3, 3
        rows.append(ids.astype(np.uint16))
        firsts.append(first)
    return InstanceRows(
        input_ids=np.concatenate(rows),
        offsets=np.cumsum([0, *(row.size for row in rows)], dtype=np.int64),
        first_segment_length=np.array(firsts, np.uint16),
        next_sentence_label=(np.arange(count) % 2).astype(np.int8),
    )


def write_instances(root: Path) -> None:
    generation = Generation(str(root), "instances", "i1")
    tokenizer = {
        "tokenizer_json": build_tokenizer(ENTRIES, TextRules()).to_str().encode(),
        "vocab_txt": vocab_txt(ENTRIES),
    }
    names = {"tokenizer_json": "tokenizer.json", "vocab_txt": "vocab.txt"}
    shards, counts = [], {}
    objects = {names[key]: data for key, data in tokenizer.items()}
    for number, (split, count) in enumerate((("train", 12), ("held_out", 4))):
        rows = some_rows(count, seed=number)
        written, entry = write_shard(
            rows,
            shard_schema(vocab_size=len(ENTRIES), static_masking=False),
            name=f"{split}-00000",
            split=split,
            start=0,
            end=count,
            rows_per_batch=8,
            first_instance=number << 40,
        )
        objects |= written
        shards.append(entry.to_json())
        tokens = int(rows.offsets[-1])
        counts[split] = {
            "documents": 3,
            "instances": count,
            "is_next": count // 2,
            "length_histogram": [0] * 10 + [count] + [0] * 5,
            "random_next": count // 2,
            "tokens": tokens,
            "tokens_read": 2_000,
            "unknown_tokens": 5,
        }
    generation.complete("all", objects, {})
    commit(
        root,
        "instances",
        "i1",
        {
            "counts": counts,
            "identity": {"instances": {"duplicate_factor": 2}, "seed": 0},
            "inputs": {"documents": "d1", "vocabulary": "v1"},
            "masking": {"mode": "dynamic"},
            "max_seq_length": MAX_SEQ_LENGTH,
            "seed": 0,
            "shards": shards,
            "special_ids": {token: number for number, token in enumerate(SPECIAL_TOKENS)},
            "tokenizer": {
                key: asdict(ObjectEntry.of(names[key], data)) for key, data in tokenizer.items()
            },
            "vocab_size": len(ENTRIES),
        },
    )


def write_training(
    root: Path,
    fingerprint: str = "t1",
    records: Sequence[Mapping[str, Any]] = RECORDS,
    **changed: Any,
) -> None:
    generation = Generation(str(root), "training", fingerprint)
    generation.storage.create(generation.name("metrics.jsonl"), metrics_bytes(records))
    manifest = {
        "checkpoint": "checkpoints/00000030",
        "evaluation": EVALUATION,
        "identity": {"model": {"hidden_size": 128}, "seed": 0},
        "inputs": {"instances": "i1"},
        "parameters": 1_234_567,
        "sequences_seen": 1_920,
        "steps": 30,
        "tokens_seen": 180_000,
        "unigram_entropy_nats": ENTROPY,
        **changed,
    }
    commit(root, "training", fingerprint, manifest)


def write_data_stages(root: Path) -> None:
    counts = {
        "dropped_beyond_limit": 1,
        "dropped_duplicate": 4,
        "dropped_too_short": 7,
        "input_bytes": 1_234_000,
        "input_files": 13,
        "kept": 31,
        "read": 43,
        "read_bytes": 1_200_000,
        "sentences": 321,
        "text_bytes": 54_321,
    }
    commit(root, "documents", "d1", {"counts": counts})
    words = {"distinct_words": 777, "words": 9_876}
    commit(root, "vocabulary", "v1", {"counts": words, "vocab_size": len(ENTRIES)})
    write_instances(root)


def write_run(root: Path) -> Path:
    """Lay out a run that was trained and exported."""
    write_data_stages(root)
    write_training(root)
    commit(root, "export", "e1", {"inputs": {"training": "t1"}})
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_run(tmp_path)


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of that run."""
    return write(write_run(tmp_path_factory.mktemp("run")))


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


def test_written_summary_is_the_returned_one_and_a_second_report_is_the_same(root: Path) -> None:
    page = write(root)
    assert json.loads((root / "summary.json").read_bytes()) == summarise(str(root))
    assert write(root) == page


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
        "words 9,876",
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


def test_every_plot_has_a_title_and_units_and_a_legend_where_there_are_two_lines(
    html: str,
) -> None:
    plots = run_plots(parse_metrics(metrics_bytes(RECORDS), "m", TRAINED), ENTROPY)
    drawings = [draw_plot(plot) for plot in plots] + [draw_length_histogram([1, 2], 128)]
    assert len(drawings) == 9
    for drawing in drawings:
        assert f"<h3>{drawing.title}</h3>" in html
        assert f'aria-label="{drawing.title}"' in drawing.svg
    for plot, drawing in zip(plots, drawings, strict=False):
        assert f">{plot.y_label}<" in drawing.svg
        assert ">optimizer steps<" in drawing.svg
    for drawing in drawings[:4]:
        assert ">training<" in drawing.svg and ">held-out<" in drawing.svg
    assert ">unigram entropy, 5.50 nats<" in drawings[0].svg
    assert ">restart<" not in drawings[0].svg


def test_no_colour_of_a_plot_is_fixed() -> None:
    metrics = parse_metrics(
        metrics_bytes([train_record(1), train_record(2, attempt=2)]), "m", TRAINED
    )
    for plot in run_plots(metrics, ENTROPY):
        svg = draw_plot(plot).svg
        assert not re.search(r"#[0-9a-fA-F]{6}\b|<style|font-family", svg)
        assert "var(--restart)" in svg


@pytest.mark.parametrize("records", [[], [train_record(10)], [evaluation_record(30)]])
def test_a_plot_of_few_points_shows_what_there_is(records: list[dict[str, Any]]) -> None:
    plots = run_plots(parse_metrics(metrics_bytes(records), "m", TRAINED), ENTROPY)
    svg = draw_plot(plots[0]).svg
    assert plots[0].held_out == ([30.0], [4.25])
    assert ">held-out<" in svg
    assert (">training<" in svg) == any(record["kind"] == "train" for record in records)


def test_a_run_without_records_and_export_that_learned_nothing_has_a_page(tmp_path: Path) -> None:
    write_data_stages(tmp_path)
    write_training(tmp_path, records=[], evaluation={**EVALUATION, "mlm_loss_nats": 5.75})
    page = Page(write(tmp_path, examples=()))
    assert "does not beat word frequency: it is 0.25 nats" in page.text
    assert "Held-out 5.75 at step 30" in page.text
    assert "Fill-mask" not in page.text and "export" not in page.text


def test_a_restart_is_marked_and_steps_done_again_count_once(root: Path) -> None:
    records = [
        *(train_record(step) for step in (10, 20, 30, 40)),
        evaluation_record(30),
        *(train_record(step, attempt=2) for step in (30, 40, 50)),
        {**evaluation_record(30), "mlm_loss_nats": 4.5},
    ]
    metrics = parse_metrics(metrics_bytes(records), "m", TRAINED)
    assert [(one["step"], one["attempt"]) for one in metrics.train] == [
        (10, 1),
        (20, 1),
        (30, 2),
        (40, 2),
        (50, 2),
    ]
    assert metrics.restarts == (30,)
    assert metrics.undone == 2
    assert [one["mlm_loss_nats"] for one in metrics.evaluation] == [4.5]
    assert all(">restart<" in draw_plot(plot).svg for plot in run_plots(metrics, ENTROPY))
    write_training(root, "t2", records=records)
    text = Page(write(root)).text
    assert "restarted after a failure; its records go on from step 30." in text
    assert "Earlier records of steps done again are not drawn: 2." in text


def test_the_manifests_evaluation_is_a_point_even_if_no_record_has_it() -> None:
    metrics = parse_metrics(metrics_bytes(RECORDS[:3]), "m", TRAINED)
    assert [(one["step"], one["mlm_loss_nats"]) for one in metrics.evaluation] == [(30, 4.25)]


@pytest.mark.parametrize("line", [b'{"kind": "train", "st', b'{"kind": "other"}', b"[]"])
def test_a_damaged_metrics_line_is_named(line: bytes) -> None:
    data = metrics_bytes(RECORDS[:2]) + line + b"\n"
    with pytest.raises(CorruptError, match=r"metrics\.jsonl, line 3"):
        parse_metrics(data, "runs/x/metrics.jsonl", TRAINED)


def test_values_that_are_not_finite_or_not_there_are_left_out_of_a_curve() -> None:
    broken = {**train_record(20), "mlm_loss": float("nan"), "pair_accuracy": None}
    metrics = parse_metrics(metrics_bytes([train_record(10), broken]), "m", TRAINED)
    plots = {plot.name: plot for plot in run_plots(metrics, ENTROPY)}
    assert plots["mlm-loss"].train == ([10.0], [8.9])
    assert plots["nsp-accuracy"].train == ([10.0], [0.5])
    assert plots["nsp-loss"].train == ([10.0, 20.0], [0.7, 0.7])


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
    records = metrics_bytes([train_record(step) for step in range(1, 5001)])
    svg = draw_plot(run_plots(parse_metrics(records, "m", TRAINED), ENTROPY)[0]).svg
    assert len(svg) < 60_000


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
