"""What all pictures share: colours, an empty figure, its axes, and checks of what can be drawn.

Colours are from the palette of Okabe and Ito (2008), which stays distinct under the common kinds of
colour blindness and in grey.  Draws no mod.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final, Literal

from flexfa4.errors import ArgumentError, FlexFA4Error, MissingPackageError, describe
from flexfa4.frontend.tracing.trace import trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SEEN: Final = "#0072B2"  # blue
PARTIAL: Final = "#E69F00"  # orange
EMPTY: Final = "#F2F2F2"
LINE: Final = "#4D4D4D"

# Every score becomes a pixel before the picture is scaled down; more would take gigabytes.
MOST_SCORES: Final = 2**26  # 8192 x 8192


def new_figure(*, width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackageError(feature="drawing", package="matplotlib", extra="plot") from None
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def frame(axes: Axes, q_len: int, kv_len: int) -> None:
    """Name the axes of a picture of scores and mark quarters of the lengths.

    Edges of blocks fall on these more often than on tens.
    """
    axes.set_xlabel("key position")
    axes.set_ylabel("query position")
    axes.set_xticks(_quarters(kv_len))
    axes.set_yticks(_quarters(q_len))
    axes.ticklabel_format(style="plain")  # positions are numbers to copy, however long
    axes.xaxis.set_label_position("top")
    axes.xaxis.tick_top()
    axes.set_aspect("equal" if is_drawn_to_scale(q_len, kv_len) else "auto")
    for side in axes.spines.values():
        side.set_color(LINE)


def is_drawn_to_scale(q_len: int, kv_len: int) -> bool:
    """Return whether a query is as high as a key is wide; beyond 1 : 4 that would be a strip."""
    return max(q_len, kv_len) <= 4 * min(q_len, kv_len)


def _quarters(length: int) -> list[int]:
    return sorted({length * i // 4 for i in range(5)})


def check_index(name: str, index: Any) -> None:
    """Refuse what is no index from 0 on.

    Raises:
        ArgumentError: it is not.
    """
    if not _is_int(index, at_least=0):
        raise ArgumentError(
            name=name,
            found_value=describe(index),
            expected="an int, counted from 0",
            rewrite=f"{name}=0",
        )


def check_count(name: str, count: Any) -> None:
    """Refuse what is no number of queries, keys or heads.

    Raises:
        ArgumentError: it is not.
    """
    if not _is_int(count, at_least=1):
        raise ArgumentError(
            name=name,
            found_value=describe(count),
            expected="an int, at least 1",
            rewrite=f"{name}=8" if "heads" in name else f"{name}=1024",
        )


def _is_int(value: Any, *, at_least: int) -> bool:
    """Return whether a value is an int of any library, True and False being none."""
    if isinstance(value, bool):
        return False
    try:
        return operator.index(value) >= at_least
    except TypeError:
        return False


def check_size(q_len: int, kv_len: int) -> None:
    """Refuse sizes that no picture can show.

    Raises:
        ArgumentError: they are no ints, there are no scores, or too many.
    """
    for name, length in (("q_len", q_len), ("kv_len", kv_len)):
        check_count(name, length)
    if not 0 < q_len * kv_len <= MOST_SCORES:
        raise ArgumentError(
            name="q_len * kv_len",
            found_value=q_len * kv_len,
            expected=f"1 to {MOST_SCORES} scores in a picture",
            rewrite="draw the same mod for other lengths, such as plot_score_mod(score_mod, 1024)",
        )


def refuse_other_kind(mod: Any, kind: Literal["mask", "score"], instead: str) -> None:
    """Refuse a mod of the other kind than a picture is for; where neither is sure, nothing.

    Args:
        mod: what was given.
        kind: what the picture is for.
        instead: the call for the other kind.

    Raises:
        ArgumentError: the mod is of the other kind.
    """
    try:
        found = trace(mod).kind
    except FlexFA4Error:  # whoever uses the mod says what is wrong with it
        return
    if found != kind:
        names = {"mask": "a mask", "score": "a score mod"}
        raise ArgumentError(
            name="mask" if kind == "mask" else "score_mod",
            found_value=f"{names[found]}, {describe(mod)}",
            expected=names[kind],
            rewrite=instead,
        )
