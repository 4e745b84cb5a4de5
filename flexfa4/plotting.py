"""Pictures of masks: which scores are visible, and which blocks are computed for them.

Pictures of score mods are in `flexfa4.score_plots`.

Figures are made without pyplot, so nothing here touches a display or another figure's state;
callers save or show what they get.  matplotlib is loaded when a picture is asked for, not before.

Colours are from the palette of Okabe and Ito (2008), which stays distinct under the common kinds of
colour blindness and in grey.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

import flexfa4
from flexfa4.errors import ArgumentError, FlexFA4Error, MissingPackageError, describe
from flexfa4.frontend.tracing.trace import trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from flexfa4.block_mask import BlockMask

SEEN: Final = "#0072B2"  # blue
PARTIAL: Final = "#E69F00"  # orange
EMPTY: Final = "#F2F2F2"
LINE: Final = "#4D4D4D"

# What a block of a kind (0, 1, 2 in BlockMask.block_kinds) is called, and its colour.
BLOCK_KINDS: Final = (("skipped", EMPTY), ("partly visible", PARTIAL), ("fully visible", SEEN))

# Every score becomes a pixel before the picture is scaled down; more would take gigabytes.
MOST_SCORES: Final = 2**26  # 8192 x 8192


def plot_mask(
    mask: BlockMask | Callable[..., Any] | str,
    q_len: int | None = None,
    kv_len: int | None = None,
    *,
    batch_index: int = 0,
    head_index: int = 0,
    block_size: int | tuple[int, int] | None = None,
    title: str = "",
) -> Figure:
    """Draw a mask for one batch entry and head: every score at the left, every block at the right.

    Args:
        mask: a BlockMask; or a mask function or text, then with `q_len` and `kv_len`.
        q_len: queries; not given for a BlockMask.
        kv_len: keys; None takes `q_len`.
        batch_index: which batch entry to draw.
        head_index: which query head to draw.
        block_size: queries and keys in a block, or one number for both; None takes the default of
            `create_block_mask`. Not given for a BlockMask, which has its own.
        title: what to write above the picture.

    Returns:
        The figure; ``figure.savefig(path)`` writes it.

    Raises:
        MissingPackageError: matplotlib is not installed.
        ArgumentError: sizes are missing, too large or contradict the BlockMask, there is no such
            batch entry or head, or `mask` is a score mod.
    """
    check_index("batch_index", batch_index)
    check_index("head_index", head_index)
    refuse_other_kind(mask, "mask", "plot_score_mod(score_mod, 1024)")
    sizes = _Sizes(q_len, kv_len, batch_index + 1, head_index + 1, block_size)
    block_mask = _as_block_mask(mask, sizes)
    rows, columns = block_mask.q_len, block_mask.kv_len
    panel = 4.2 * (rows / columns if _is_drawn_to_scale(rows, columns) else 1.0)
    figure = new_figure(width=10.0, height=min(panel, 10.0) + 1.2)
    tokens, blocks = figure.subplots(1, 2)
    draw_tokens(tokens, block_mask, batch_index=batch_index, head_index=head_index)
    draw_blocks(blocks, block_mask, batch_index=batch_index, head_index=head_index)
    if title:
        figure.suptitle(title)
    return figure


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


def draw_tokens(
    axes: Axes, block_mask: BlockMask, *, batch_index: int = 0, head_index: int = 0
) -> None:
    """Draw which key each query sees, a pixel for each score."""
    from matplotlib.colors import LinearSegmentedColormap

    seen = _entry(block_mask.to_dense(), batch_index, head_index)
    q_len, kv_len = seen.shape
    axes.imshow(
        seen.to(torch.uint8).numpy(),
        # a gradient, for pixels that stand for several scores
        cmap=LinearSegmentedColormap.from_list("seen", [EMPTY, SEEN]),
        vmin=0,
        vmax=1,
        extent=(0, kv_len, q_len, 0),
        interpolation="antialiased",
        interpolation_stage="data",
    )
    share = seen.float().mean().item() if seen.numel() else 0.0
    axes.set_title(f"scores: {share:.1%} visible", fontsize="medium")
    _legend(axes, [("hidden", EMPTY), ("visible", SEEN)])
    frame(axes, q_len, kv_len)


def draw_blocks(
    axes: Axes, block_mask: BlockMask, *, batch_index: int = 0, head_index: int = 0
) -> None:
    """Draw which blocks are skipped, computed under the mask, or computed without it."""
    from matplotlib.colors import ListedColormap

    kinds = _entry(block_mask.block_kinds(), batch_index, head_index)
    rows, columns = kinds.shape
    q_len, kv_len = block_mask.shape[-2:]
    height, width = block_mask.block_size
    axes.imshow(
        kinds.numpy(),
        cmap=ListedColormap([colour for _, colour in BLOCK_KINDS]),
        vmin=0,
        vmax=len(BLOCK_KINDS) - 1,
        extent=(0, columns * width, rows * height, 0),
        interpolation="nearest",
    )
    if max(rows, columns) <= 64:  # beyond this the lines hide the blocks
        for edge in range(1, columns):
            axes.axvline(edge * width, color="white", linewidth=0.5)
        for edge in range(1, rows):
            axes.axhline(edge * height, color="white", linewidth=0.5)
    axes.set_xlim(0, kv_len)
    axes.set_ylim(q_len, 0)
    counts = torch.bincount(kinds.flatten().long(), minlength=len(BLOCK_KINDS)).tolist()
    total = max(kinds.numel(), 1)
    axes.set_title(
        f"blocks of {height} x {width}: {counts[0] / total:.1%} skipped", fontsize="medium"
    )
    _legend(
        axes,
        [(f"{name}: {n}", colour) for (name, colour), n in zip(BLOCK_KINDS, counts, strict=True)],
    )
    frame(axes, q_len, kv_len)


def _legend(axes: Axes, entries: list[tuple[str, str]]) -> None:
    """Name the colours below the picture."""
    from matplotlib.patches import Patch

    axes.legend(
        handles=[Patch(facecolor=c, edgecolor=LINE, label=name) for name, c in entries],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.01),
        ncols=len(entries),
        frameon=False,
        fontsize="small",
        handlelength=1.0,
        columnspacing=1.2,
    )


def frame(axes: Axes, q_len: int, kv_len: int) -> None:
    """Name the axes of a picture of scores and mark quarters of the lengths.

    Edges of blocks fall on these more often than on tens.
    """
    axes.set_xlabel("key position")
    axes.set_ylabel("query position")
    axes.set_xticks(_quarters(kv_len))
    axes.set_yticks(_quarters(q_len))
    axes.xaxis.set_label_position("top")
    axes.xaxis.tick_top()
    axes.set_aspect("equal" if _is_drawn_to_scale(q_len, kv_len) else "auto")
    for side in axes.spines.values():
        side.set_color(LINE)


def _is_drawn_to_scale(q_len: int, kv_len: int) -> bool:
    """Whether a query is as high as a key is wide; beyond 1 : 4 the picture would be a strip."""
    return max(q_len, kv_len) <= 4 * min(q_len, kv_len)


def _quarters(length: int) -> list[int]:
    return sorted({length * i // 4 for i in range(5)})


def _entry(table: torch.Tensor, batch_index: int, head_index: int) -> torch.Tensor:
    """Return one batch entry and head of a table (B or 1, H or 1, rows, columns), on the CPU."""
    batches, heads = table.shape[:2]
    for name, index, size in (
        ("batch_index", batch_index, batches),
        ("head_index", head_index, heads),
    ):
        check_index(name, index)
        if index >= size != 1:  # a single entry serves all
            raise ArgumentError(
                name=name,
                found_value=index,
                expected=f"an entry of the mask, of which there are {size}",
                rewrite=f"{name}=0" if size else "a mask that is made for at least one",
            )
    return table[batch_index % batches, head_index % heads].detach().cpu()


def check_index(name: str, index: Any) -> None:
    """Refuse what is no index from 0 on.

    Raises:
        ArgumentError: it is not.
    """
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise ArgumentError(
            name=name,
            found_value=describe(index),
            expected="an int, counted from 0",
            rewrite=f"{name}=0",
        )


@dataclass(frozen=True)
class _Sizes:
    """The sizes for which a mask is drawn; None where they were not given."""

    q_len: int | None
    kv_len: int | None
    batch: int
    heads: int
    block_size: int | tuple[int, int] | None


def _as_block_mask(mask: BlockMask | Callable[..., Any] | str, sizes: _Sizes) -> BlockMask:
    """Return the BlockMask to draw, made from a mask function or text where needed."""
    from flexfa4.block_mask import BLOCK_SIZE, BlockMask

    if isinstance(mask, BlockMask):
        _check_agrees(mask, sizes)
        check_size(mask.q_len, mask.kv_len)
        return mask
    if sizes.q_len is None:
        raise ArgumentError(
            name="q_len",
            found_value=None,
            expected="the number of queries, for a mask that is not a BlockMask",
            rewrite="plot_mask(mask, 1024)",
        )
    kv_len = sizes.q_len if sizes.kv_len is None else sizes.kv_len
    check_size(sizes.q_len, kv_len)
    made: BlockMask = flexfa4.create_block_mask(
        mask,
        batch=sizes.batch,
        heads=sizes.heads,
        q_len=sizes.q_len,
        kv_len=kv_len,
        block_size=BLOCK_SIZE if sizes.block_size is None else sizes.block_size,
    )
    return made


def _check_agrees(mask: BlockMask, sizes: _Sizes) -> None:
    """Refuse sizes that a BlockMask has already, unless they are its own lengths."""
    lengths = (mask.q_len, mask.kv_len)
    if (sizes.q_len, sizes.kv_len) not in ((None, None), lengths):
        raise ArgumentError(
            name="q_len, kv_len",
            found_value=f"{sizes.q_len}, {sizes.kv_len}",
            expected=f"nothing, or the BlockMask's own {lengths}",
            rewrite="plot_mask(block_mask)",
        )
    if sizes.block_size is not None:
        raise ArgumentError(
            name="block_size",
            found_value=describe(sizes.block_size),
            expected=f"None for a BlockMask, which is drawn with its own blocks {mask.block_size}",
            rewrite="plot_mask(block_mask)",
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


def check_size(q_len: int, kv_len: int) -> None:
    """Refuse sizes that no picture can show.

    Raises:
        ArgumentError: there are no scores, or too many.
    """
    if not 0 < q_len * kv_len <= MOST_SCORES:
        raise ArgumentError(
            name="q_len * kv_len",
            found_value=q_len * kv_len,
            expected=f"1 to {MOST_SCORES} scores in a picture",
            rewrite="draw the same mask for other lengths, such as plot_mask(mask, 1024)",
        )
