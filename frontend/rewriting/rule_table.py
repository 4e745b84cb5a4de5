"""The rewrite rules: one row for each equation.

Each row holds for every value of its variables, infinities and NaN included, for the dtypes that
the variables name; the sign of zero is not distinguished.  So what is true of real numbers only has
no row: ``f * 0 = 0`` (NaN), ``f - f = 0`` (inf), ``~(f < g) = (f >= g)`` (NaN),
``(f + c) + d = f + (c + d)`` (rounding), ``i + c < d = i < d - c`` (overflow).  Integers wrap
around at 64 bits, and sums and products modulo 2^64 are associative.

Termination: each row lowers, in this order of importance, the cost of the graph's ops, their
number, or the number of places where a constant stands on the left, a sign is where none is needed,
or a condition is negated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from flexfa4.frontend.ir import BOOL, F32, I32, Node
from flexfa4.frontend.rewriting.patterns import COMMUTATIVE, Rule, Var, op

NUMBER, BITS = frozenset({F32, I32}), frozenset({I32, BOOL})

# any dtype; numbers; floats; integers; bools; integers and bools; constants
x, y, z = Var("x"), Var("y"), Var("z")
n, m = Var("n", NUMBER), Var("m", NUMBER)
f = Var("f", frozenset({F32}))
i, j = Var("i", frozenset({I32})), Var("j", frozenset({I32}))
p, r, s = (Var(name, frozenset({BOOL})) for name in "prs")
u, v = Var("u", BITS), Var("v", BITS)
k = Var("k", constant=True)
nk, nl = Var("k", NUMBER, constant=True), Var("l", NUMBER, constant=True)
fk = Var("k", frozenset({F32}), constant=True)
ik, il = (Var(name, frozenset({I32}), constant=True) for name in "kl")


def _left_alone(found: Mapping[str, Node]) -> bool:
    """Whether only the left operand is a constant (two are folded)."""
    return found["x"].op != "const"


def _negative(found: Mapping[str, Node]) -> bool:
    """Whether k is negative and -k exists."""
    return bool(-(2**63) < found["k"].attr < 0)


def _negatable(found: Mapping[str, Node]) -> bool:
    return bool(found["k"].attr != -(2**63))


def _power_of_two(found: Mapping[str, Node]) -> bool:
    """Whether k is a power of two whose reciprocal is a normal fp32 number."""
    value = abs(found["k"].attr)
    return 2.0**-126 <= value <= 2.0**126 and math.frexp(value)[0] == 0.5


def _positive(found: Mapping[str, Node]) -> bool:
    return bool(found["k"].attr > 0)


CONSTANTS_RIGHT: Final = (
    *(Rule(op(name, k, x), op(name, x, k), _left_alone) for name in sorted(COMMUTATIVE)),
    Rule(op("lt", k, x), x > k, _left_alone),  # k < x  =  x > k
    Rule(op("le", k, x), x >= k, _left_alone),  # k <= x  =  x >= k
    Rule(op("gt", k, x), x < k, _left_alone),  # k > x  =  x < k
    Rule(op("ge", k, x), x <= k, _left_alone),  # k >= x  =  x <= k
)

ARITHMETIC: Final = (
    Rule(n + 0, n),  # n + 0 = n
    Rule(n - 0, n),  # n - 0 = n
    Rule(0 - n, -n),  # 0 - n = -n
    Rule(n * 1, n),  # n * 1 = n
    Rule(n * -1, -n),  # n * -1 = -n
    Rule(n / 1, n),  # n / 1 = n
    Rule(f / fk, f * (1.0 / fk), _power_of_two),  # f / 2^e = f * 2^-e, both correctly rounded
    Rule(n**1, n),  # n ** 1 = n
    Rule(n**2, n * n),  # n ** 2 = n * n
    Rule(n**0, 1),  # n ** 0 = 1, of NaN and 0 as well
    Rule(i * 0, 0),  # i * 0 = 0
    Rule(i // 1, i),  # i // 1 = i
    Rule(i % 1, 0),  # i % 1 = 0
    Rule((i % ik) % ik, i % ik, _positive),  # (i % k) % k = i % k
    Rule(i - i, 0),  # i - i = 0
    Rule(i << 0, i),  # i << 0 = i
    Rule(i >> 0, i),  # i >> 0 = i
    Rule((i + ik) + il, i + (ik + il)),  # (i + k) + l = i + (k + l)
    Rule((i + ik) - il, i + (ik - il)),  # (i + k) - l = i + (k - l)
    Rule((i - ik) + il, i + (il - ik)),  # (i - k) + l = i + (l - k)
    Rule((i - ik) - il, i - (ik + il)),  # (i - k) - l = i - (k + l)
    Rule((i * ik) * il, i * (ik * il)),  # (i * k) * l = i * (k * l)
    Rule((i + j) - i, j),  # (i + j) - i = j
    Rule((i - j) + j, i),  # (i - j) + j = i
    Rule(i - (i - j), j),  # i - (i - j) = j
)

SIGNS: Final = (
    Rule(op("neg", -n), n),  # -(-n) = n
    Rule(-(n - m), m - n),  # -(n - m) = m - n
    Rule(n + -m, n - m),  # n + -m = n - m
    Rule(n - -m, n + m),  # n - -m = n + m
    Rule(-n * -m, n * m),  # -n * -m = n * m
    Rule(-n * nk, n * -nk, _negatable),  # -n * k = n * -k
    Rule(-(n * nk), n * -nk, _negatable),  # -(n * k) = n * -k
    Rule(n + nk, n - -nk, _negative),  # n + -1 = n - 1
    Rule(n - nk, n + -nk, _negative),  # n - -1 = n + 1
    Rule(op("abs", op("abs", n)), op("abs", n)),  # |(|n|)| = |n|
    Rule(op("abs", -n), op("abs", n)),  # |-n| = |n|
    Rule(op("abs", n * n), n * n, lambda found: found["n"].dtype is F32),  # |f * f| = f * f
    Rule(op("abs", op("sub", nk, n)), op("abs", n - nk)),  # |k - n| = |n - k|
)

EXTREMES: Final = (
    Rule(op("min", n, n), n),  # min(n, n) = n
    Rule(op("max", n, n), n),  # max(n, n) = n
    Rule(op("min", op("min", n, nk), nl), op("min", n, op("min", nk, nl))),  # one bound is enough
    Rule(op("max", op("max", n, nk), nl), op("max", n, op("max", nk, nl))),  # one bound is enough
    Rule(op("min", op("min", n, m), n), op("min", n, m)),  # min(min(n, m), n) = min(n, m)
    Rule(op("max", op("max", n, m), n), op("max", n, m)),  # max(max(n, m), n) = max(n, m)
    Rule(op("min", i, op("max", i, j)), i),  # min(i, max(i, j)) = i
    Rule(op("max", i, op("min", i, j)), i),  # max(i, min(i, j)) = i
    *(Rule(op("where", op(less, i, j), i, j), op("min", i, j)) for less in ("lt", "le")),
    *(Rule(op("where", op(less, i, j), j, i), op("max", i, j)) for less in ("lt", "le")),
    *(Rule(op("where", op(more, i, j), i, j), op("max", i, j)) for more in ("gt", "ge")),
    *(Rule(op("where", op(more, i, j), j, i), op("min", i, j)) for more in ("gt", "ge")),
)

LOGIC: Final = (
    Rule(~~u, u),  # ~~u = u
    Rule(u & u, u),  # u & u = u
    Rule(u | u, u),  # u | u = u
    Rule(i ^ i, 0),  # i ^ i = 0
    Rule(p ^ p, False),  # p ^ p = False
    Rule(p & True, p),  # p & True = p
    Rule(p & False, False),  # p & False = False
    Rule(p | True, True),  # p | True = True
    Rule(p | False, p),  # p | False = p
    Rule(p ^ False, p),  # p ^ False = p
    Rule(p ^ True, ~p),  # p ^ True = ~p
    Rule(i & 0, 0),  # i & 0 = 0
    Rule(i & -1, i),  # i & -1 = i
    Rule(i | 0, i),  # i | 0 = i
    Rule(i | -1, -1),  # i | -1 = -1
    Rule(i ^ 0, i),  # i ^ 0 = i
    Rule(p & ~p, False),  # p & ~p = False
    Rule(p | ~p, True),  # p | ~p = True
    Rule(u & (u | v), u),  # u & (u | v) = u
    Rule(u | (u & v), u),  # u | (u & v) = u
    Rule((u & v) & u, u & v),  # (u & v) & u = u & v
    Rule((u | v) | u, u | v),  # (u | v) | u = u | v
)

COMPARISONS: Final = (
    Rule(op("lt", x, x), False),  # x < x = False, of NaN as well
    Rule(op("gt", x, x), False),  # x > x = False
    Rule(u <= u, True),  # u <= u = True
    Rule(u >= u, True),  # u >= u = True
    Rule(op("eq", u, u), True),  # u == u = True
    Rule(op("ne", u, u), False),  # u != u = False
    Rule(~(u < v), u >= v),  # ~(u < v) = u >= v
    Rule(~(u <= v), u > v),  # ~(u <= v) = u > v
    Rule(~(u > v), u <= v),  # ~(u > v) = u <= v
    Rule(~(u >= v), u < v),  # ~(u >= v) = u < v
    Rule(~op("eq", x, y), op("ne", x, y)),  # ~(x == y) = x != y, of NaN as well
    Rule(~op("ne", x, y), op("eq", x, y)),  # ~(x != y) = x == y
    Rule(op("eq", p, True), p),  # (p == True) = p
    Rule(op("eq", p, False), ~p),  # (p == False) = ~p
    Rule(op("ne", p, True), ~p),  # (p != True) = ~p
    Rule(op("ne", p, False), p),  # (p != False) = p
)

SELECTIONS: Final = (
    Rule(op("where", True, x, y), x),  # where(True, x, y) = x
    Rule(op("where", False, x, y), y),  # where(False, x, y) = y
    Rule(op("where", p, x, x), x),  # where(p, x, x) = x
    Rule(op("where", ~p, x, y), op("where", p, y, x)),  # where(~p, x, y) = where(p, y, x)
    Rule(op("where", p, op("where", p, x, y), z), op("where", p, x, z)),  # known to be true inside
    Rule(op("where", p, x, op("where", p, y, z)), op("where", p, x, z)),  # known to be false inside
    Rule(op("where", p, r, False), p & r),  # where(p, r, False) = p & r
    Rule(op("where", p, True, r), p | r),  # where(p, True, r) = p | r
    Rule(op("where", p, False, True), ~p),  # where(p, False, True) = ~p
)

CONVERSIONS: Final = (
    Rule(op("to_bool", i), op("ne", i, 0)),  # bool(i) = (i != 0)
    Rule(op("to_bool", f), op("ne", f, 0)),  # bool(f) = (f != 0)
    Rule(op("ne", op("to_i32", p), 0), p),  # (i32(p) != 0) = p
    Rule(op("ne", op("to_f32", p), 0), p),  # (f32(p) != 0) = p
    Rule(op("eq", op("to_i32", p), 0), ~p),  # (i32(p) == 0) = ~p
    Rule(op("eq", op("to_f32", p), 0), ~p),  # (f32(p) == 0) = ~p
    Rule(op("eq", op("to_i32", p), 1), p),  # (i32(p) == 1) = p
    Rule(op("ne", op("to_f32", i), 0), op("ne", i, 0)),  # rounding does not reach zero
    Rule(op("to_f32", op("to_i32", p)), op("to_f32", p)),  # f32(i32(p)) = f32(p)
    Rule(op("to_i32", op("to_f32", p)), op("to_i32", p)),  # i32(f32(p)) = i32(p)
    *(
        Rule(op(outer, op(inner, f)), op(inner, f))  # floor(ceil(f)) = ceil(f): whole already
        for outer in ("floor", "ceil", "round", "trunc")
        for inner in ("floor", "ceil", "round", "trunc")
    ),
    *(
        Rule(op(outer, op("to_f32", u)), op("to_f32", u))  # floor(f32(u)) = f32(u)
        for outer in ("floor", "ceil", "round", "trunc")
    ),
)

RULES: Final[tuple[Rule, ...]] = (
    *CONSTANTS_RIGHT,
    *ARITHMETIC,
    *SIGNS,
    *EXTREMES,
    *LOGIC,
    *COMPARISONS,
    *SELECTIONS,
    *CONVERSIONS,
)
