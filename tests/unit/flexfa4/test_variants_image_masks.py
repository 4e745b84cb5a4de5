"""Masks over images, video and blocks against loops over coordinates."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.errors import ArgumentError, MaskOutOfRangeError
from flexfa4.variants import (
    Axial,
    BlockSparse,
    Neighborhood,
    ShiftedWindow,
    SlidingTile,
    SpatialHead,
    TemporalHead,
    VideoSparse,
    axial,
    block_sparse,
    neighborhood,
    shifted_window,
    sliding_tile,
    spatial_head,
    temporal_head,
    video_sparse,
)
from flexfa4.variants.token_order import Morton, Tiled, TokenOrder, row_major

LENGTH = 80
At = tuple[int, ...]
Sees = Callable[[Any, Any], bool]


def dense(mask: Any, q_len: int = LENGTH, kv_len: int = LENGTH) -> torch.Tensor:
    made = flexfa4.create_block_mask(mask, q_len=q_len, kv_len=kv_len)
    return made.to_dense()[0, 0]


def matrix(queries: Sequence[Any], keys: Sequence[Any], sees: Sees) -> torch.Tensor:
    """Return where a query sees a key; None is padding, which sees nothing and is not seen."""
    return torch.tensor(
        [[q is not None and k is not None and sees(q, k) for k in keys] for q in queries]
    )


def tokens(canvas: At, order: TokenOrder = row_major, length: int = LENGTH) -> list[At | None]:
    """Return the coordinates of the token at each position, None for padding."""
    found: list[At | None] = [None] * max(length, order.length(canvas))
    places = order.positions(canvas).tolist()
    for place, at in zip(places, itertools.product(*map(range, canvas)), strict=True):
        found[place] = at
    return found[:length]


def nearest_run(members: Sequence[int], kernel: int, at: int) -> Sequence[int]:
    """Return the run of `kernel` members whose middle is nearest to `at`.

    The middle of an even run is the member behind its centre.
    """
    runs = [members[i : i + kernel] for i in range(len(members) - kernel + 1)]
    return min(runs, key=lambda run: abs(members.index(run[kernel // 2]) - members.index(at)))


def neighbors(canvas: At, kernel: At, dilation: At) -> Sees:
    def sees(q: At, k: At) -> bool:
        for axis, size in enumerate(canvas):
            members = range(q[axis] % dilation[axis], size, dilation[axis])
            if k[axis] not in nearest_run(members, kernel[axis], q[axis]):
                return False
        return True

    return sees


NEIGHBORHOODS: dict[str, tuple[At, At, At | None, TokenOrder]] = {
    "square": ((7, 7), (3, 3), None, row_major),
    "wide": ((5, 9), (3, 5), None, row_major),
    "high": ((9, 5), (5, 3), None, row_major),
    "even kernels": ((6, 8), (4, 2), None, row_major),
    "kernel of one": ((6, 8), (1, 1), None, row_major),
    "kernel as large as the canvas": ((6, 8), (6, 8), None, row_major),
    "kernel of one row": ((6, 8), (1, 8), None, row_major),
    "dilated": ((9, 8), (3, 3), (2, 2), row_major),
    "dilated unevenly": ((7, 11), (2, 3), (3, 2), row_major),
    "dilated and even": ((8, 10), (4, 2), (2, 5), row_major),
    "one axis": ((70,), (5,), None, row_major),
    "one axis, dilated": ((70,), (4,), (3,), row_major),
    "video": ((3, 4, 6), (2, 3, 3), None, row_major),
    "video, dilated": ((4, 4, 5), (2, 3, 2), (2, 1, 2), row_major),
    "tiled": ((6, 8), (3, 4), None, Tiled((3, 2))),
    "tiled with padding": ((5, 7), (3, 4), None, Tiled((2, 4))),
    "tiled and dilated": ((6, 8), (3, 2), (2, 3), Tiled((3, 4))),
    "Morton": ((8, 8), (3, 4), None, Morton()),
    "Morton, wide": ((4, 16), (3, 4), None, Morton()),
    "Morton with padding": ((5, 6), (3, 3), None, Morton()),
    "Morton video": ((3, 4, 4), (2, 3, 2), None, Morton()),
}


@pytest.mark.parametrize("name", NEIGHBORHOODS)
def test_a_neighborhood_is_the_nearest_run_of_tokens_along_each_axis(name: str) -> None:
    canvas, kernel, dilation, order = NEIGHBORHOODS[name]
    at = tokens(canvas, order)
    expected = matrix(at, at, neighbors(canvas, kernel, dilation or (1,) * len(canvas)))
    assert torch.equal(dense(Neighborhood(canvas, kernel, dilation, order)), expected)


@pytest.mark.parametrize("kernel", [(4, 4), (3, 5), (1, 2)])
def test_every_token_sees_as_many_keys_as_the_kernel_has(kernel: At) -> None:
    seen = dense(Neighborhood((7, 9), kernel)).sum(-1)
    assert seen.tolist() == [kernel[0] * kernel[1]] * 63 + [0] * (LENGTH - 63)


def test_fewer_queries_than_keys_are_the_first_positions() -> None:
    mask = Neighborhood((5, 9), (3, 5))
    assert torch.equal(dense(mask, 30, 50), dense(mask)[:30, :50])


def test_a_dilation_of_one_changes_nothing() -> None:
    assert torch.equal(
        dense(Neighborhood((7, 9), (3, 4), (1, 1))), dense(Neighborhood((7, 9), (3, 4)))
    )


def test_new_sizes_do_not_trace_again() -> None:
    dense(Neighborhood((7, 9), (3, 4)))
    dense(ShiftedWindow((7, 9), (3, 4), (1, 2)))
    before = flexfa4.stats()
    dense(Neighborhood((9, 6), (5, 2)))
    dense(ShiftedWindow((6, 6), (2, 3), (0, 1)))
    assert (flexfa4.stats() - before).traces == 0


SLIDING_TILES: dict[str, tuple[At, At, At, int]] = {
    "image": ((6, 12), (6, 4), (2, 4), 0),
    "odd windows": ((10, 6), (6, 2), (2, 2), 0),
    "even windows": ((8, 8), (4, 8), (2, 2), 0),
    "one tile": ((6, 8), (2, 4), (2, 4), 0),
    "kernel as large as the canvas": ((6, 8), (6, 8), (3, 2), 4),
    "text": ((6, 8), (6, 4), (2, 2), 7),
    "video": ((4, 4, 4), (2, 4, 2), (2, 2, 1), 0),
    "video with text": ((3, 4, 6), (3, 2, 6), (1, 2, 2), 5),
}


@pytest.mark.parametrize("name", SLIDING_TILES)
def test_a_tile_sees_the_nearest_run_of_tiles_along_each_axis(name: str) -> None:
    canvas, kernel, tile, text = SLIDING_TILES[name]
    order = Tiled(tile)
    video = order.length(canvas)
    at: list[Any] = [*tokens(canvas, order, video), *["text"] * text]
    at += [None] * (LENGTH - len(at))
    grid, window = (tuple(n // t for n, t in zip(x, tile, strict=True)) for x in (canvas, kernel))
    near = neighbors(grid, window, (1,) * len(grid))

    def sees(q: Any, k: Any) -> bool:
        if "text" in (q, k):
            return True
        q_tile, k_tile = (tuple(c // t for c, t in zip(x, tile, strict=True)) for x in (q, k))
        return near(q_tile, k_tile)

    assert torch.equal(dense(SlidingTile(canvas, kernel, tile, text)), matrix(at, at, sees))


def test_blocks_of_a_tile_are_full_or_empty() -> None:
    mask = SlidingTile((4, 8, 8), (4, 4, 4), (2, 4, 2))
    kinds = flexfa4.create_block_mask(mask, q_len=256, kv_len=256, block_size=16).block_kinds()
    assert set(kinds.unique().tolist()) == {0, 2}


def swin_labels(size: int, window: int, shift: int) -> dict[int, tuple[int, int]]:
    """Return the window and the region of each coordinate, by the steps of the paper.

    The axis is padded to whole windows and rolled by the shift; windows are cut from the result,
    and in the last one what came from the other side is a region of its own.
    """
    padded = [*range(size), *[None] * (-size % window)]
    rolled = padded[shift:] + padded[:shift]
    labels = {}
    for place, coordinate in enumerate(rolled):
        if coordinate is not None:
            labels[coordinate] = (place // window, int(place >= len(padded) - shift))
    return labels


SHIFTED_WINDOWS: dict[str, tuple[At, At, At, TokenOrder]] = {
    "no shift": ((6, 8), (3, 4), (0, 0), row_major),
    "half a window": ((8, 8), (4, 4), (2, 2), row_major),
    "odd window": ((9, 6), (3, 3), (1, 2), row_major),
    "shift along one axis": ((6, 8), (3, 2), (0, 1), row_major),
    "canvas that is not whole windows": ((7, 9), (3, 4), (1, 2), row_major),
    "one window": ((5, 7), (5, 7), (2, 3), row_major),
    "window larger than the canvas": ((5, 7), (8, 8), (4, 4), row_major),
    "window of one": ((5, 7), (1, 1), (0, 0), row_major),
    "video": ((4, 4, 4), (2, 2, 4), (1, 1, 2), row_major),
    "tiled": ((6, 8), (3, 4), (1, 2), Tiled((3, 4))),
}


@pytest.mark.parametrize("name", SHIFTED_WINDOWS)
def test_shifted_windows_are_those_of_the_rolled_image_without_what_it_brings_together(
    name: str,
) -> None:
    canvas, window, shift, order = SHIFTED_WINDOWS[name]
    labels = [swin_labels(*axis) for axis in zip(canvas, window, shift, strict=True)]

    def sees(q: At, k: At) -> bool:
        return all(of[x] == of[y] for of, x, y in zip(labels, q, k, strict=True))

    at = tokens(canvas, order)
    mask = ShiftedWindow(canvas, window, shift, order)
    assert torch.equal(dense(mask), matrix(at, at, sees))


def test_windows_in_tiles_are_blocks_on_the_diagonal() -> None:
    seen = dense(ShiftedWindow((6, 8), (3, 4), (0, 0), Tiled((3, 4))), 48, 48)
    assert torch.equal(seen, torch.block_diag(*[torch.ones(12, 12)] * 4) > 0)


@pytest.mark.parametrize(
    ("canvas", "axis", "order"),
    [
        ((5, 9), 0, row_major),
        ((5, 9), 1, row_major),
        ((3, 4, 5), 0, row_major),
        ((3, 4, 5), 1, row_major),
        ((3, 4, 5), 2, row_major),
        ((20,), 0, row_major),
        ((5, 7), 1, Tiled((2, 2))),
        ((4, 8), 0, Morton()),
    ],
)
def test_an_axial_mask_sees_one_line_of_the_canvas(
    canvas: At, axis: int, order: TokenOrder
) -> None:
    def sees(q: At, k: At) -> bool:
        return k in [(*q[:axis], c, *q[axis + 1 :]) for c in range(canvas[axis])]

    at = tokens(canvas, order)
    assert torch.equal(dense(Axial(canvas, axis, order)), matrix(at, at, sees))


def video(text: int, frames: int, size: int) -> list[Any]:
    """Return what lies at each position: "text", (frame, place in it) or None."""
    found: list[Any] = ["text"] * text
    found += [(frame, place) for frame in range(frames) for place in range(size)]
    return found[:LENGTH] + [None] * (LENGTH - len(found))


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize(
    ("text", "frames", "size", "width", "multiple", "reach"),
    [
        (5, 6, 10, 2, 1, 20),
        (0, 6, 10, 1.5, 4, 12),
        (3, 7, 9, 0.01, 1, 1),  # less than one token: the token itself
        (0, 4, 16, 1, 128, 128),  # less than one multiple: one
        (0, 4, 16, 0.3, 4, 4),
        (2, 1, 30, 1, 8, 24),
    ],
)
def test_a_spatial_head_sees_a_band_the_text_and_the_first_frame(
    text: int, frames: int, size: int, width: float, multiple: int, reach: int, sink: bool
) -> None:
    at = list(enumerate(video(text, frames, size)))

    def sees(q: tuple[int, Any], k: tuple[int, Any]) -> bool:
        if q[1] is None or k[1] is None:
            return False
        if "text" in (q[1], k[1]) or (sink and k[1][0] == 0):
            return True
        return k[0] in range(q[0] - reach + 1, q[0] + reach)

    mask = SpatialHead(text, frames, size, width, sink, multiple)
    assert torch.equal(dense(mask), matrix(at, at, sees))


@pytest.mark.parametrize(
    ("text", "frames", "size", "width", "reach"),
    [
        (5, 6, 10, 2, 3),
        (0, 6, 12, 1, 2),
        (13, 5, 11, 1.5, 3),
        (4, 7, 9, 0.5, 1),  # less than one location: that of the query
        (3, 1, 20, 1, 20),
    ],
)
def test_a_temporal_head_sees_its_place_in_every_frame(
    text: int, frames: int, size: int, width: float, reach: int
) -> None:
    at = video(text, frames, size)

    def sees(q: Any, k: Any) -> bool:
        return "text" in (q, k) or k[1] in range(q[1] - reach + 1, q[1] + reach)

    assert torch.equal(dense(TemporalHead(text, frames, size, width)), matrix(at, at, sees))


def test_selected_tiles_are_seen_without_their_padding() -> None:
    selected = torch.tensor([[[[0, 3], [2, 2], [-1, 4]]] * 2, [[[1, 0], [-1, -1], [9, 1]]] * 2])
    selected[:, 1] = selected[:, 0].flip(1)
    sizes = torch.tensor([4, 3, 1, 0, 4])
    mask = VideoSparse(selected, 4, sizes)
    made = flexfa4.create_block_mask(mask, batch=2, heads=2, q_len=11, kv_len=19)
    expected = torch.zeros(2, 2, 11, 19, dtype=torch.bool)
    for b, h, tile in itertools.product(range(2), range(2), range(3)):
        for chosen in selected[b, h, tile].tolist():
            if chosen in range(5):
                real = slice(4 * chosen, 4 * chosen + int(sizes[chosen]))
                expected[b, h, 4 * tile : 4 * tile + 4, real] = True
    assert torch.equal(made.to_dense(), expected)
    whole = flexfa4.create_block_mask(
        VideoSparse(selected, 4), batch=2, heads=2, q_len=11, kv_len=19
    )
    assert whole.to_dense()[0, 0, 0].nonzero().flatten().tolist() == [0, 1, 2, 3, 12, 13, 14, 15]


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (2, 2, 3, 4), (1, 2, 3, 4), (2, 1, 3, 4)])
def test_a_table_of_blocks_is_seen_block_by_block(shape: At) -> None:
    blocks = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.5
    made = flexfa4.create_block_mask(
        BlockSparse(blocks, (16, 24)), batch=2, heads=2, q_len=41, kv_len=90
    )
    seen = made.to_dense().expand(2, 2, -1, -1)
    every = blocks.expand(2, 2, 3, 4)
    for b, h, q, k in itertools.product(range(2), range(2), range(41), range(90)):
        assert seen[b, h, q, k] == every[b, h, q // 16, k // 24]


def test_what_serves_all_batch_entries_and_heads_needs_no_number_of_them() -> None:
    block = torch.ones(16, 16)
    assert torch.equal(dense(BlockSparse(BLOCKS[None, None].tril(), (16, 16))),
                       torch.kron(torch.ones(5, 5).tril(), block) > 0)  # fmt: skip
    own = torch.arange(5).view(1, 1, 5, 1)
    assert torch.equal(dense(VideoSparse(own, 16)), torch.block_diag(*[block] * 5) > 0)


def test_a_table_that_does_not_cover_the_keys_is_refused() -> None:
    with pytest.raises(MaskOutOfRangeError, match="size 4 in dimension 1"):
        dense(BlockSparse(torch.ones(5, 4, dtype=torch.bool), (16, 16)), 80, 65)
    with pytest.raises(MaskOutOfRangeError, match="sizes"):
        selected = torch.zeros(1, 1, 5, 1, dtype=torch.long)
        mask = VideoSparse(selected, 16, torch.full((4,), 16))
        flexfa4.create_block_mask(mask, batch=1, heads=1, q_len=80, kv_len=65)


BLOCKS = torch.ones(5, 5, dtype=torch.bool)
SELECTED = torch.zeros(1, 1, 5, 2, dtype=torch.long)
EACH = {
    "neighborhood": Neighborhood((6, 8), (3, 4)),
    "sliding_tile": SlidingTile((6, 8), (6, 4), (2, 2), 7),
    "shifted_window": ShiftedWindow((6, 8), (3, 4), (1, 2)),
    "axial": Axial((6, 8)),
    "spatial_head": SpatialHead(4, 4, 12),
    "temporal_head": TemporalHead(4, 4, 12),
    "video_sparse": VideoSparse(SELECTED, 16, torch.full((5,), 9)),
    "block_sparse": BlockSparse(BLOCKS, (16, 16)),
}
MADE_FOR_USE = {
    "neighborhood": neighborhood,
    "sliding_tile": sliding_tile,
    "shifted_window": shifted_window,
    "axial": axial,
    "spatial_head": spatial_head,
    "temporal_head": temporal_head,
}


@pytest.mark.parametrize("name", EACH)
def test_each_mask_is_explained_and_drawn(name: str) -> None:
    pytest.importorskip("matplotlib")
    mask = EACH[name]
    assert "blocks" in str(flexfa4.explain(mask)["on the CPU"])
    figure = flexfa4.plot_mask(mask, LENGTH, block_size=16, title=name)
    assert len(figure.axes) == 2


@pytest.mark.parametrize("name", EACH)
def test_each_mask_combines_with_others(name: str) -> None:
    mask = EACH[name]
    both = flexfa4.create_block_mask(
        mask & "kv <= q", batch=1, heads=1, q_len=LENGTH, kv_len=LENGTH
    )
    alone = flexfa4.create_block_mask(mask, batch=1, heads=1, q_len=LENGTH, kv_len=LENGTH)
    assert torch.equal(both.to_dense(), alone.to_dense().tril())


@pytest.mark.parametrize("name", MADE_FOR_USE)
def test_default_parameters_leave_every_query_its_own_key(name: str) -> None:
    seen = dense(MADE_FOR_USE[name], 300, 300)
    assert bool(seen.diagonal().all()) and seen.any(-1).all()


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a canvas of nothing": (lambda: Neighborhood((0, 8), (1, 1)), r"Neighborhood.canvas is \(0, 8"),
    "no axes": (lambda: Neighborhood((), ()), r"Neighborhood.canvas is \(\)"),
    "a number as canvas": (lambda: Axial(8), "Axial.canvas is 8"),  # type: ignore[arg-type]
    "a kernel of nothing": (lambda: Neighborhood((8, 8), (3, 0)), r"Neighborhood.kernel is \(3, 0"),
    "a kernel of two axes for a video": (
        lambda: Neighborhood((4, 8, 8), (3, 3)),
        r"Neighborhood.kernel is \(3, 3\)\n.*tuple of 3 ints",
    ),
    "a kernel larger than the canvas": (
        lambda: Neighborhood((8, 4), (3, 5)),
        r"Neighborhood.kernel is \(3, 5\)\n.*canvas \(8, 4\)",
    ),
    "a dilated kernel larger than the canvas": (
        lambda: Neighborhood((8, 8), (3, 3), (1, 3)),
        r"Neighborhood.kernel is \(3, 3\) dilated by \(1, 3\)\n(.*\n)+.*at most 2",
    ),
    "a dilation of nothing": (
        lambda: Neighborhood((8, 8), (3, 3), (0, 1)),
        r"Neighborhood.dilation is \(0, 1\)",
    ),
    "a bool in a kernel": (lambda: Neighborhood((8, 8), (True, 3)), "Neighborhood.kernel is "),
    "a canvas that is not whole tiles": (
        lambda: SlidingTile((7, 8), (2, 4), (2, 4)),
        r"SlidingTile.canvas is \(7, 8\)\n(.*\n)+.*canvas=\(8, 8\)",
    ),
    "a kernel that is not whole tiles": (
        lambda: SlidingTile((8, 8), (3, 4), (2, 4)),
        r"SlidingTile.kernel is \(3, 4\)\n(.*\n)+.*kernel=\(4, 4\)",
    ),
    "a window larger than the canvas": (
        lambda: SlidingTile((8, 8), (10, 4), (2, 4)),
        r"SlidingTile.kernel is \(10, 4\)",
    ),
    "a tile of nothing": (lambda: SlidingTile((8, 8), (4, 4), (0, 4)), "SlidingTile.tile is "),
    "negative text": (lambda: SlidingTile(text=-1), "SlidingTile.text is -1"),
    "a window of nothing": (lambda: ShiftedWindow((8, 8), (0, 4), (0, 0)), "Window.window is "),
    "a shift of a window": (
        lambda: ShiftedWindow((8, 8), (4, 4), (2, 4)),
        r"ShiftedWindow.shift is \(2, 4\)\n(.*\n)+.*\(2, 2\)",
    ),
    "a negative shift": (lambda: ShiftedWindow((8, 8), (4, 4), (-1, 0)), "Window.shift is "),
    "an axis that is not there": (lambda: Axial((8, 8), 2), "Axial.axis is 2"),
    "a negative axis": (lambda: Axial((8, 8), -1), "Axial.axis is -1"),
    "no frames": (lambda: SpatialHead(frames=0), "SpatialHead.frames is 0"),
    "frames of nothing": (lambda: TemporalHead(frame_tokens=0), "TemporalHead.frame_tokens is 0"),
    "a width of nothing": (lambda: SpatialHead(width=0), "SpatialHead.width is 0"),
    "a width of NaN": (lambda: TemporalHead(width=float("nan")), "TemporalHead.width is nan"),
    "a negative prompt": (lambda: TemporalHead(text=-1), "TemporalHead.text is -1"),
    "a number as sink": (lambda: SpatialHead(sink=1), "SpatialHead.sink is 1"),  # type: ignore[arg-type]
    "a multiple of nothing": (lambda: SpatialHead(multiple=0), "SpatialHead.multiple is 0"),
    "a selection in floats": (
        lambda: VideoSparse(SELECTED.float()),
        "VideoSparse.selected is a tensor of torch.float32",
    ),
    "a selection without heads": (
        lambda: VideoSparse(SELECTED[0]),
        r"VideoSparse.selected is a tensor of shape \(1, 5, 2\)",
    ),
    "tiles of nothing": (lambda: VideoSparse(SELECTED, 0), "VideoSparse.tile_tokens is 0"),
    "sizes in a list": (
        lambda: VideoSparse(SELECTED, 16, [16] * 5),  # type: ignore[arg-type]
        "VideoSparse.sizes is ",
    ),
    "a mask without a selection": (lambda: dense(video_sparse), "VideoSparse.selected is None"),
    "blocks in numbers": (
        lambda: BlockSparse(BLOCKS.long()),
        "BlockSparse.blocks is a tensor of torch.int64",
    ),
    "blocks in a row": (
        lambda: BlockSparse(BLOCKS[0]),
        r"BlockSparse.blocks is a tensor of shape \(5,\)",
    ),
    "one block size": (
        lambda: BlockSparse(BLOCKS, 16),  # type: ignore[arg-type]
        "BlockSparse.block_size is 16",
    ),
    "a mask without blocks": (lambda: dense(block_sparse), "BlockSparse.blocks is None"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_parameter_is_refused_by_name(name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises(ArgumentError, match=message):
        make()
