"""Pictures of masks: which scores are visible, and which blocks are computed for them.

Finds no blocks: what is drawn is what a `BlockMask` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

import flexfa4
from flexfa4.errors import ArgumentError, describe
from flexfa4.plotting.figures import (
    EMPTY,
    LINE,
    PARTIAL,
    SEEN,
    check_index,
    check_size,
    frame,
    is_drawn_to_scale,
    new_figure,
    refuse_other_kind,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from flexfa4.block_mask import BlockMask
    from flexfa4.flex.shown import Shown

Drawable: TypeAlias = "BlockMask | Shown"
"""A block mask of ours, or one of FlexAttention's to look at."""

# What a block of a kind (0, 1, 2 in BlockMask.block_kinds) is called, and its colour.
BLOCK_KINDS: Final = (("skipped", EMPTY), ("partly visible", PARTIAL), ("fully visible", SEEN))


def plot_mask(
    mask: Any,
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
        mask: a BlockMask, ours, `flexfa4.flex`'s or torch's; or a mask function or text, then with
            `q_len` and `kv_len`.
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
    rows, columns = block_mask.shape[-2:]
    panel = 4.2 * (rows / columns if is_drawn_to_scale(rows, columns) else 1.0)
    figure = new_figure(width=10.0, height=min(panel, 10.0) + 1.2)
    tokens, blocks = figure.subplots(1, 2)
    draw_tokens(tokens, block_mask, batch_index=batch_index, head_index=head_index)
    draw_blocks(blocks, block_mask, batch_index=batch_index, head_index=head_index)
    if title:
        figure.suptitle(title)
    return figure


def draw_tokens(
    axes: Axes, block_mask: Drawable, *, batch_index: int = 0, head_index: int = 0
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
    axes: Axes, block_mask: Drawable, *, batch_index: int = 0, head_index: int = 0
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


@dataclass(frozen=True)
class _Sizes:
    """The sizes for which a mask is drawn; None where they were not given."""

    q_len: int | None
    kv_len: int | None
    batch: int
    heads: int
    block_size: int | tuple[int, int] | None


def _as_block_mask(mask: Any, sizes: _Sizes) -> Drawable:
    """Return the block mask to draw, made from a mask function or text where needed."""
    from flexfa4.block_mask import BLOCK_SIZE, BlockMask

    given = mask if isinstance(mask, BlockMask) else _of_flex(mask, sizes)
    if given is not None:
        _check_agrees(given, sizes)
        check_size(*given.shape[-2:])
        return given
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


def _of_flex(mask: Any, sizes: _Sizes) -> Shown | None:
    """Return a block mask of FlexAttention to look at, None for anything else."""
    if not hasattr(mask, "kv_num_blocks"):
        return None
    from flexfa4.flex.shown import shown

    return shown(mask, batch=sizes.batch, heads=sizes.heads)


def _check_agrees(mask: Drawable, sizes: _Sizes) -> None:
    """Refuse sizes that a BlockMask has already, unless they are its own lengths."""
    lengths = mask.shape[-2:]
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
