"""The online softmax over tiles equals the softmax of whole rows, empty rows and sinks too."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.primitives.online_softmax import BoundedSoftmax, OnlineSoftmax

ROWS, KEYS, FEATURES = 5, 12, 3


def average(
    tiles: list[torch.Tensor],
    values: list[torch.Tensor],
    *,
    shifts: list[torch.Tensor | None] | None = None,
    sink: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weighted averages and the log-sum-exp of scores that arrive tile by tile."""
    softmax = OnlineSoftmax()
    acc = torch.zeros(ROWS, FEATURES, dtype=torch.float64)
    for i, (tile, value) in enumerate(zip(tiles, values, strict=True)):
        weights = tile.clone()
        factor = softmax.update(weights, None if shifts is None else shifts[i])
        acc = weights @ value + (0 if factor is None else factor * acc)
    divisor, lse = softmax.finish(sink)
    return acc / divisor, lse[:, 0]


def whole(scores: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    lse = (scores * math.log(2)).logsumexp(-1) / math.log(2)
    weights = (scores - torch.where(lse == -math.inf, 0, lse)[:, None]).exp2()
    return weights @ values, lse


def drawn(seed: int, spread: float, masked: float) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    scores = spread * torch.randn(ROWS, KEYS, generator=g, dtype=torch.float64)
    scores[torch.rand(ROWS, KEYS, generator=g) < masked] = -math.inf
    return scores, torch.randn(KEYS, FEATURES, generator=g, dtype=torch.float64)


@given(
    st.integers(0, 1000),
    st.sampled_from((0.0, 1.0, 300.0, 1e5)),
    st.sampled_from((0.0, 0.5, 0.9, 1.0)),
    st.lists(st.integers(1, KEYS - 1), unique=True).map(sorted),
)
def test_tiles_in_any_partition_give_the_softmax_of_the_row(
    seed: int, spread: float, masked: float, cuts: list[int]
) -> None:
    scores, values = drawn(seed, spread, masked)
    pieces = [b - a for a, b in zip([0, *cuts], [*cuts, KEYS], strict=True)]
    out, lse = average(list(scores.split(pieces, 1)), list(values.split(pieces)))
    right, right_lse = whole(scores, values)
    torch.testing.assert_close(out, right)
    torch.testing.assert_close(lse, right_lse)


@pytest.mark.parametrize("masked", [0.0, 0.6, 1.0])
def test_a_shift_of_each_row_counts_as_part_of_its_scores(masked: float) -> None:
    scores, values = drawn(0, 2.0, masked)
    shifts = [torch.randn(ROWS, 1, dtype=torch.float64) for _ in range(2)]
    out, lse = average(list(scores.split(6, 1)), list(values.split(6)), shifts=[*shifts])
    shifted = torch.cat([s + t for s, t in zip(scores.split(6, 1), shifts, strict=True)], 1)
    torch.testing.assert_close((out, lse), whole(shifted, values))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_shift_of_a_row_with_nothing_visible_is_ignored(value: float) -> None:
    scores, values = drawn(0, 1.0, 0.0)
    scores[2] = -math.inf
    shift = torch.zeros(ROWS, 1, dtype=torch.float64)
    shift[2] = value
    out, lse = average([scores], [values], shifts=[shift])
    torch.testing.assert_close((out, lse), whole(scores, values))
    assert lse[2] == -math.inf and not out[2].any()


def test_a_shift_of_minus_infinity_empties_its_row() -> None:
    scores, values = drawn(0, 1.0, 0.0)
    shift = torch.zeros(ROWS, 1, dtype=torch.float64)
    shift[1] = -math.inf
    out, lse = average([scores], [values], shifts=[shift])
    assert lse[1] == -math.inf and not out[1].any() and lse[0].isfinite()


@pytest.mark.parametrize("masked", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("level", [-5000.0, 0.0, 5000.0])
def test_a_sink_joins_the_denominator_and_lse(level: float, masked: float) -> None:
    scores, values = drawn(0, 1.0, masked)
    sink = torch.full((ROWS, 1), level, dtype=torch.float64)
    out, lse = average([scores], [values], sink=sink)
    zero = torch.cat((values, torch.zeros(1, FEATURES, dtype=torch.float64)))
    torch.testing.assert_close((out, lse), whole(torch.cat((scores, sink), 1), zero))


def test_the_bounded_form_equals_the_online_one() -> None:
    scores = torch.randn(3, 5, 40, generator=torch.Generator().manual_seed(0)).double() * 10
    scores[0, 1] = -math.inf  # a row that sees nothing
    shift = torch.randn(3, 5, 1, generator=torch.Generator().manual_seed(1)).double()
    sink = torch.tensor([0.5, -2.0, 3.0]).double()[:, None, None]
    for logit in (None, sink):
        bounded, online = BoundedSoftmax(), OnlineSoftmax()
        for part in scores.split(16, dim=-1):
            assert bounded.update(part.clone(), shift) is None
            online.update(part.clone(), shift)
        (divisor, lse), (_, expected) = bounded.finish(logit), online.finish(logit)
        torch.testing.assert_close(lse, expected)
        assert bool((divisor > 0).all())


@pytest.mark.parametrize("place", [0, 20, 39])
def test_a_score_of_plus_infinity_gives_an_infinite_log_sum(place: int) -> None:
    scores = torch.randn(1, 2, 40, generator=torch.Generator().manual_seed(0)).double()
    scores[0, 1, place] = math.inf
    softmax = OnlineSoftmax()
    for part in scores.split(16, dim=-1):
        softmax.update(part.clone())
    lse = softmax.finish()[1].flatten()
    exact = torch.logsumexp(scores * math.log(2.0), -1).flatten() / math.log(2.0)
    torch.testing.assert_close(lse, exact)
    assert lse[1] == math.inf
