"""A run in a dozen figures: summary.json, and the same as a table in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from trainer.report.finished_run import FinishedRun, read_run


def summarise(root: str) -> dict[str, Any]:
    """Return the figures of summary.json for a trained run.

    Raises InputError if nothing was trained yet, CorruptError if what a stage left was damaged.
    """
    return summary_of(read_run(root))


def summary_of(run: FinishedRun) -> dict[str, Any]:
    """Return the figures of summary.json; sizes count both splits, losses are in nats."""
    splits = run.instances["counts"].values()
    evaluation = run.training["evaluation"]
    return {
        "documents": run.documents["counts"]["kept"],
        "eval_mlm_accuracy": evaluation["mlm_accuracy"],
        "eval_mlm_loss_nats": evaluation["mlm_loss_nats"],
        "eval_mlm_loss_nats_by_source": {
            source: figures["mlm_loss_nats"] for source, figures in evaluation["by_source"].items()
        },
        "eval_mlm_perplexity": evaluation["mlm_perplexity"],
        **pair_accuracy_of(run),
        "instances": sum(counts.get("instances", 0) for counts in splits),
        "peak_rss_bytes": max(
            (report["peak_rss_bytes"] for report in run.reports.values()), default=0
        ),
        "seconds": {stage: report["seconds"] for stage, report in run.reports.items()},
        "sequences_seen": run.training["sequences_seen"],
        "tokens": sum(counts.get("tokens", 0) for counts in splits),
        "unigram_entropy_nats": run.training["unigram_entropy_nats"],
    }


def pair_accuracy_of(run: FinishedRun) -> dict[str, float]:
    """Return eval_nsp_accuracy or eval_sop_accuracy by name; nothing without pairs."""
    accuracy = run.training["evaluation"]["pair_accuracy"]
    if accuracy is None:
        return {}
    return {f"eval_{run.instances['objective']}_accuracy": accuracy}


def verdict(summary: Mapping[str, Any]) -> str:
    """Say in one sentence whether the model beats word frequency, and by how much."""
    gain = summary["unigram_entropy_nats"] - summary["eval_mlm_loss_nats"]
    if gain > 0.0:
        return f"The model beats word frequency by {gain:.2f} nats per masked token."
    return f"The model does not beat word frequency: it is {-gain:.2f} nats per masked token worse."


def human_seconds(seconds: float) -> str:
    """Show a duration, to a tenth of a second below a minute."""
    if seconds < 60.0:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def human_count(value: float) -> str:
    """Show a number that may be very large, as a whole one."""
    return f"{value:,.0f}" if value < 1e9 else f"{value:.1e}"


def human_bytes(size: float) -> str:
    """Show a size in decimal units."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:,.{2 if unit in ('TB', 'GB') else 1}f} {unit}"
    return f"{size:.0f} bytes"


def print_summary(summary: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the summary as a table."""
    table = Table("figure", show_edge=False)
    table.add_column("value", justify="right")
    table.add_row("documents", f"{summary['documents']:,}")
    table.add_row("instances", f"{summary['instances']:,}")
    table.add_row("tokens", f"{summary['tokens']:,}")
    table.add_row("sequences seen", f"{summary['sequences_seen']:,}")
    table.add_row("held-out MLM loss", f"{summary['eval_mlm_loss_nats']:.3f} nats")
    table.add_row("held-out MLM perplexity", human_count(summary["eval_mlm_perplexity"]))
    for source, loss in summary["eval_mlm_loss_nats_by_source"].items():
        table.add_row(f"held-out MLM loss of {source}", f"{loss:.3f} nats")
    table.add_row("unigram entropy", f"{summary['unigram_entropy_nats']:.3f} nats")
    table.add_row("held-out MLM accuracy", f"{summary['eval_mlm_accuracy']:.1%}")
    for name in ("nsp", "sop"):
        if f"eval_{name}_accuracy" in summary:
            accuracy = summary[f"eval_{name}_accuracy"]
            table.add_row(f"held-out {name.upper()} accuracy", f"{accuracy:.1%}")
    table.add_row("peak memory", human_bytes(summary["peak_rss_bytes"]))
    for stage, seconds in summary["seconds"].items():
        table.add_row(f"time of {stage}", human_seconds(seconds))
    table.add_row("time in all", human_seconds(sum(summary["seconds"].values())))
    console = console or Console(highlight=False)
    console.print(table)
    console.print(verdict(summary), markup=False)
