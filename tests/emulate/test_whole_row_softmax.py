"""Softmax of rows that a thread has to itself, in the emulator, against fp64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("cutlass")

from cutlass import Float16

from flexfa4.primitives.exponentials import RELATIVE_ERRORS, EmulatedFraction
from flexfa4.testing import agrees
from tests.emulate.whole_row_kernels import ROWS, RowWork
from tests.emulate.whole_rows import Taken, ptx_of, taken

KEYS, TILES = 64, 4
WORK = RowWork(keys=KEYS)
QUARTER = EmulatedFraction(1, 4)
ALL = EmulatedFraction(1, 1)


def products(seed: int = 0) -> torch.Tensor:
    """Return scores of two heads whose maxima behave in all ways from tile to tile."""
    x = torch.randn(2, ROWS, TILES, KEYS, generator=torch.Generator().manual_seed(seed))
    steps = torch.arange(TILES).float()
    x[:, 0] += steps[:, None]  # grows by less than tau
    x[:, 1] += 20 * steps[:, None]  # and by more
    x[:, 2] -= 30 * steps[:, None]
    x[:, 3, 0] = -torch.inf  # sees nothing at first
    x[:, 4, :3] = -torch.inf
    x[:, 5] = -torch.inf  # sees nothing at all
    x[:, 6, 1:] = -torch.inf
    x[:, 7] *= 300
    x[:, 8] = 5.0
    x[:, 9, 2, 17] = 1e4  # one key has it all
    x[:, 10] += 4 * (steps[:, None] % 2)
    x[:, 11, :, ::2] = -torch.inf
    x[:, 12] -= 1e6
    x[:, 13, 1] += 7.9
    x[:, 14] += 3e4 * steps[:, None]
    x[:, 15] *= 1e9  # what rounding takes off such maxima is larger than other exponents
    x[:, 16] *= 1e30
    x[:, 17] = -1e30
    x[:, 18, :2] = -1e30  # and is seen no more when others come
    x[:, 19, 3] += 1e30
    x[:, 20] *= 1e15 * (1 - 2 * (steps[:, None] % 2))
    return x.flatten(2)


def holds(found: Taken, scores: torch.Tensor, emulated: EmulatedFraction) -> bool:
    """Return whether probabilities and lse are as near to the exact ones as their dtype lets.

    Each row is judged by itself, for some have scores of 10^6.
    """
    dtype = found.probabilities.dtype
    exact, eager = (s.softmax(-1).nan_to_num() for s in (scores.double(), scores))
    normalised = found.normalised.to(dtype)
    near = agree(normalised, exact, eager.to(dtype))
    seen = ~scores.isinf().all(-1)
    lse, eager_lse = (s.logsumexp(-1)[seen] for s in (scores.double(), scores))
    # an error that all probabilities have is one of the logarithm of their sum
    budget = RELATIVE_ERRORS[emulated.degree] if emulated.numerator else 0.0
    error = found.lse[seen].double() - lse
    beyond = error - error.clamp(-budget, budget)
    return near and agree((lse + beyond).float()[:, None], lse[:, None], eager_lse[:, None])


def agree(found: torch.Tensor, exact: torch.Tensor, eager: torch.Tensor) -> bool:
    rows = zip(*(t.flatten(0, -2) for t in (found, exact, eager)), strict=True)
    return all(agrees(*row, terms=KEYS) for row in rows)


@pytest.mark.parametrize("tau", [0.0, 8.0])
@pytest.mark.parametrize("emulated", [EmulatedFraction(), QUARTER, ALL])
def test_rows_are_softmaxes_whatever_their_maxima_do(
    tau: float, emulated: EmulatedFraction
) -> None:
    scores = products()
    found = taken(replace(WORK, tau=tau, emulated=emulated), scores)
    assert holds(found, scores, emulated)
    for result in (found.normalised, found.corrections, found.inverse):
        assert not result.isnan().any()


def test_rows_that_saw_nothing_have_no_sum() -> None:
    found = taken(WORK, products())
    assert (found.inverse[:, 5] == 0).all() and (found.lse[:, 5] == -torch.inf).all()
    assert (found.probabilities[:, :, 5] == 0).all()


def test_nothing_is_corrected_until_a_maximum_grows_by_more_than_tau() -> None:
    scores = products()
    always, seldom = (taken(replace(WORK, tau=tau), scores).corrections for tau in (0.0, 8.0))
    largest = scores.view(2, ROWS, TILES, KEYS).amax(-1) * torch.log2(torch.tensor(torch.e))
    grown = largest[:, 0].diff(dim=-1) > 0
    assert torch.equal(always[:, 1:, 0] < 1, grown)
    assert (seldom[:, 1:, 0] == 1).all()  # grows by less
    assert (seldom[:, 1:, 1] < 1).all()  # by more


def test_probabilities_are_at_most_two_to_the_tau() -> None:
    assert taken(replace(WORK, tau=8.0), products()).probabilities.amax() <= 2**8


def test_half_precision_is_rounded_to_itself() -> None:
    scores = products(1)
    assert holds(taken(replace(WORK, element=Float16), scores), scores, WORK.emulated)


LIMITS = torch.tensor(
    [[0, 256], [0, 0], [-5, 1], [1, 300], [63, 65], [64, 64], [64, 128], [31, 33], [32, 64],
     [100, 90], [255, 256], [256, 300], [-300, -200], [0, 1], [33, 255], [2**31 - 1, 2**31 - 1],
     [-(2**31) + 300, 2**31 - 1]]
    + [[i, 2 * i + 40] for i in range(15)],
    dtype=torch.int32,
)  # fmt: skip


def test_what_is_outside_of_limits_is_hidden_exactly() -> None:
    scores = torch.randn(1, ROWS, KEYS * TILES, generator=torch.Generator().manual_seed(2))
    columns = torch.arange(KEYS * TILES)
    visible = (columns >= LIMITS[:, :1]) & (columns < LIMITS[:, 1:])
    found = taken(replace(WORK, limits=True), scores, limits=LIMITS)
    masked = scores.masked_fill(~visible, -torch.inf)
    assert holds(found, masked, WORK.emulated)
    assert torch.equal(found.normalised[0] > 0, visible)


def test_limits_take_predicates_from_words_of_bits() -> None:
    plain, limited = (ptx_of(replace(WORK, limits=limits)) for limits in (False, True))
    assert limited.count("shl.b32") - plain.count("shl.b32") <= 2 * KEYS // 32 + 2


def test_emulation_replaces_exponentials_of_the_unit_two_for_two() -> None:
    counts = {
        n: ptx_of(replace(WORK, emulated=EmulatedFraction(n, 4))).count("ex2.") for n in range(5)
    }
    assert [counts[0] - counts[n] for n in range(5)] == [KEYS * n // 4 for n in range(5)]
