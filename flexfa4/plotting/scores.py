"""Pictures of score mods: what they add to scores by position, or what they make of each score.

A mod that reads positions is drawn as a matrix of what it makes of one score, with the rows of one
query in several heads beside it; one that does not, as a curve over scores.  The values come from
the mod's graph, by the same evaluation that defines its meaning.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from flexfa4.errors import ArgumentError, OutOfRangeError, describe
from flexfa4.frontend.analysis.bounds import premises, unproved_loads
from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.sizes import Sizes
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.out_of_range import explained
from flexfa4.plotting.figures import (
    LINE,
    PARTIAL,
    SEEN,
    check_count,
    check_index,
    check_size,
    frame,
    new_figure,
    refuse_other_kind,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

# Heads that are drawn as lines at most, and the colours of these: Okabe and Ito's.
HEAD_COLOURS: Final = (SEEN, PARTIAL, "#009E73", "#CC79A7")
ZERO: Final = "#FFFFFF"
SCORES_IN_CURVE: Final = 201


@dataclass(frozen=True)
class Scores:
    """A score mod for a call of these sizes, evaluated where a picture needs it.

    Attributes:
        score_mod: function, text or `Mod`.
        sizes: of the call.
    """

    score_mod: Callable[..., Any] | str
    sizes: Sizes

    @torch.no_grad()
    def at(self, lanes: Lanes, score: torch.Tensor) -> torch.Tensor:
        """Return the modified scores over a rectangle.

        Args:
            lanes: the rectangle.
            score: broadcasts to ``lanes.shape``.

        Raises:
            TraceError, TextError: the mod cannot be traced or read.
            OutOfRangeError: it reads a tensor outside its bounds.
        """
        bound = resolve(self.score_mod, "score")
        values = Values.of(
            bound,
            self.sizes,
            device=bound.tensors[0].device if bound.tensors else torch.device("cpu"),
            unproved=unproved_loads(premises(bound, self.sizes)),
        )
        score = score.to(values.device).expand(lanes.shape).contiguous()
        try:
            (result,) = Program((bound.graph.root,)).run(values, lanes, score)
        except OutOfRangeError as error:
            raise explained(error, bound, self.sizes, OutOfRangeError) from None
        return torch.as_tensor(result, dtype=torch.float32).expand(lanes.shape).cpu()

    @property
    def reads_positions(self) -> bool:
        """Whether the mod tells positions apart."""
        return not resolve(self.score_mod, "score").graph.root.depends.isdisjoint({"q", "kv"})

    @property
    def reads_heads(self) -> bool:
        """Whether the mod tells heads apart."""
        return "h" in resolve(self.score_mod, "score").graph.root.depends

    def heads(self) -> list[int]:
        """Return the heads that lines are drawn for: a few that spread over all of them."""
        if not self.reads_heads:
            return [0]
        most = min(len(HEAD_COLOURS), self.sizes.heads)
        return [i * (self.sizes.heads - 1) // max(most - 1, 1) for i in range(most)]


def plot_score_mod(
    score_mod: Callable[..., Any] | str,
    q_len: int,
    kv_len: int | None = None,
    *,
    num_heads: int = 8,
    score: float = 0.0,
    batch_index: int = 0,
    head_index: int = 0,
    title: str = "",
) -> Figure:
    """Draw what a score mod makes of a score at every position, or of every score.

    A mod that reads positions gives two panels: at the left what it makes of `score` for each query
    and key, with the default of 0 the bias that it adds; at the right the last query's row for a
    few heads.  Another mod gives one panel, the modified score over the score.

    Args:
        score_mod: function, text or `Mod`.
        q_len: queries.
        kv_len: keys; None takes `q_len`.
        num_heads: query heads of the call, and key heads.
        score: what the mod is given in place of a score of the call.
        batch_index: which batch entry to draw.
        head_index: which query head to draw at the left.
        title: what to write above the picture.

    Returns:
        The figure; ``figure.savefig(path)`` writes it.

    Raises:
        MissingPackageError: matplotlib is not installed.
        ArgumentError: sizes are too large, there is no such head, or `score_mod` is a mask.
        TraceError, TextError: the mod cannot be traced or read.
        OutOfRangeError: a captured tensor is smaller than the lengths.
    """
    check_index("batch_index", batch_index)
    check_index("head_index", head_index)
    check_count("num_heads", num_heads)
    if not isinstance(score, numbers.Real):
        raise ArgumentError(
            name="score", found_value=describe(score), expected="a number", rewrite="score=0.0"
        )
    refuse_other_kind(score_mod, "score", "plot_mask(mask, 1024)")
    if head_index >= num_heads:
        raise ArgumentError(
            name="head_index",
            found_value=head_index,
            expected=f"one of {num_heads} heads, from 0 on",
            rewrite=f"num_heads={head_index + 1}, as many as the calls have",
        )
    kv_len = q_len if kv_len is None else kv_len
    check_size(q_len, kv_len)
    scores = Scores(score_mod, Sizes(batch_index + 1, num_heads, num_heads, q_len, kv_len))
    positional = scores.reads_positions
    figure = new_figure(width=10.0 if positional else 5.0, height=4.8)
    if positional:
        matrix, rows = figure.subplots(1, 2)
        draw_matrix(matrix, scores, score=score, batch_index=batch_index, head_index=head_index)
        draw_rows(rows, scores, score=score, batch_index=batch_index)
    else:
        draw_curve(figure.subplots(), scores, batch_index=batch_index)
    if title:
        figure.suptitle(title)
    return figure


def draw_matrix(
    axes: Axes, scores: Scores, *, score: float = 0.0, batch_index: int = 0, head_index: int = 0
) -> None:
    """Draw what one score becomes for each query and key of a head, with a scale of colours."""
    from matplotlib.colors import Normalize

    sizes = scores.sizes
    lanes = Lanes(
        (batch_index, batch_index + 1),
        (head_index, head_index + 1),
        (0, sizes.q_len),
        (0, sizes.kv_len),
    )
    values = scores.at(lanes, torch.tensor(score))[0, 0]
    finite = torch.where(values.isfinite(), values, 0.0)
    low, high = min(float(finite.min()), 0.0), max(float(finite.max()), 0.0)
    if low == high:  # nothing but zeros
        high = 1.0
    image = axes.imshow(
        values.numpy(),
        cmap=_around_zero(low, high),
        norm=Normalize(low, high),
        extent=(0, sizes.kv_len, sizes.q_len, 0),
        interpolation="nearest",
    )
    axes.figure.colorbar(image, ax=axes, shrink=0.85)
    given = "added to a score of 0" if score == 0 else f"what becomes of a score of {score:g}"
    axes.set_title(f"{given}, head {head_index}", fontsize="medium")
    frame(axes, sizes.q_len, sizes.kv_len)


def _around_zero(low: float, high: float) -> Colormap:
    """Return a map from `low` to `high` that is white at 0, blue below and orange above.

    Equal distances from 0 have equal strength, so the smaller side does not reach the full colour.
    """
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    def mixed(value: float, colour: str) -> tuple[float, ...]:
        share = abs(value) / max(-low, high)
        pairs = zip(to_rgb(ZERO), to_rgb(colour), strict=True)
        return tuple(z + (c - z) * share for z, c in pairs)

    stops = {0.0: mixed(low, SEEN), 1.0: mixed(high, PARTIAL)}
    stops[-low / (high - low)] = to_rgb(ZERO)  # takes the place of an end that is 0
    return LinearSegmentedColormap.from_list("around_zero", sorted(stops.items()))


def draw_rows(axes: Axes, scores: Scores, *, score: float = 0.0, batch_index: int = 0) -> None:
    """Draw what one score becomes for each key of the last query, a line for each of some heads."""
    last, keys = scores.sizes.q_len - 1, scores.sizes.kv_len
    lines = [
        scores.at(
            Lanes((batch_index, batch_index + 1), (head, head + 1), (last, last + 1), (0, keys)),
            torch.tensor(score),
        ).flatten()
        for head in scores.heads()
    ]
    _draw_lines(axes, torch.arange(keys), lines, scores.heads())
    axes.set_title(f"the row of query {last}", fontsize="medium")
    axes.set_xlabel("key position")


def draw_curve(
    axes: Axes, scores: Scores, *, batch_index: int = 0, limits: tuple[float, float] = (-100, 100)
) -> None:
    """Draw what becomes of each score at position 0, a line for each of some heads."""
    given = torch.linspace(*limits, SCORES_IN_CURVE)
    # every query is the same to the mod, so the scores lie along that axis
    lines = [
        scores.at(
            Lanes((batch_index, batch_index + 1), (head, head + 1), (0, len(given)), (0, 1)),
            given[:, None],
        ).flatten()
        for head in scores.heads()
    ]
    _draw_lines(axes, given, lines, scores.heads())
    axes.plot(limits, limits, color=LINE, linewidth=0.6, linestyle=":")
    axes.set_title("what becomes of a score (dotted: unchanged)", fontsize="medium")
    axes.set_xlabel("score")


def _draw_lines(
    axes: Axes, x: torch.Tensor, lines: Sequence[torch.Tensor], heads: Sequence[int]
) -> None:
    """Draw a line for each head, and name the heads where there are several."""
    for head, line, colour in zip(heads, lines, HEAD_COLOURS, strict=False):
        axes.plot(x.numpy(), line.numpy(), color=colour, linewidth=1.4, label=f"head {head}")
    if len(heads) > 1:
        axes.legend(
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),  # beside the lines, which may be anywhere inside
            frameon=False,
            fontsize="small",
            handlelength=1.0,
        )
    axes.grid(color="#E5E5E5", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_color(LINE)
