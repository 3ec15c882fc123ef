"""The report's plots as inline SVG whose colours follow the page's light or dark scheme."""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

# The page's CSS variables, and the colours that stand for them while drawing.
PALETTE = {
    "ink": "#1b1f27",
    "muted": "#596273",
    "line": "#d9dee7",
    "train": "#2563a8",
    "held-out": "#b4501b",
    "baseline": "#6b4fa3",
    "restart": "#a8324a",
}
# A line of more points than a screen has columns only makes the page heavy.
_MOST_POINTS = 800
_FEW_POINTS = 40
_WIDTH_INCHES, _HEIGHT_INCHES = 6.0, 3.3
_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": PALETTE["muted"],
    "axes.grid": True,
    "axes.labelcolor": PALETTE["ink"],
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9.5,
    "grid.color": PALETTE["line"],
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text: it can be read aloud, searched and restyled
    "svg.hashsalt": "clozeline",  # the same figures give the same bytes
    "text.color": PALETTE["ink"],
    "xtick.color": PALETTE["muted"],
    "xtick.labelcolor": PALETTE["ink"],
    "ytick.color": PALETTE["muted"],
    "ytick.labelcolor": PALETTE["ink"],
}

Points = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot over optimizer steps; each series is (steps, values)."""

    name: str
    """Prefix of the SVG's ids, unique in the page."""
    title: str
    y_label: str
    train: Points
    held_out: Points = ((), ())
    baseline: tuple[str, float] | None = None
    """A horizontal line: its label in the legend and its value."""
    restarts: Sequence[int] = ()
    percent: bool = False
    from_zero: bool = False
    at_least: float = 0.0
    """The y axis reaches at least this value, where it starts at zero."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A finished plot: a title, what it shows in words, inline SVG."""

    title: str
    description: str
    svg: str = field(repr=False)


def thinned(points: Points, limit: int = _MOST_POINTS) -> Points:
    """Return at most `limit` points, each the mean of as many neighbours as all others (+-1)."""
    steps, values = (np.asarray(one, dtype=np.float64) for one in points)
    if steps.size <= limit:
        return points
    starts = np.linspace(0, steps.size, limit, endpoint=False).astype(np.int64)
    counts = np.diff(np.append(starts, steps.size))
    return (
        (np.add.reduceat(steps, starts) / counts).tolist(),
        (np.add.reduceat(values, starts) / counts).tolist(),
    )


def draw_plot(plot: Plot) -> Drawing:
    """Draw a plot over optimizer steps; a series without points is left out."""

    def paint(axes: Axes) -> None:
        if plot.train[0]:
            steps, values = thinned(plot.train)
            marker = "." if len(steps) <= _FEW_POINTS else ""
            axes.plot(
                steps,
                values,
                color=PALETTE["train"],
                linewidth=1.3,
                marker=marker,
                label="training",
            )
        if plot.held_out[0]:
            axes.plot(
                *plot.held_out,
                color=PALETTE["held-out"],
                linestyle=":",
                linewidth=1.3,
                marker="D",
                markersize=5,
                label="held-out",
            )
        if plot.baseline is not None:
            label, value = plot.baseline
            color = PALETTE["baseline"]
            axes.axhline(value, color=color, linestyle="--", linewidth=1.3, label=label)
        for number, step in enumerate(plot.restarts):
            label = "" if number else "restart"
            axes.axvline(step, color=PALETTE["restart"], linestyle="-.", linewidth=0.9, label=label)
        last = max([1.0, *plot.train[0], *plot.held_out[0]])
        axes.set_xlim(0.0, last * 1.02)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(_with_commas))
        if plot.percent:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        elif max(map(abs, plot.train[1]), default=0.0) >= 1000.0:
            axes.yaxis.set_major_formatter(FuncFormatter(_with_commas))
        if plot.from_zero:
            highest = max([*plot.train[1], *plot.held_out[1]], default=0.0)
            axes.set_ylim(0.0, max(plot.at_least, 1.08 * highest) or 1.0)
        axes.set_xlabel("optimizer steps")
        axes.set_ylabel(plot.y_label)

    return Drawing(plot.title, _describe(plot), _svg(plot.name, plot.title, paint))


def draw_length_histogram(counts: Sequence[int], max_seq_length: int) -> Drawing:
    """Draw the lengths of training instances, counted in equal buckets up to max_seq_length."""
    title = "Lengths of the training instances"
    total = sum(counts)
    width = max_seq_length / len(counts)
    shares = [count / total if total else 0.0 for count in counts]
    peak = max(range(len(counts)), key=counts.__getitem__)
    description = (
        f"{total:,} instances; the fullest of {len(counts)} buckets, {peak * width:.0f} to "
        f"{(peak + 1) * width:.0f} tokens, holds {shares[peak]:.0%}."
    )

    def paint(axes: Axes) -> None:
        starts = [number * width for number in range(len(counts))]
        axes.bar(starts, shares, width=width * 0.9, align="edge", color=PALETTE["train"])
        axes.set_xlim(0.0, max_seq_length * 1.01)
        axes.grid(visible=False, axis="x")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_xlabel("tokens of an instance, special tokens included")
        axes.set_ylabel("share of instances (%)")

    return Drawing(title, description, _svg("lengths", title, paint))


def _describe(plot: Plot) -> str:
    """Say in a sentence where the lines begin and end: the plot for those who cannot see it."""
    parts = []
    for label, (steps, values) in (("training", plot.train), ("held-out", plot.held_out)):
        if len(steps) > 1:
            parts.append(
                f"{label} {_show(plot, values[0])} at step {steps[0]:,.0f}, "
                f"{_show(plot, values[-1])} at step {steps[-1]:,.0f}"
            )
        elif len(steps) == 1:
            parts.append(f"{label} {_show(plot, values[0])} at step {steps[0]:,.0f}")
    if not plot.held_out[0] and len(plot.train[0]) > 1:
        parts.append(f"mean {_show(plot, float(np.mean(plot.train[1])))}")
    if len(plot.train[0]) > _MOST_POINTS:
        parts.append(f"drawn as {_MOST_POINTS} means of neighbouring records")
    if plot.baseline is not None:
        parts.append(f"line: {plot.baseline[0]}")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _show(plot: Plot, value: float) -> str:
    if plot.percent:
        return f"{value:.1%}"
    return f"{value:,.0f}" if abs(value) >= 1000.0 else f"{value:.3g}"


def _svg(name: str, title: str, paint: Callable[[Axes], None]) -> str:
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH_INCHES, _HEIGHT_INCHES), layout="constrained")
        axes = figure.add_subplot()
        paint(axes)
        handles, labels = axes.get_legend_handles_labels()
        if len(labels) > 1:
            # Above the axes: there it covers no line, wherever the lines run.
            figure.legend(handles, labels, loc="outside upper left", ncols=len(labels))
        sink = io.StringIO()
        none = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(sink, format="svg", metadata=none, transparent=True)
    return _inline(sink.getvalue(), name, title)


def _inline(document: str, name: str, title: str) -> str:
    """Turn an SVG document into an element of a page: own ids, page colours, no fixed size."""
    svg = document[document.index("<svg") :]
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r'xlink:href="#', f'href="#{name}-', svg)
    # Text takes the page's font; a style element would reach out of its SVG into the page.
    svg = re.sub(r"; font-family: [^;\"]*", "", svg)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    for variable, color in PALETTE.items():
        svg = svg.replace(color, f"var(--{variable})")
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box is not None
    head = f'<svg {box.group()} role="img" aria-label="{html.escape(title)}">'
    return head + svg[svg.index(">") + 1 :]


def _with_commas(value: float, _: int | None = None) -> str:
    return f"{value:,.0f}" if math.isclose(value, round(value), abs_tol=1e-6) else f"{value:,g}"
