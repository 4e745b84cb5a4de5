"""Pairs of fp32 numbers in neighbouring registers, and the instructions that compute both at once.

Blackwell's ``add.f32x2``, ``mul.f32x2`` and ``fma.f32x2`` take one issue slot for two numbers.  A
pair is a value of MLIR, ``vector<2xf32>``; it costs nothing to make one of two numbers that were
read, computed or converted next to each other, nor to take it apart.  A factor that is the same for
both stays in one register (`both`).

Sums may be fused with the products before them, as ``a * b + c`` of plain numbers are: the
assembler does it whatever rounding the two are written with.  What must not be fused is not for
pairs.  Extremes, selections and functions have no such instructions.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from cutlass import Float32
from cutlass._mlir import ir
from cutlass._mlir.dialects import arith, nvvm, vector
from cutlass.cutlass_dsl import T

from flexfa4.primitives.registers import Numbers, Value

Pair: TypeAlias = Any
"""A value of MLIR, ``vector<2xf32>``."""


def pair(first: Any, second: Any) -> Pair:
    """Return two numbers as a pair: Float32, Python's or values of MLIR."""
    return vector.from_elements(_type(), [_value(first), _value(second)])


def both(number: Any) -> Pair:
    """Return the pair of a number and itself."""
    return pair(number, number)


def lanes(of: Pair) -> tuple[Float32, Float32]:
    """Return the numbers of a pair."""
    first, second = values(of)
    return Float32(first), Float32(second)


def values(of: Pair) -> tuple[Value, Value]:
    """Return the numbers of a pair as values of MLIR."""
    first, second = (
        vector.extract(of, dynamic_position=[], static_position=[lane]) for lane in (0, 1)
    )
    return first, second


def is_pair(value: Any) -> bool:
    """Return whether a value of MLIR is a pair."""
    return isinstance(value.type, ir.VectorType)


def load(row: Numbers, index: int) -> Pair:
    """Return the numbers at ``2 index`` and ``2 index + 1``."""
    return pair(row.value(2 * index), row.value(2 * index + 1))


def store(row: Numbers, index: int, value: Pair) -> None:
    """Set the numbers at ``2 index`` and ``2 index + 1``."""
    first, second = values(value)
    row.set(2 * index, first)
    row.set(2 * index + 1, second)


def add(a: Pair, b: Pair) -> Pair:
    """Return a + b."""
    return arith.addf(a, b)


def sub(a: Pair, b: Pair) -> Pair:
    """Return a - b."""
    return arith.subf(a, b)


def mul(a: Pair, b: Pair) -> Pair:
    """Return a * b."""
    return arith.mulf(a, b)


def fma(a: Pair, b: Pair, c: Pair) -> Pair:
    """Return a * b + c, rounded once."""
    return nvvm.fma_packed_f32x2(a, b, c, rnd=nvvm.FPRoundingMode.RN)


def add_down(a: Pair, b: Pair) -> Pair:
    """Return a + b, rounded towards minus infinity."""
    return nvvm.add_packed_f32x2(a, b, rnd=nvvm.FPRoundingMode.RM)


def _type() -> Any:
    return ir.VectorType.get([2], T.f32())


def _value(number: Any) -> Any:
    return number if isinstance(number, ir.Value) else Float32(number).ir_value()
