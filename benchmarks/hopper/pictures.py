"""Results as pictures for README: bars for the cases of both passes, lines for the paper's grid."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hopper.providers import OURS, PROVIDERS
from hopper.report import Results, Row, of_group, tflops

from flexfa4.plotting.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito (2008), distinct under the common kinds of colour blindness.
COLOURS: Final = dict(
    zip(PROVIDERS, ("#0072B2", "#D55E00", "#E69F00", "#56B4E9", "#009E73"), strict=True)
)
DOTS: Final = 120  # for each inch
_PER_ROW: Final = 11  # cases


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw what there are rows for, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    pictures = {"table": table_figure, "backward": table_figure, "paper": paper_figure}
    for group, picture in pictures.items():
        rows = of_group(results, group)
        if rows:
            written.append(folder / f"h200_{group}.png")
            picture(rows).savefig(written[-1], dpi=DOTS)
    return written


def table_figure(rows: list[Row]) -> Figure:
    """Return bars of TFLOPS: a group for each case, a bar for each provider."""
    parts = [rows[i : i + _PER_ROW] for i in range(0, len(rows), _PER_ROW)]
    figure = new_figure(width=10, height=2.6 * len(parts) + 0.4)
    all_axes = figure.subplots(len(parts), 1, squeeze=False, sharey=True)[:, 0]
    for axes, part in zip(all_axes, parts, strict=True):
        _bars(axes, part)
    _scale(all_axes, rows)
    _legend(figure, rows)
    return figure


def _bars(axes: Axes, rows: list[Row]) -> None:
    for at, row in enumerate(rows):
        speeds = {name: tflops(row, name) for name in PROVIDERS}
        timed = {name: speed for name, speed in speeds.items() if speed is not None}
        width = 0.84 / max(1, len(timed))
        for i, (name, speed) in enumerate(timed.items()):
            x = at - 0.42 + (i + 0.5) * width
            error = speed.median * speed.spread / 2
            axes.bar(x, speed.median, width, color=COLOURS[name])
            axes.errorbar(x, speed.median, error, color="black", linewidth=0.6)
            if name == OURS:
                axes.annotate(
                    f"{speed.median:.0f}", (x, speed.median), (0, 2), ha="center", fontsize=6,
                    textcoords="offset points",
                )  # fmt: skip
    names = [row["case"].removeprefix(f"{row['group']}-") for row in rows]
    # On one line these are wider than a case, and run into each other.
    names = [name.replace("-deterministic", "\ndeterministic") for name in names]
    axes.set_xticks(range(len(rows)), names, fontsize=7)
    axes.set_xlim(-0.6, _PER_ROW - 0.4)
    axes.set_ylabel("TFLOPS", fontsize=7)


def paper_figure(rows: list[Row]) -> Figure:
    """Return lines of TFLOPS over lengths: a panel for each head dim, sharing of heads and mask."""
    panels: dict[str, list[Row]] = {}
    for row in rows:
        dims = "/".join(map(str, sorted({row["shape"]["dim"], row["shape"]["value_dim"]})[::-1]))
        *_, sharing, variant, _ = row["case"].split("-")
        panels.setdefault(f"d{dims} {sharing.upper()} {variant}", []).append(row)
    columns = min(6, len(panels))
    lines = -(-len(panels) // columns)
    figure = new_figure(width=2.2 * columns + 0.3, height=1.9 * lines + 0.5)
    grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    for axes in grid[:, 0]:
        axes.set_ylabel("TFLOPS", fontsize=7)
    for axes, (title, part) in zip(grid.flat, panels.items(), strict=False):
        axes.set_title(title, fontsize=7)
        _lines(axes, part)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    _scale(grid.flat, rows)
    _legend(figure, rows)
    return figure


def _lines(axes: Axes, rows: list[Row]) -> None:
    for name in PROVIDERS:
        speeds = {row["shape"]["length"]: tflops(row, name) for row in rows}
        timed = {length: speed for length, speed in speeds.items() if speed is not None}
        if timed:
            axes.errorbar(
                [*timed],
                [speed.median for speed in timed.values()],
                [speed.median * speed.spread / 2 for speed in timed.values()],
                color=COLOURS[name],
                marker=".",
                linewidth=1.0,
            )
    axes.set_xscale("log", base=2)
    lengths = sorted({row["shape"]["length"] for row in rows})
    axes.set_xticks(lengths, [f"{n // 1024}k" for n in lengths])
    axes.minorticks_off()


def _scale(all_axes: Iterable[Axes], rows: list[Row]) -> None:
    """Give all panels the scale that the greatest speed needs."""
    speeds = [tflops(row, name) for row in rows for name in PROVIDERS]
    top = max((speed.median for speed in speeds if speed is not None), default=1.0)
    for axes in all_axes:
        axes.set_ylim(0, 1.1 * top)
        axes.tick_params(labelsize=7)
        axes.grid(axis="y", linewidth=0.3)
        axes.set_axisbelow(True)


def _legend(figure: Figure, rows: list[Row]) -> None:
    from matplotlib.patches import Patch

    shown = [n for n in PROVIDERS if any("ms" in row["providers"].get(n, {}) for row in rows)]
    patches = [Patch(color=COLOURS[name], label=name) for name in shown]
    figure.legend(
        handles=patches, loc="outside upper center", ncols=len(shown), frameon=False, fontsize=7
    )
