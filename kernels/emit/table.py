"""One row for each row of the frontend's ops table: how the op becomes instructions.

Meanings are those of the ops table, which are torch's: NaN propagates through extremes, ``//`` and
``%`` round towards minus infinity, integers are 64 bits wide and wrap around (those proved to fit
are computed in 32, see `widths`).  Where torch has no result that devices share (an integer divided
by zero, a float outside 64 bits made an integer), neither has a kernel.

A row has a precise form, within a few ulp of torch's, and may have a fast one of the hardware's
approximate functions, used per score or column where the options allow it; `Emission` states how
far each may be from the exact function.  What is computed once for a row or a tile is precise
always, and so is every mask.
"""

from __future__ import annotations

import builtins
import math as numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from cutlass._mlir.dialects import arith, math, nvvm
from cutlass.cutlass_dsl import T

from flexfa4.frontend.analysis.intervals import Interval
from flexfa4.frontend.ir import BOOL, F32, I32, Node
from flexfa4.kernels.emit import builders as make
from flexfa4.kernels.emit.builders import Machine, Value, constant
from flexfa4.kernels.emit.widths import Ranges

Form = Callable[..., Value]
"""``form(site, node, *operands)`` returns the value of a node from those of its operands."""


@dataclass(frozen=True)
class Site:
    """What a form may ask about the place where it is used.

    Attributes:
        ranges: bounds of the graph's integers and floats.
        fused: a sum may be fused with the product before it.
        fast: approximate functions may be used.
    """

    ranges: Ranges
    fused: bool = True
    fast: bool = False

    def interval(self, node: Node) -> Interval:
        """Return bounds of a node."""
        return self.ranges.interval(node)

    def machine(self, node: Node) -> Machine:
        """Return the type that a node is computed in."""
        if node.dtype is I32:
            return "i32" if self.ranges.width(node) == 32 else "i64"
        return "f32" if node.dtype is F32 else "bool"


@dataclass(frozen=True)
class Emission:
    """A row: forms by the dtype of the operands, of those behind the condition for a selection.

    Attributes:
        f32, i32, bool: the precise forms; None where the ops table has no such operands.
        width: of integer operands: ``result``: that of the result, for ops whose low bits follow
            from the operands' low bits; ``operands``: the wider one of the operands and the result;
            ``divided``: likewise, but the result does not count where operands of 32 bits make none
            of 64, which bounds do not show of a division that may be by 0; ``own``: as they are.
        fast: the fast form for f32.
        fast_holds: whether it may be used, from the operands' bounds.
        error: how far the precise form may be from the exact function; empty where it is rounded
            once, as torch's is.
        fast_error: how far the fast one may be.
        combine: for a reduction, the op that joins two elements, and `start` its result for none.
        pairs: the form for f32, the fast one if there is one, takes pairs of floats too, and then
            has fewer instructions than twice those for one.
    """

    f32: Form | None = None
    i32: Form | None = None
    bool: Form | None = None
    width: Literal["result", "operands", "divided", "own"] = "operands"
    fast: Form | None = None
    fast_holds: Callable[..., Any] = lambda *_: True
    error: str = ""
    fast_error: str = ""
    combine: str = ""
    start: float = 0
    pairs: builtins.bool = False

    def form(self, node: Node) -> Form | None:
        """Return the precise form for a node."""
        return {F32: self.f32, I32: self.i32, BOOL: self.bool}[node.args[-1].dtype]


def _plain(build: Callable[..., Value]) -> Form:
    """Return the form of one instruction that asks nothing."""
    return lambda site, node, *operands: build(*operands)


def _zero(value: Value) -> Value:
    return constant(make.machine(value), 0)


# ---- arithmetic ----------------------------------------------------------------------------------


def _add(site: Site, node: Node, a: Value, b: Value) -> Value:
    return make.add(a, b) if site.fused else make.add_alone(a, b)


def _sub(site: Site, node: Node, a: Value, b: Value) -> Value:
    if site.fused:
        return arith.subf(a, b)
    return nvvm.subf(a, b, rnd=nvvm.FPRoundingMode.RN)


def _fast_div(site: Site, node: Node, a: Value, b: Value) -> Value:
    divisor = node.args[1]
    if divisor.op == "const" and 2.0**-126 <= abs(divisor.attr) <= 2.0**126:
        return arith.mulf(a, make.constant_like(a, 1.0 / divisor.attr))
    return make.instruction2("div.full.f32")(a, b)


def _signs_differ(a: Value, b: Value) -> Value:
    return make.negative(arith.xori(a, b))


def _not_negative(*found: Interval) -> bool:
    return all(bool(interval.lo >= 0) for interval in found)


def _floordiv(site: Site, node: Node, a: Value, b: Value) -> Value:
    """Return the quotient rounded down.

    By a constant it is a product and shifts; by a number of the call some 20 instructions in 32
    bits and 100 in 64, little for what is computed for a row or a column, and much for a score.
    """
    if _not_negative(*map(site.interval, node.args)):
        return arith.divui(a, b)
    quotient = arith.divsi(a, b)
    rest = arith.subi(a, arith.muli(quotient, b))
    inexact = make.compare("ne", rest, _zero(rest))
    below = arith.andi(inexact, _signs_differ(rest, b))
    return make.select(below, arith.subi(quotient, constant(make.machine(a), 1)), quotient)


def _mod(site: Site, node: Node, a: Value, b: Value) -> Value:
    if _not_negative(*map(site.interval, node.args)):
        return arith.remui(a, b)
    rest = arith.remsi(a, b)
    inexact = make.compare("ne", rest, _zero(rest))
    wrong = arith.andi(inexact, _signs_differ(rest, b))
    return make.select(wrong, arith.addi(rest, b), rest)


def _float_mod(site: Site, node: Node, a: Value, b: Value) -> Value:
    rest = arith.remf(a, b)
    zero = _zero(rest)
    differ = arith.xori(make.negative(b), make.negative(rest))
    wrong = arith.andi(make.compare("ne", rest, zero), differ)
    return make.select(wrong, make.add_alone(rest, b), rest)


def _float_floordiv(site: Site, node: Node, a: Value, b: Value) -> Value:
    """As torch does it: from the remainder, so that the quotient is not rounded up first."""
    rest = arith.remf(a, b)
    zero, one = _zero(rest), constant("f32", 1)
    quotient = arith.divf(arith.subf(a, rest), b)
    differ = arith.xori(make.negative(b), make.negative(rest))
    wrong = arith.andi(make.compare("ne", rest, zero), differ)
    quotient = make.select(wrong, arith.subf(quotient, one), quotient)
    floor = math.floor(quotient)
    above = make.compare("gt", arith.subf(quotient, floor), constant("f32", 0.5))
    floor = make.select(above, make.add_alone(floor, one), floor)
    floor = make.select(make.compare("ne", quotient, zero), floor, zero)
    return make.select(make.compare("eq", b, zero), arith.divf(a, b), floor)


def _power(site: Site, node: Node, a: Value, b: Value) -> Value:
    """By squaring, once for each bit that the exponent can have; what a negative one means is 1/x.

    As torch has it: the integer part of 1/x, which is not 0 for 1 and -1 only.
    """
    kind, exponent = site.machine(node), site.interval(node.args[1])
    base = make.resized(a, kind)
    one, zero = constant(kind, 1), constant(kind, 0)
    count_kind = make.machine(b)
    result = one
    for i in range(int(max(exponent.hi, 1)).bit_length()):
        bit = arith.andi(b, constant(count_kind, 1 << i))
        factor = make.select(make.compare("ne", bit, constant(count_kind, 0)), base, one)
        result = arith.muli(result, factor)
        base = arith.muli(base, base)
    if exponent.lo >= 0:
        return result
    base = make.resized(a, kind)
    odd = make.compare("ne", arith.andi(b, constant(count_kind, 1)), constant(count_kind, 0))
    alternating = make.select(odd, constant(kind, -1), one)
    minus_one = make.compare("eq", base, constant(kind, -1))
    inverse = make.select(minus_one, alternating, zero)
    inverse = make.select(make.compare("eq", base, one), one, inverse)
    return make.select(make.negative(b), inverse, result)


def _fast_power(site: Site, node: Node, a: Value, b: Value) -> Value:
    power = _EX2(arith.mulf(b, _LG2(a)))
    return make.select(make.compare("eq", b, _zero(b)), constant("f32", 1), power)


# Which of two numbers a selection by their comparison gives, where the second one is not NaN.
_EXTREMES: Final = {"lt": make.larger, "le": make.larger, "gt": make.lesser, "ge": make.lesser}


def _float_select(site: Site, node: Node, condition: Value, a: Value, b: Value) -> Value:
    """A bound is an extreme, one instruction: ``where(x < c, c, x)`` is ``max(x, c)``.

    Both are NaN where x is; which zero they give for two that differ in sign, torch does not say.
    """
    test, bound, x = node.args
    number = bound.op == "const" and bound.attr == bound.attr
    if number and test.op in _EXTREMES and test.args[0] is x and test.args[1] is bound:
        return _EXTREMES[test.op](b, a)
    return make.select(condition, a, b)


def _opposite(site: Site, node: Node, a: Value) -> Value:
    return arith.subi(_zero(a), a)


def _magnitude(site: Site, node: Node, a: Value) -> Value:
    return arith.maxsi(a, arith.subi(_zero(a), a))


def _float_sign(site: Site, node: Node, a: Value) -> Value:
    zero, one = _zero(a), constant("f32", 1)
    above = make.select(make.compare("gt", a, zero), one, zero)
    return make.select(make.compare("lt", a, zero), constant("f32", -1), above)


def _integer_sign(site: Site, node: Node, a: Value) -> Value:
    kind = make.machine(a)
    return arith.minsi(arith.maxsi(a, constant(kind, -1)), constant(kind, 1))


# ---- functions of one float ----------------------------------------------------------------------

_EX2: Final = make.instruction("ex2.approx.ftz.f32")
_LG2: Final = make.instruction("lg2.approx.f32")
_RCP: Final = make.instruction("rcp.approx.ftz.f32")
_LN2, _LOG2E = numbers.log(2), numbers.log2(numbers.e)


def _times(factor: float, x: Value) -> Value:
    return arith.mulf(x, make.constant_like(x, factor))


def _precise_sigmoid(site: Site, node: Node, x: Value) -> Value:
    one = constant("f32", 1)
    return arith.divf(one, make.add(one, math.exp(arith.negf(x))))


def _fast_sigmoid(site: Site, node: Node, x: Value) -> Value:
    return _RCP(make.add(make.constant_like(x, 1), _EX2(_times(-_LOG2E, x))))


def _fast_log1p(site: Site, node: Node, x: Value) -> Value:
    return _times(_LN2, _LG2(make.add(make.constant_like(x, 1), x)))


# 2 pi as three fp32 numbers, and the largest angle whose turns an fp32 number counts
_TURN: Final = (6.2831855, -1.7484555e-07, 6.8601e-15)
_LARGEST_ANGLE: Final = 2.0**26


def _turned(function: Callable[[Value], Value]) -> Form:
    """Return the form of a function of an angle: of what is left when whole turns are taken off."""

    def form(site: Site, node: Node, x: Value) -> Value:
        if not site.interval(node.args[0]).within(-2 * numbers.pi, 2 * numbers.pi):
            turns = math.roundeven(_times(1 / (2 * numbers.pi), x))
            for part in _TURN:
                x = make.fma(turns, constant("f32", -part), x)
        return function(x)

    return form


def _angle(precise: Callable[[Value], Value], fast: str, fast_error: str) -> Emission:
    return Emission(
        _plain(precise), error="2 ulp", fast=_turned(make.instruction(fast)), fast_error=fast_error,
        fast_holds=lambda x: x.within(-_LARGEST_ANGLE, _LARGEST_ANGLE),
    )  # fmt: skip


# ---- bits ----------------------------------------------------------------------------------------


def _comparison(name: str) -> Form:
    return lambda site, node, a, b: make.compare(name, a, b)


def _bool_comparison(predicate: arith.CmpIPredicate) -> Form:
    return lambda site, node, a, b: arith.cmpi(predicate, a, b)


def _complement(site: Site, node: Node, a: Value) -> Value:
    return arith.xori(a, constant(make.machine(a), -1))


def _shift(build: Callable[[Value, Value], Value], beyond: Callable[[Value], Value]) -> Form:
    """Return the form of a shift; by 64 or more, or less than 0, the result is `beyond`'s."""

    def form(site: Site, node: Node, a: Value, b: Value) -> Value:
        kind = make.machine(a)
        bits = 32 if kind == "i32" else 64
        count = site.interval(node.args[1])
        if count.within(0, bits - 1) and (build is arith.shrsi or kind == site.machine(node)):
            return build(a, b)
        a, b = make.resized(a, "i64"), make.resized(b, "i64")
        inside = arith.cmpi(arith.CmpIPredicate.ult, b, constant("i64", 64))
        shifted = build(a, make.select(inside, b, constant("i64", 0)))
        return make.select(inside, shifted, beyond(a))

    return form


def _sign_bits(a: Value) -> Value:
    return arith.shrsi(a, constant("i64", 63))


# ---- conversions ---------------------------------------------------------------------------------


def _to_integer(build: Callable[..., Value]) -> Form:
    def form(site: Site, node: Node, a: Value) -> Value:
        return build(T.i32() if site.machine(node) == "i32" else T.i64(), a)

    return form


def _is_set(site: Site, node: Node, a: Value) -> Value:
    return make.compare("ne", a, _zero(a))


# ---- the table -----------------------------------------------------------------------------------


def _function(
    build: Callable[[Value], Value],
    error: str = "",
    fast: Callable[[Value], Value] | None = None,
    fast_error: str = "",
    holds: Callable[..., Any] = lambda *_: True,
    pairs: bool = False,
) -> Emission:
    """Return the row of a function of one float."""
    return Emission(
        _plain(build), error=error, fast=None if fast is None else _plain(fast),
        fast_error=fast_error, fast_holds=holds, pairs=pairs,
    )  # fmt: skip


def _compared(name: str, unsigned: arith.CmpIPredicate) -> Emission:
    form = _comparison(name)
    return Emission(form, form, _bool_comparison(unsigned))


_PREDICATES: Final = arith.CmpIPredicate
_select: Final = _plain(make.select)


def _bits(name: str, build: Callable[[Value, Value], Value]) -> Emission:
    return Emission(None, _plain(build), _plain(make.joined(name)), width="result")


EMISSIONS: Final[dict[str, Emission]] = {
    # arithmetic
    "add": Emission(_add, _plain(arith.addi), width="result", pairs=True),
    "sub": Emission(_sub, _plain(arith.subi), width="result", pairs=True),
    "mul": Emission(_plain(arith.mulf), _plain(arith.muli), width="result", pairs=True),
    "div": Emission(_plain(arith.divf), fast=_fast_div, fast_error="2 ulp", pairs=True),
    "floordiv": Emission(_float_floordiv, _floordiv, width="divided"),
    "mod": Emission(_float_mod, _mod, width="divided"),
    "pow": Emission(
        _plain(math.powf), _power, width="own", error="4 ulp",
        fast=_fast_power, fast_holds=lambda a, b: a.lo >= 0,
        fast_error="for finite exponents: 2^-21 * (1 + |b * log2(a)|) relative",
    ),
    "neg": Emission(_plain(arith.negf), _opposite, width="result", pairs=True),
    "abs": Emission(_plain(math.absf), _magnitude),
    "sign": Emission(_float_sign, _integer_sign),
    "min": Emission(_plain(make.lesser), _plain(arith.minsi)),
    "max": Emission(_plain(make.larger), _plain(arith.maxsi)),
    # functions of one float
    "exp": _function(math.exp, "2 ulp", lambda x: _EX2(_times(_LOG2E, x)),
                     "2^-22 + |x| * 2^-23 relative; less than 2^-126 is 0", pairs=True),
    "exp2": _function(math.exp2, "2 ulp", _EX2, "2^-22 relative; less than 2^-126 is 0"),
    "expm1": _function(math.expm1, "2 ulp"),
    "log": _function(math.log, "2 ulp", lambda x: _times(_LN2, _LG2(x)),
                     "2^-22 relative, from 0.5 to 2 absolute", pairs=True),
    "log2": _function(math.log2, "2 ulp", _LG2, "2^-22 relative, from 0.5 to 2 absolute"),
    "log1p": Emission(_plain(math.log1p), error="2 ulp", fast=_fast_log1p,
                      fast_holds=lambda x: x.lo >= 0, fast_error="2^-22 * (1 + result)",
                      pairs=True),
    "sqrt": _function(math.sqrt, "", make.instruction("sqrt.approx.f32"), "2^-23 relative"),
    "rsqrt": _function(math.rsqrt, "2^-22.9 relative"),
    "sin": _angle(math.sin, "sin.approx.f32", "2^-20 absolute"),
    "cos": _angle(math.cos, "cos.approx.f32", "2^-20 absolute"),
    "tanh": _function(math.tanh, "2 ulp", make.instruction("tanh.approx.f32"), "2^-11 relative"),
    "sigmoid": Emission(_precise_sigmoid, error="3 ulp", fast=_fast_sigmoid,
                        fast_error="2^-21 + |x| * 2^-23 relative; less than 2^-126 is 0",
                        pairs=True),
    "erf": _function(math.erf, "2 ulp"),
    "atan": _function(math.atan, "2 ulp"),
    "floor": _function(math.floor),
    "ceil": _function(math.ceil),
    "round": _function(math.roundeven),
    "trunc": _function(math.trunc),
    # comparisons
    "lt": _compared("lt", _PREDICATES.ult),
    "le": _compared("le", _PREDICATES.ule),
    "gt": _compared("gt", _PREDICATES.ugt),
    "ge": _compared("ge", _PREDICATES.uge),
    "eq": _compared("eq", _PREDICATES.eq),
    "ne": _compared("ne", _PREDICATES.ne),
    # logic on bools, bits on integers
    "and": _bits("and", arith.andi),
    "xor": _bits("xor", arith.xori),
    "or": _bits("or", arith.ori),
    "not": Emission(None, _complement, _complement, width="result"),
    "shl": Emission(None, _shift(arith.shli, _zero)),
    "shr": Emission(None, _shift(arith.shrsi, _sign_bits)),
    # selection and conversion
    "where": Emission(_float_select, _select, _select, width="result"),
    "to_f32": Emission(None, _plain(make.to_float),
                       lambda site, node, a: arith.uitofp(T.f32(), a), width="own"),
    "to_i32": Emission(_to_integer(arith.fptosi), None, _to_integer(arith.extui), width="own"),
    "to_bool": Emission(_is_set, _is_set, width="own"),
    # reductions of a vector
    "sum": Emission(combine="add", pairs=True),
    "amax": Emission(combine="max"),
    "amin": Emission(combine="min"),
    "any": Emission(combine="or"),
    "all": Emission(combine="and", start=1),
}  # fmt: skip
"""Every op; no row is missing (the tests compare the tables)."""
