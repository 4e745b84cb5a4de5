"""Division as a product and a shift is exact, for every divisor and number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.primitives.arithmetic import PLAIN
from flexfa4.primitives.fast_division import MOST, Divisor

SIZES = st.one_of(
    st.integers(1, MOST),
    st.integers(1, 1000),
    st.builds(lambda power, off: min(MOST, max(1, (1 << power) + off)), st.integers(0, 31),
              st.integers(-2, 2)),
)  # fmt: skip


@given(SIZES, st.integers(0, MOST), st.integers(0, 3))
def test_quotient_and_remainder_are_those_of_python(size: int, number: int, near: int) -> None:
    divisor = Divisor.of(size)
    multiple = number // size * size  # where the quotient changes
    for n in (number, multiple, max(0, multiple - 1), MOST - near):
        assert divisor.divided(n, PLAIN) == divmod(n, size)


@given(SIZES)
def test_the_multiplier_fits_32_bits_and_the_shift_an_instruction(size: int) -> None:
    divisor = Divisor.of(size)
    assert 1 << 31 <= divisor.multiplier < 1 << 32
    assert 0 <= divisor.shift < 32


@given(SIZES, st.integers(0, MOST))
def test_a_multiplier_that_was_read_with_a_sign_means_the_same(size: int, number: int) -> None:
    divisor = Divisor.of(size)
    signed = (divisor.multiplier ^ 1 << 31) - (1 << 31)  # the same 32 bits
    assert signed < 0
    again = Divisor(size, signed, divisor.shift)
    assert again.divided(number, PLAIN) == divmod(number, size)


@pytest.mark.parametrize("size", [0, MOST + 1])
def test_a_divisor_outside_of_31_bits_is_a_bug_of_the_caller(size: int) -> None:
    with pytest.raises(AssertionError):
        Divisor.of(size)
