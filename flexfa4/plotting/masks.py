"""Pictures of masks: which scores are visible, and which blocks are computed for them.

Finds no blocks: what is drawn is what a `BlockMask` says.  A long mask is not drawn in full: one
score is looked at for each pixel, and a pixel stands for several blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

import flexfa4
from flexfa4.errors import ArgumentError, describe
from flexfa4.frontend.evaluate import Program, mask_tile
from flexfa4.frontend.lanes import ScatteredLanes
from flexfa4.frontend.masks import grid
from flexfa4.plotting.figures import (
    EMPTY,
    LINE,
    MOST_SCORES,
    PARTIAL,
    SEEN,
    check_count,
    check_index,
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
    from flexfa4.frontend.masks.runs import BlockRuns

Drawable: TypeAlias = "BlockMask | Shown"
"""A block mask of ours, or one of FlexAttention's to look at."""

# More pixels along an axis than a figure has; what is longer is not drawn in full.
_MOST_PIXELS: Final = 1024
_SCORES_AT_ONCE: Final = 1 << 22

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
    """Draw a mask for one batch entry and head: its scores at the left, its blocks at the right.

    Lengths are as large as they like: beyond 8192 x 8192 scores the left picture shows one score,
    picked at random, for each pixel, and beyond 1024 blocks along an axis a pixel at the right
    stands for several blocks; the titles say so.

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
        ArgumentError: sizes are missing or contradict the BlockMask, there is no such batch entry
            or head, or `mask` is a score mod.
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
    """Draw which key each query sees: a pixel for each score, or one score for each pixel."""
    from matplotlib.colors import LinearSegmentedColormap

    _check_entry(block_mask, batch_index, head_index)
    q_len, kv_len = block_mask.shape[-2:]
    every = q_len * kv_len <= MOST_SCORES
    most = None if every else _MOST_PIXELS
    q, kv = _positions(q_len, most), _positions(kv_len, most)
    seen = _scores(block_mask, (batch_index, head_index), q, kv)
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
    if every:
        title = f"scores: {share:.1%} visible"
    else:
        title = f"{len(q)} x {len(kv)} of the scores: {share:.1%} visible"
    axes.set_title(title, fontsize="medium")
    _legend(axes, [("hidden", EMPTY), ("visible", SEEN)])
    frame(axes, q_len, kv_len)


def draw_blocks(
    axes: Axes, block_mask: Drawable, *, batch_index: int = 0, head_index: int = 0
) -> None:
    """Draw which blocks are skipped, computed under the mask, or computed without it.

    A pixel that stands for blocks of several kinds is drawn as partly visible.
    """
    from matplotlib.colors import ListedColormap

    _check_entry(block_mask, batch_index, head_index)
    runs = _runs(block_mask, batch_index, head_index)
    q_len, kv_len = block_mask.shape[-2:]
    height, width = block_mask.block_size
    down, across = (grid.block_count(max(1, n), _MOST_PIXELS) for n in (runs.lines, runs.width))
    pixels = runs.coarsened(down, across).to_kinds()[0].cpu()
    rows, columns = pixels.shape
    axes.imshow(
        pixels.numpy(),
        cmap=ListedColormap([colour for _, colour in BLOCK_KINDS]),
        vmin=0,
        vmax=len(BLOCK_KINDS) - 1,
        extent=(0, columns * width * across, rows * height * down, 0),
        interpolation="nearest",
    )
    if max(rows, columns) <= 64:  # beyond this the lines hide the blocks
        for edge in range(1, columns):
            axes.axvline(edge * width, color="white", linewidth=0.5)
        for edge in range(1, rows):
            axes.axhline(edge * height, color="white", linewidth=0.5)
    axes.set_xlim(0, kv_len)
    axes.set_ylim(q_len, 0)
    blocks = runs.lines * runs.width
    partial, full = (int(runs.lengths_of(kind).sum()) for kind in (grid.PARTIAL, grid.FULL))
    counts = (blocks - partial - full, partial, full)
    grouped = f", {down} x {across} to a pixel" if down * across > 1 else ""
    axes.set_title(
        f"blocks of {height} x {width}{grouped}: {counts[0] / max(1, blocks):.1%} skipped",
        fontsize="medium",
    )
    _legend(
        axes,
        [(f"{name}: {n}", colour) for (name, colour), n in zip(BLOCK_KINDS, counts, strict=True)],
    )
    frame(axes, q_len, kv_len)


def _positions(length: int, most: int | None) -> torch.Tensor:
    """Return the positions to look at, int64: all, or one of each of `most` equal stretches.

    Which one is left to chance: at a fixed step, a mask of that period would look like another.
    """
    if most is None or length <= most:
        return torch.arange(length)
    ends = torch.arange(most + 1) * length // most
    chance = torch.rand(most, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return ends[:-1] + (chance * ends.diff()).long()


def _scores(
    block_mask: Drawable, entry: tuple[int, int], q: torch.Tensor, kv: torch.Tensor
) -> torch.Tensor:
    """Return which of some keys each of some queries sees, bool ``(len(q), len(kv))``."""
    native = block_mask if isinstance(block_mask, flexfa4.BlockMask) else block_mask.native
    blocks = native.blocks_on(native.device)
    program, device = Program((blocks.graph.root,)), blocks.values.device
    counts = (blocks.size.b, blocks.size.h)  # 1 where the mask is the same for all
    b, h = (
        torch.tensor([at if n > 1 else 0], device=device)
        for at, n in zip(entry, counts, strict=True)
    )
    tile = partial(ScatteredLanes, b, h, kv=kv.to(device)[None])
    parts = [torch.zeros(0, len(kv), dtype=torch.bool)]
    for rows in torch.split(q.to(device), max(1, _SCORES_AT_ONCE // max(1, len(kv)))):
        lanes = tile(rows[None])
        parts.append(mask_tile(program, blocks.values, lanes).expand(lanes.shape)[0, 0].cpu())
    return torch.cat(parts)


def _runs(block_mask: Drawable, batch_index: int, head_index: int) -> BlockRuns:
    """Return the runs of the blocks of one batch entry and head."""
    if not isinstance(block_mask, flexfa4.BlockMask):
        return block_mask.runs_of(batch_index, head_index)
    blocks = block_mask.blocks_on(block_mask.device)
    batches, heads = blocks.classes.of.shape
    class_ = int(blocks.classes.of[batch_index % batches, head_index % heads])
    return blocks.runs.of_classes([class_])


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


def _check_entry(block_mask: Drawable, batch_index: int, head_index: int) -> None:
    """Refuse a batch entry or head that a block mask does not have."""
    batches, heads = block_mask.shape[:2]
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
    from flexfa4.block_mask import BlockMask
    from flexfa4.masks.spec import BLOCK_SIZE

    given = mask if isinstance(mask, BlockMask) else _of_flex(mask, sizes)
    if given is not None:
        _check_agrees(given, sizes)
        return given
    if sizes.q_len is None:
        raise ArgumentError(
            name="q_len",
            found_value=None,
            expected="the number of queries, for a mask that is not a BlockMask",
            rewrite="plot_mask(mask, 1024)",
        )
    kv_len = sizes.q_len if sizes.kv_len is None else sizes.kv_len
    for name, length in (("q_len", sizes.q_len), ("kv_len", kv_len)):
        check_count(name, length)
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
    if not hasattr(mask, "BLOCK_SIZE"):
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
