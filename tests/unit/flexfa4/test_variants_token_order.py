"""Orders of tokens against loops over coordinates, and the errors of what does not fit."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from flexfa4.errors import ArgumentError, ShapeMismatchError
from flexfa4.variants import Axial, Neighborhood
from flexfa4.variants.token_order import Morton, Tiled, TokenOrder, row_major

Coordinates = tuple[int, ...]


def grid(sizes: tuple[int, ...]) -> list[Coordinates]:
    return list(itertools.product(*map(range, sizes)))


def tiles_one_by_one(canvas: tuple[int, ...], tile: tuple[int, ...]) -> list[Coordinates]:
    starts = itertools.product(*(range(0, n, t) for n, t in zip(canvas, tile, strict=True)))
    return [
        tuple(s + i for s, i in zip(start, inner, strict=True))
        for start in starts
        for inner in grid(tile)
    ]


def along_the_z_curve(canvas: tuple[int, ...]) -> list[Coordinates]:
    """Sort all coordinates by their interleaved bits, the most significant first."""
    widths = [len(f"{n - 1:b}") if n > 1 else 0 for n in canvas]

    def code(at: Coordinates) -> str:
        digits = [f"{c:b}".zfill(w) if w else "" for c, w in zip(at, widths, strict=True)]
        longest = max(widths)
        # an axis with fewer bits has none where the others have their highest ones
        padded = [d.rjust(longest, " ") for d in digits]
        return "".join(d[i] for i in range(longest) for d in padded if d[i] != " ")

    return sorted(grid(tuple(2**w for w in widths)), key=code)


ORDERS: dict[str, tuple[TokenOrder, tuple[int, ...], list[Coordinates]]] = {
    "row-major": (row_major, (3, 4), grid((3, 4))),
    "row-major video": (row_major, (2, 3, 4), grid((2, 3, 4))),
    "one axis": (row_major, (5,), grid((5,))),
    "tiles": (Tiled((2, 3)), (4, 6), tiles_one_by_one((4, 6), (2, 3))),
    "tiles beyond the border": (Tiled((2, 4)), (5, 6), tiles_one_by_one((5, 6), (2, 4))),
    "tiles larger than the canvas": (Tiled((4, 4)), (3, 2), tiles_one_by_one((3, 2), (4, 4))),
    "tiles of a video": (Tiled((2, 2, 2)), (3, 4, 5), tiles_one_by_one((3, 4, 5), (2, 2, 2))),
    "Morton square": (Morton(), (4, 4), along_the_z_curve((4, 4))),
    "Morton wide": (Morton(), (2, 8), along_the_z_curve((2, 8))),
    "Morton high": (Morton(), (16, 2), along_the_z_curve((16, 2))),
    "Morton with padding": (Morton(), (5, 6), along_the_z_curve((5, 6))),
    "Morton video with one row": (Morton(), (3, 1, 5), along_the_z_curve((3, 1, 5))),
    "Morton of one token": (Morton(), (1, 1), [(0, 0)]),
}


@pytest.mark.parametrize("name", ORDERS)
def test_an_order_visits_the_tokens_as_its_words_say(name: str) -> None:
    order, canvas, visited = ORDERS[name]
    assert order.length(canvas) == len(visited)
    found = order.coordinates(torch.arange(len(visited)), canvas)
    assert list(zip(*(c.tolist() for c in found), strict=True)) == visited
    assert [order.coordinates(i, canvas) for i in range(len(visited))] == visited  # plain ints


@pytest.mark.parametrize("name", ORDERS)
def test_positions_behind_the_order_lie_outside_the_canvas(name: str) -> None:
    order, canvas, visited = ORDERS[name]
    behind = order.coordinates(torch.arange(len(visited), 3 * len(visited) + 7), canvas)
    assert bool((behind[0] >= canvas[0]).all())


@pytest.mark.parametrize("name", ORDERS)
def test_arranged_tokens_lie_where_the_order_visits_them(name: str) -> None:
    order, canvas, visited = ORDERS[name]
    tokens = torch.arange(1.0, math.prod(canvas) + 1).expand(2, 1, -1)[..., None]
    arranged = order.arrange(tokens, canvas)
    row_major_index = {at: i for i, at in enumerate(grid(canvas))}
    assert arranged[1, 0, :, 0].tolist() == [row_major_index.get(at, -1) + 1 for at in visited]
    assert torch.equal(order.restore(arranged, canvas), tokens)


def test_arranging_passes_gradients() -> None:
    tokens = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    order = Tiled((2, 2))
    assert torch.autograd.gradcheck(lambda x: order.arrange(x, (2, 3)), tokens)


@pytest.mark.parametrize("count", [23, 25])
def test_tokens_that_do_not_fill_the_canvas_are_refused(count: int) -> None:
    with pytest.raises(ShapeMismatchError, match=rf"shape \({count}, 3\)"):
        row_major.arrange(torch.zeros(count, 3), (4, 6))
    with pytest.raises(ShapeMismatchError, match=r"\(\.\.\., 24, D\)"):
        Tiled((2, 2)).restore(torch.zeros(count, 3), (4, 6))


def test_tokens_without_features_are_refused() -> None:
    with pytest.raises(ShapeMismatchError, match=r"shape \(24,\)"):
        row_major.arrange(torch.zeros(24), (4, 6))


@pytest.mark.parametrize("order", ["morton", None, Morton, Tiled((2,)), Tiled((2, 2, 2))], ids=repr)
def test_an_order_that_does_not_fit_is_refused_by_the_name_of_the_parameter(order: object) -> None:
    with pytest.raises(ArgumentError, match=r"Neighborhood\.order is .*\n.*canvas \(4, 6\)"):
        Neighborhood((4, 6), (1, 1), order=order)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"Axial\.order is "):
        Axial((4, 6), order=order)  # type: ignore[arg-type]


@pytest.mark.parametrize("tile", [(0, 2), (), 2, [2, 2], (2, True), (2, 1.5)], ids=repr)
def test_a_tile_of_no_size_is_refused(tile: object) -> None:
    with pytest.raises(ArgumentError, match=r"Tiled\.tile is "):
        Tiled(tile)  # type: ignore[arg-type]
