"""2^x by polynomials: coefficients, errors, what is masked, and which scores are emulated."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from flexfa4.primitives.exponentials import (
    NONE_EMULATED,
    POLYNOMIALS,
    RELATIVE_ERRORS,
    EmulatedFraction,
    emulated_exp2,
    fused_multiply_add,
)
from tests.minimax import fitted_exp2

# FlashAttention-4, arXiv 2603.05451, table 2: the largest relative errors of 2^x in fp32, and of
# those after they are rounded to bf16, where the exponential unit's is 3.89e-3 itself.
PAPER = {3: 8.77e-5, 4: 3.05e-6, 5: 1.44e-7}
PAPER_IN_BF16 = 3.90e-3


def fractions() -> torch.Tensor:
    """Return a million numbers of [-1, 0), evenly spaced and exact."""
    return torch.arange(1 << 20).float() / (1 << 20) - 1


def error(found: torch.Tensor, x: torch.Tensor) -> float:
    """Return the largest relative error of powers."""
    return (found.double() / torch.exp2(x.double()) - 1).abs().max().item()


@pytest.mark.parametrize("degree", POLYNOMIALS)
def test_coefficients_are_those_of_least_relative_error(degree: int) -> None:
    assert POLYNOMIALS[degree] == fitted_exp2(degree)


@pytest.mark.parametrize("degree", POLYNOMIALS)
def test_errors_are_at_most_those_of_the_paper(degree: int) -> None:
    x = fractions()
    found = error(emulated_exp2(x, degree), x)
    assert found <= RELATIVE_ERRORS[degree] <= PAPER[degree]
    assert found > 0.95 * RELATIVE_ERRORS[degree]  # and what is stated is what there is


@pytest.mark.parametrize("degree", POLYNOMIALS)
def test_rounded_to_bf16_all_degrees_are_as_good_as_the_unit(degree: int) -> None:
    x = fractions()
    assert f"{error(emulated_exp2(x, degree).bfloat16(), x):.2e}" <= f"{PAPER_IN_BF16:.2e}"
    exact = torch.exp2(x.double()).bfloat16()
    apart = (emulated_exp2(x, degree).bfloat16().view(torch.int16) - exact.view(torch.int16)).abs()
    assert apart.max() <= 1


@pytest.mark.parametrize("degree", POLYNOMIALS)
def test_errors_are_relative_wherever_a_power_is_a_normal_number(degree: int) -> None:
    x = torch.linspace(-126, 127.5, 1 << 18)
    assert error(emulated_exp2(x, degree), x) <= RELATIVE_ERRORS[degree]


@pytest.mark.parametrize("degree", POLYNOMIALS)
def test_what_is_masked_gives_exactly_zero(degree: int) -> None:
    x = torch.tensor([-torch.inf, -1e30, -128.0, -127.0])
    assert torch.equal(emulated_exp2(x, degree).view(torch.int32), torch.zeros(4).int())


def test_powers_of_integers_are_exact() -> None:
    x = torch.arange(-126, 128).float()
    assert torch.equal(emulated_exp2(x), torch.exp2(x))


def test_nan_becomes_infinite_in_16_bits() -> None:
    found = emulated_exp2(torch.tensor([torch.nan]))
    assert torch.isinf(found.bfloat16()).all() and torch.isinf(found.half()).all()


def test_a_fused_product_and_sum_is_rounded_once() -> None:
    one = 1 + 2.0**-12
    cases = [
        (one, one, -1 - 2.0**-11),  # what rounding the product would lose
        (1 + 2.0**-23, 1 + 2.0**-23, 2.0**-60),
        (3.0, 2.0**-60, 1 + 2.0**-23),
        (-3.0, 2.0**-60, 1 + 2.0**-23),
        (1.0, 2.0**-24, 1.0),  # halfway, to even
        (1.0 + 2.0**-23, 2.0**-24, 1.0),  # just above halfway
        (-1.0, 1.0, 1.0),
    ]
    for a, b, c in cases:
        found = fused_multiply_add(*(torch.tensor(v, dtype=torch.float32) for v in (a, b, c)))
        assert found.item() == _rounded(a, b, c)


def _rounded(a: float, b: float, c: float) -> float:
    """Return the fp32 number next to ``a * b + c``, by exact integers."""
    scale = 2**120
    exact = int(a * 2**60) * int(b * 2**60) + int(c * 2**60) * 2**60  # times `scale`
    if not exact:
        return 0.0
    drop = max(abs(exact).bit_length() - 24, 0)
    whole, rest = divmod(abs(exact), 1 << drop)
    half = 1 << drop >> 1
    whole += rest > half or (rest == half and drop > 0 and whole % 2 == 1)
    return math.copysign(whole * 2**drop / scale, exact)


@pytest.mark.parametrize(("numerator", "denominator"), [(0, 1), (1, 10), (1, 4), (5, 16), (1, 1)])
def test_scores_or_pairs_that_are_emulated_are_spread_evenly(
    numerator: int, denominator: int
) -> None:
    fraction = EmulatedFraction(numerator, denominator)
    pairs = 64
    chosen = [i for i in range(pairs) if fraction.emulates(i)]
    assert len(chosen) == fraction.count(pairs) == math.floor(pairs * fraction.value)
    gaps = {b - a for a, b in itertools.pairwise(chosen)}
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_a_share_becomes_the_nearest_fraction_that_repeats_within_a_tile() -> None:
    shares = [0.0, 0.01, 0.125, 0.3, 1.0]
    found = [EmulatedFraction.of(share) for share in shares]
    assert [f.value for f in found] == [0, 0, 0.125, 10 / 32, 1]
    assert found[0] == found[1] == NONE_EMULATED
