"""Results as pictures for the notes: loss curves, their differences, and errors of gradients."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from numerical import errors, training
from numerical.report import (
    Results,
    apart,
    error_of,
    lengths_of,
    runs_of,
    variants_of,
    ways_of_errors,
)
from numerical.ways import CHOICES

from flexfa4.plotting.figures import LINE, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito (2008), distinct under the common kinds of colour blindness.
_OURS: Final = ("#0072B2", "#D55E00", "#E69F00", "#56B4E9", "#009E73")
_OTHERS: Final = {
    training.REFERENCE: LINE, training.NUDGED: "#999999", training.HALF: "#CC79A7",
    errors.PEER: LINE,
}  # fmt: skip
COLOURS: Final = {**dict(zip(CHOICES, _OURS, strict=True)), **_OTHERS}
DOTS: Final = 120  # for each inch
SMOOTHED: Final = 20
"""Steps that a point of a curve is the mean of."""


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw what there are rows for, and return the files."""
    written = []
    if runs_of(results, training.REFERENCE):
        written.append(folder / "numerics_training.png")
        training_figure(results).savefig(written[-1], dpi=DOTS)
    if results["errors"]:
        written.append(folder / "numerics_errors.png")
        errors_figure(results).savefig(written[-1], dpi=DOTS)
    return written


def smoothed(numbers: Sequence[float]) -> list[float]:
    """Return the means of as many numbers as are smoothed, up to each one."""
    sums = [0.0, *itertools.accumulate(numbers)]
    ends = range(1, len(sums))
    return [(sums[i] - sums[max(0, i - SMOOTHED)]) / min(i, SMOOTHED) for i in ends]


def training_figure(results: Results) -> Figure:
    """Return losses over steps, and by how much they differ from the reference of the same seed."""
    figure = new_figure(width=10, height=4)
    left, right = figure.subplots(1, 2)
    references = runs_of(results, training.REFERENCE)
    for way in training.WAYS:
        runs = runs_of(results, way)
        if not runs:
            continue
        style: dict[str, Any] = {"color": COLOURS[way], "linewidth": 1.0}
        for seed, run in runs.items():
            shown = way if seed == min(runs) else None
            left.plot(smoothed(run["losses"]), label=shown, **style)
        if way != training.REFERENCE:
            _difference(right, [smoothed(apart(runs[s], references[s])) for s in runs], style)
    left.set_ylabel("loss, nats of a byte", fontsize=8)
    right.set_ylabel("loss less that of fp32, same seed", fontsize=8)
    right.axhline(0.0, color=LINE, linewidth=0.6)
    for axes in (left, right):
        axes.set_xlabel(f"step (means of {SMOOTHED})", fontsize=8)
        _quiet(axes)
    figure.legend(*left.get_legend_handles_labels(), **_above(4))
    return figure


def _difference(axes: Axes, curves: list[list[float]], style: dict[str, Any]) -> None:
    """Draw the mean over seeds, and the range of seeds as a band."""
    steps = range(len(curves[0]))
    columns = list(zip(*curves, strict=True))
    axes.plot(steps, [statistics.mean(c) for c in columns], **style)
    low, high = ([f(c) for c in columns] for f in (min, max))
    axes.fill_between(steps, low, high, color=style["color"], alpha=0.12, linewidth=0)


def errors_figure(results: Results) -> Figure:
    """Return errors by variant: a panel for each tensor, a colour for each way."""
    length, variants, ways = (
        lengths_of(results)[-1], variants_of(results), ways_of_errors(results),
    )  # fmt: skip
    figure = new_figure(width=10, height=3.4)
    for axes, tensor in zip(figure.subplots(1, len(errors.TENSORS)), errors.TENSORS, strict=True):
        for i, way in enumerate(ways):
            found = [error_of(results, length, variant, way, tensor) for variant in variants]
            at = [(x + (i - len(ways) / 2) / 12, y) for x, y in enumerate(found) if y is not None]
            axes.plot(*zip(*at, strict=True), ".", color=COLOURS[way], label=way, markersize=5)
        axes.set_title(tensor, fontsize=8)
        axes.set_xticks(range(len(variants)), variants, rotation=60, fontsize=7)
        axes.set_ylim(bottom=0)
        axes.ticklabel_format(axis="y", scilimits=(-3, -3))
        _quiet(axes)
        if tensor == errors.TENSORS[0]:
            axes.set_ylabel(f"relative error at {length}", fontsize=8)
            figure.legend(*axes.get_legend_handles_labels(), **_above(len(ways)))
    return figure


def _quiet(axes: Axes) -> None:
    axes.tick_params(labelsize=7)
    axes.grid(axis="y", linewidth=0.3)
    axes.set_axisbelow(True)


def _above(columns: int) -> dict[str, Any]:
    """Return where legends are."""
    return {
        "loc": "outside upper center", "ncols": columns, "frameon": False, "fontsize": 7,
    }  # fmt: skip
