"""Tiles of a video: packing, pooling and selection against loops, and the whole attention."""

from __future__ import annotations

import itertools

import pytest
import torch

import flexfa4
from flexfa4.errors import ArgumentError, ShapeMismatchError
from flexfa4.variants.video_tiles import VideoTiles

CANVAS, TILE = (3, 5, 4), (2, 2, 3)
TILES = VideoTiles(CANVAS, TILE)


def members() -> list[list[int]]:
    """Return the row-major tokens of each tile."""
    found: dict[tuple[int, ...], list[int]] = {}
    for token, at in enumerate(itertools.product(*map(range, CANVAS))):
        found.setdefault(tuple(c // t for c, t in zip(at, TILE, strict=True)), []).append(token)
    return [found[key] for key in sorted(found)]


def test_tiles_hold_their_tokens_first_and_padding_behind() -> None:
    tokens = torch.arange(60.0)[:, None] + 1
    expected = [m + [-1] * (12 - len(m)) for m in members()]
    assert (TILES.count, TILES.tile_tokens, TILES.length) == (12, 12, 144)
    assert TILES.sizes().tolist() == [len(m) for m in members()]
    assert (TILES.arrange(tokens)[:, 0].view(12, 12) - 1).tolist() == expected
    assert torch.equal(TILES.restore(TILES.arrange(tokens)), tokens)


def test_pooling_takes_the_mean_without_padding() -> None:
    torch.manual_seed(0)
    tokens = torch.randn(2, 60, 3)
    arranged = TILES.arrange(tokens)
    arranged[:, ~torch.isin(torch.arange(144), TILES.positions())] = torch.nan
    expected = torch.stack([tokens[:, m].mean(1) for m in members()], 1)
    torch.testing.assert_close(TILES.pool(arranged), expected)
    half = tokens.bfloat16()
    rounded_once = torch.stack([half[:, m].float().mean(1) for m in members()], 1).bfloat16()
    assert torch.equal(TILES.pool(TILES.arrange(half)), rounded_once)


def test_selection_takes_the_tiles_with_the_largest_products_of_means() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 4, 60, 8), torch.randn(2, 2, 60, 8)
    selected = TILES.select(TILES.arrange(query), TILES.arrange(key), count=3)
    assert selected.shape == (2, 4, 12, 3)
    for b, h, t in itertools.product(range(2), range(4), range(12)):
        mean = query[b, h, members()[t]].mean(0)
        products = [float(mean @ key[b, h // 2, m].mean(0)) for m in members()]
        best = sorted(range(12), key=lambda i: -products[i])
        assert selected[b, h, t].tolist() == best[:3]


def test_with_all_tiles_selected_attention_is_dense() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 60, 8, dtype=torch.float64) for _ in range(3))
    query, key, value = map(TILES.arrange, (q, k, v))
    mask = TILES.mask(TILES.select(query, key, count=12))
    out = TILES.restore(flexfa4.attention(query, key, value, block_mask=mask))
    torch.testing.assert_close(out, flexfa4.attention(q, k, v))


def test_a_selection_attends_to_the_tokens_of_its_tiles() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 60, 8, dtype=torch.float64) for _ in range(3))
    query, key, value = map(TILES.arrange, (q, k, v))
    selected = TILES.select(query, key, count=2)
    out = TILES.restore(flexfa4.attention(query, key, value, block_mask=TILES.mask(selected)))
    for tile, tokens in enumerate(members()):
        seen = [token for t in selected[0, 0, tile].tolist() for token in members()[t]]
        weights = (q[0, 0, tokens] @ k[0, 0, seen].mT / 8**0.5).softmax(-1)
        torch.testing.assert_close(out[0, 0, tokens], weights @ v[0, 0, seen])


@pytest.mark.parametrize("count", [0, 13, True, 2.0])
def test_a_wrong_number_of_tiles_is_refused(count: int) -> None:
    tokens = torch.zeros(1, 1, 144, 8)
    with pytest.raises(ArgumentError, match=f"count is {count}"):
        TILES.select(tokens, tokens, count=count)


def test_tokens_of_another_length_are_refused() -> None:
    for method in (TILES.arrange, TILES.restore, TILES.pool):
        with pytest.raises(ShapeMismatchError, match=r"shape \(1, 59, 8\)"):
            method(torch.zeros(1, 59, 8))


@pytest.mark.parametrize(("canvas", "tile"), [((3, 5), TILE), (CANVAS, (2, 0, 3)), ((), ())])
def test_tiles_that_do_not_fit_the_canvas_are_refused(
    canvas: tuple[int, ...], tile: tuple[int, ...]
) -> None:
    with pytest.raises(ArgumentError, match=r"VideoTiles\.(tile|canvas) is "):
        VideoTiles(canvas, tile)
