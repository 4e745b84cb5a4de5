"""Every op as a kernel computes it, on thousands of values, against the ops table's meaning."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.ir import (
    BOOL,
    F32,
    I32,
    Buffer,
    DType,
    Node,
    Scalar,
    const,
    input_,
    iota,
    load,
    make_graph,
    scalar,
    topological,
)
from flexfa4.frontend.ops import OPS, apply
from flexfa4.frontend.sizes import Sizes
from flexfa4.kernels.emit.captures import capture_plan
from flexfa4.kernels.emit.table import EMISSIONS
from tests.emulate.emit_kernels import Work
from tests.emulate.evaluation import evaluated, floats

Q, KV = 16, 128
SIZES = Sizes(1, 1, 1, Q, KV)
SCORE_DTYPES = {F32: torch.float32, I32: torch.int64, BOOL: torch.bool}
PLACE = (input_("q"), input_("kv"))
LENGTH = 3


@dataclass(frozen=True)
class Operand:
    """Where an operand comes from: a captured tensor, read at each score."""

    node: Node
    values: torch.Tensor


def _spread(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a tile of values drawn from `values`, in random order, each at least once."""
    drawn = torch.randint(0, len(values), (Q * KV,), generator=generator)
    drawn[: len(values)] = torch.arange(len(values))
    order = torch.randperm(Q * KV, generator=generator)
    return values[drawn[order]].view(Q, KV)


def _floats(generator: torch.Generator) -> torch.Tensor:
    special = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, math.inf, -math.inf, math.nan,
               1e-45, -1e-40, 1.1754943e-38, 3.4028235e38, -3.4028235e38, 16777217.0, 8388607.5,
               2147483648.0, 88.7, -87.3, -103.0, 126.5, -149.0, math.pi, 1e5, 3e-8]  # fmt: skip
    signs = torch.randint(0, 2, (600,), generator=generator) * 2 - 1
    exponents = torch.rand(600, generator=generator) * 60 - 30
    small = torch.randn(800, generator=generator) * 3
    return torch.cat([torch.tensor(special), signs * torch.exp2(exponents), small]).float()


def _integers(bits: int, generator: torch.Generator) -> torch.Tensor:
    end = 2 ** (bits - 1)
    special = [0, 1, -1, 2, -2, 3, 7, -7, 10, end - 1, -end, end // 2, 2**24 + 1, -(2**24) - 1]
    wide = torch.randint(-end, end - 1, (600,), generator=generator)
    shift = torch.randint(0, bits - 1, (600,), generator=generator)
    return torch.cat([torch.tensor(special), wide >> shift])


class Operands:
    """Captured tensors by the names of the operands, `a`, `b` and so on."""

    def __init__(self, bits: int = 64) -> None:
        self.bits = bits
        self.generator = torch.Generator().manual_seed(bits)
        self.made: dict[str, torch.Tensor] = {}
        self.numbers: dict[str, int] = {}

    def of(self, name: str, dtype: DType) -> Node:
        """Return a load of a tensor of values for an operand."""
        key = f"{name}_{dtype.value}"
        if key not in self.made:
            if dtype is F32:
                values = _floats(self.generator)
            elif dtype is I32:
                values = _integers(self.bits, self.generator)
                values = values.to(torch.int64 if self.bits == 64 else torch.int32)
            else:
                values = torch.tensor([False, True])
            self.made[key] = _spread(values, self.generator)
        return load(Buffer(key, dtype, (None, None)), PLACE)

    def fixed(self, name: str, values: torch.Tensor, dtype: DType) -> Node:
        """Return a load of given values, `(Q, KV)`."""
        self.made[name] = values
        return load(Buffer(name, dtype, (None, None)), PLACE)

    def number(self, value: int) -> Node:
        """Return a captured integer."""
        name = f"n{len(self.numbers)}"
        self.numbers[name] = value
        return scalar(Scalar(name, I32))


def computed(
    roots: Sequence[Node], operands: Operands, *, fast: bool = False, exact: bool = False
) -> list[torch.Tensor]:
    """Return what a kernel makes of each root, `(Q, KV)`."""
    whole = functools.reduce(
        lambda a, b: apply("or", a, b), [apply("to_bool", root) for root in roots]
    )
    graph = make_graph("mask", whole)
    bound = BoundGraph(
        graph,
        tuple(operands.made[b.name] for b in graph.buffers),
        tuple(operands.numbers[s.name] for s in graph.scalars),
    )
    plan = capture_plan(bound, SIZES)
    work = Work(graph, plan, tuple(roots), exact=exact, fast=fast, columns=8, tail=False)
    results = evaluated(work, bound, SIZES)[:, 0, 0]
    kinds = {F32: floats, I32: lambda bits: bits, BOOL: lambda bits: bits.bool()}
    return [kinds[root.dtype](bits) for root, bits in zip(roots, results, strict=True)]


def expected(root: Node, operands: Operands, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return what the ops table makes of a root, floats computed in `dtype`."""
    values: dict[Node, Any] = {}
    for node in topological(root):
        given = [values[a] for a in node.args]
        if node.op == "load":
            found = operands.made[node.attr.name]
            values[node] = found.to({**SCORE_DTYPES, F32: dtype}[node.dtype])
        elif node.op == "const":
            values[node] = torch.tensor(node.attr, dtype={**SCORE_DTYPES, F32: dtype}[node.dtype])
        elif node.op == "scalar":
            values[node] = torch.tensor(operands.numbers[node.attr.name])
        elif node.op == "input":
            values[node] = {"q": torch.arange(Q)[:, None], "kv": torch.arange(KV)}[node.attr]
        elif node.op == "iota":
            values[node] = None
        elif node.op.startswith("to_"):
            values[node] = OPS[node.op].eager(given[0], dtype)
        else:
            values[node] = OPS[node.op].eager(*given)
    return values[root].expand(Q, KV)


def wrong(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return where results differ; zeros of both signs are equal, and so are NaN."""
    both_nan = found.isnan() & wanted.isnan() if found.is_floating_point() else False
    return ~((found == wanted) | both_nan)


def ulps(found: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Return the distance from an fp64 result in units of the last place of fp32."""
    place = torch.exp2(torch.floor(torch.log2(exact.abs().clamp(min=2.0**-126))) - 23)
    beyond = exact.abs() >= 2.0**128
    exact = torch.where(beyond, exact.sign() * math.inf, exact)
    same = (found.double() == exact) | (found.isnan() & exact.isnan())
    return torch.where(same, 0.0, (found.double() - exact).abs() / place)


# ---- floats --------------------------------------------------------------------------------------

ROUNDED_ONCE = [
    name
    for name, row in OPS.items()
    if F32 in row.dtypes.operands and not row.reduces and row.dtypes.first is None
    and not EMISSIONS[name].error and not name.startswith("to_")
]  # fmt: skip
FUNCTIONS = [name for name, emission in EMISSIONS.items() if emission.error]


def applied(name: str, operands: Operands, dtype: DType) -> Node:
    """Return an op on as many tensors as it takes."""
    return apply(name, *[operands.of(letter, dtype) for letter in "abc"[: OPS[name].dtypes.arity]])


def test_ops_that_are_rounded_once_have_torchs_bits() -> None:
    operands = Operands()
    roots = [applied(name, operands, F32) for name in ROUNDED_ONCE]
    results = computed(roots, operands)
    # torch computes a remainder through the quotient, and has no value where that overflows
    beyond = (operands.made["a_f32"] / operands.made["b_f32"]).isinf()
    for root, found in zip(roots, results, strict=True):
        bad = wrong(found, expected(root, operands))
        bad &= ~beyond if root.op in ("mod", "floordiv") else True
        if root.op == "sqrt":  # torch's is not always the nearest number
            bad = ulps(found, expected(root, operands, torch.float64)) > 0.5
        assert not bad.any(), f"{root.op}: {found[bad][:5]} {expected(root, operands)[bad][:5]}"


def test_functions_are_within_four_units_of_the_last_place() -> None:
    operands = Operands()
    roots = [applied(name, operands, F32) for name in FUNCTIONS]
    for root, found in zip(roots, computed(roots, operands), strict=True):
        distance = ulps(found, expected(root, operands, torch.float64))
        # the sigmoid of large numbers underflows to zero, as torch's does
        bad = ~(distance <= 4) & wrong(found, expected(root, operands))
        assert not bad.any(), f"{root.op}: {found[bad][:5]} {distance[bad][:5]}"


@pytest.mark.parametrize("exact", [False, True])
def test_a_sum_is_fused_with_a_product_unless_bits_matter(exact: bool) -> None:
    operands = Operands()
    a, b = operands.of("a", F32), operands.of("b", F32)
    root = apply("add", apply("mul", a, a), b)
    (found,) = computed([root], operands, exact=exact)
    assert exact == (not wrong(found, expected(root, operands)).any())


TINY = 2.0**-126
Bound = Callable[[torch.Tensor], torch.Tensor]
FAST: dict[str, tuple[Callable[[Node, Node], Node], Bound]] = {
    "div": (lambda x, y: apply("div", x, y), lambda r: r.abs() * 2.0**-22 + TINY),
    "exp": (lambda x, y: apply("exp", times(x, 80)), lambda r: r * 2.0**-16 + TINY),
    "exp2": (lambda x, y: apply("exp2", times(x, 120)), lambda r: r * 2.0**-22 + TINY),
    "log": (lambda x, y: apply("log", size(x)), lambda r: (1 + r.abs()) * 2.0**-22),
    "log2": (lambda x, y: apply("log2", size(x)), lambda r: (1 + r.abs()) * 2.0**-22),
    "log1p": (lambda x, y: apply("log1p", size(times(x, 9))), lambda r: (1 + r) * 2.0**-22),
    "sqrt": (lambda x, y: apply("sqrt", size(x)), lambda r: r * 2.0**-23),
    "sin": (lambda x, y: apply("sin", times(x, 1e6)), lambda r: r * 0 + 2.0**-20),
    "cos": (lambda x, y: apply("cos", times(x, 5)), lambda r: r * 0 + 2.0**-20),
    "tanh": (lambda x, y: apply("tanh", times(x, 4)), lambda r: r.abs() * 2.0**-11),
    "sigmoid": (lambda x, y: apply("sigmoid", times(x, 30)), lambda r: r * 2.0**-18 + TINY),
    "pow": (
        lambda x, y: apply("pow", size(times(x, 1000)), times(y, 2)),
        lambda r: r * 2.0**-16 + TINY,
    ),
}
"""Arguments for which a fast form is used, from operands in [-1, 1], and its bound."""


VECTORS = {
    "sum": (F32, I32), "amax": (F32, I32), "amin": (F32, I32), "any": (BOOL,), "all": (BOOL,),
}  # fmt: skip


def test_reductions_of_vectors_are_torchs() -> None:
    operands = Operands()
    roots, wanted = [], []
    for dtype, stored in ((F32, torch.float32), (I32, torch.int64), (BOOL, torch.bool)):
        values = torch.randint(-3, 4, (Q, KV, 5), generator=operands.generator).to(stored)
        operands.made[dtype.value] = values
        buffer = Buffer(dtype.value, dtype, (None, None, 5))
        vector = load(buffer, (*PLACE, iota(5)))
        for name, dtypes in VECTORS.items():
            if dtype in dtypes:
                roots.append(apply(name, vector))
                wanted.append(OPS[name].eager(values))
    roots.append(apply("sum", apply("mul", load(Buffer("f32", F32, (None, None, 5)),
                                                (*PLACE, iota(5))), const(2.0))))  # fmt: skip
    wanted.append(operands.made["f32"].sum(-1) * 2)
    assert set(VECTORS) == {name for name, row in OPS.items() if row.reduces}
    for root, found, want in zip(roots, computed(roots, operands), wanted, strict=True):
        assert torch.equal(found, want), root


def times(x: Node, factor: float) -> Node:
    """Return a product that is known to be bounded."""
    return apply("mul", apply("min", apply("max", x, const(-1.0)), const(1.0)), const(factor))


def size(x: Node) -> Node:
    return apply("abs", x)


def test_fast_forms_keep_their_bounds() -> None:
    assert set(FAST) == {name for name, emission in EMISSIONS.items() if emission.fast}
    operands = Operands()
    x, y = (
        operands.fixed(name, torch.rand(Q, KV, generator=operands.generator) * 2 - 1, F32)
        for name in "xy"
    )
    roots = [make(x, y) for make, _ in FAST.values()]
    results = computed(roots, operands, fast=True)
    for root, found, (_, bound) in zip(roots, results, FAST.values(), strict=True):
        # the argument is rounded to fp32, whatever computes the function
        (argument, *others) = root.args
        given = expected(argument, operands).double()
        rest = [expected(other, operands).double() for other in others]
        exact = OPS[root.op].eager(given, *rest)
        error = (found.double() - exact).abs()
        assert (error <= bound(exact)).all(), f"{root.op}: {(error / bound(exact)).max()}"
        assert (error > 0).any(), f"{root.op} is exact"


# ---- integers and bools --------------------------------------------------------------------------

INTEGER_OPS = [
    name
    for name, row in OPS.items()
    if I32 in row.dtypes.operands and not row.reduces and not name.startswith("to_")
    and name not in ("where", "floordiv", "mod", "shl", "shr", "pow")
]  # fmt: skip


def _no_zero(values: torch.Tensor) -> torch.Tensor:
    # -1 too: the least integer has no opposite, and processors trap
    return torch.where((values == 0) | (values == -1), 3, values)


@pytest.mark.parametrize("bits", [32, 64])
def test_integers_are_64_bits_wide_and_wrap_around_as_torchs_do(bits: int) -> None:
    operands = Operands(bits)
    a, b = operands.of("a", I32), operands.of("b", I32)
    divisor = operands.fixed("divisor", _no_zero(operands.made["b_i32"]), I32)
    count = operands.fixed(
        "count", torch.randint(0, 64, (Q, KV), generator=operands.generator), I32
    )
    positive = apply("abs", apply("shr", a, const(2)))
    roots = [apply(name, a, b)  if OPS[name].dtypes.arity == 2 else apply(name, a)
             for name in INTEGER_OPS]  # fmt: skip
    for name in ("floordiv", "mod"):
        roots += [
            apply(name, a, divisor),
            apply(name, a, const(10)),
            apply(name, a, const(-8)),
            apply(name, positive, const(16)),
            apply(name, positive, apply("max", divisor, const(2))),
        ]
    for name in ("shl", "shr"):
        roots += [apply(name, a, count), apply(name, a, const(5)), apply(name, a, const(40))]
    narrow = apply("shr", apply("shl", apply("and", a, const(7)), const(1)), const(1))
    roots += [
        apply("pow", a, const(3)),
        apply("pow", narrow, apply("and", b, const(15))),
        apply("where", apply("lt", a, b), a, b),
        apply("to_f32", a),
        apply("to_bool", a),
        apply("mul", apply("sub", apply("add", a, const(1)), b), apply("add", a, b)),
    ]
    for root, found in zip(roots, computed(roots, operands), strict=True):
        bad = wrong(found, expected(root, operands))
        text = f"{root}: {found[bad][:5]} for {expected(root, operands)[bad][:5]}"
        assert not bad.any(), text


DIVISORS = (1, 2, 7, 2**24, 2**29 - 1, 2**29, 2**40, -1, -3, -(2**29), -(2**40))


@pytest.mark.parametrize("dividend", ["32 bits", "64 bits", "of 64, not negative", "position"])
def test_integers_are_divided_by_numbers_of_a_call_whatever_their_sign_and_size(
    dividend: str,
) -> None:
    operands = Operands(32 if dividend == "32 bits" else 64)
    a = input_("kv") if dividend == "position" else operands.of("a", I32)
    if dividend == "64 bits":  # the least integer has no opposite, and processors trap
        a = apply("max", a, const(-(2**63) + 1))
    elif dividend == "of 64, not negative":
        a = apply("abs", apply("shr", a, const(1)))
    roots = []
    for value in DIVISORS:
        n, more = operands.number(value), operands.number(value + 1)
        unknown = apply("sub", more, const(1))  # the same, but nothing says so
        roots += [apply(name, a, by) for name in ("floordiv", "mod") for by in (n, unknown)]
    for root, found in zip(roots, computed(roots, operands), strict=True):
        bad = wrong(found, expected(root, operands))
        text = f"{root}: {found[bad][:5]} for {expected(root, operands)[bad][:5]}"
        assert not bad.any(), text


def test_a_negative_power_of_an_integer_is_what_torch_makes_of_it() -> None:
    operands = Operands()
    base = operands.fixed("base", torch.arange(Q * KV).view(Q, KV) % 7 - 3, I32)
    exponent = operands.fixed("exponent", torch.arange(Q * KV).view(Q, KV) % 5 - 3, I32)
    negative = apply("lt", exponent, const(0))
    safe = apply("where", apply("and", negative, apply("eq", base, const(0))), const(2), base)
    root = apply("pow", safe, apply("min", exponent, const(3)))
    (found,) = computed([root], operands)
    assert torch.equal(found, expected(root, operands))


def test_shifts_beyond_the_width_leave_the_sign() -> None:
    operands = Operands()
    a = operands.of("a", I32)
    far = operands.fixed("far", torch.tensor([64, 65, 1000, -1]).repeat(Q, KV // 4), I32)
    left, right = computed([apply("shl", a, far), apply("shr", a, far)], operands)
    values = operands.made["a_i32"]
    assert not left.any() and torch.equal(right, values >> 63)


def test_bools() -> None:
    operands = Operands()
    a, b = operands.of("a", BOOL), operands.of("b", BOOL)
    names = [n for n, row in OPS.items() if BOOL in row.dtypes.operands and not row.reduces]
    roots = []
    for name in names:
        if name == "where":
            roots.append(apply(name, a, b, apply("not", a)))
        elif name != "to_bool":
            roots.append(apply(name, *[a, b][: OPS[name].dtypes.arity]))
    for root, found in zip(roots, computed(roots, operands), strict=True):
        assert torch.equal(found, expected(root, operands)), root.op


def test_conversions_from_floats() -> None:
    operands = Operands()
    a = operands.of("a", F32)
    inside = apply("where", apply("lt", apply("abs", a), const(2.0**62)), a, const(-7.9))
    roots = [apply("to_i32", inside), apply("to_bool", a),
             apply("to_i32", apply("min", apply("max", a, const(-9.5)), const(1e9)))]  # fmt: skip
    finite = ~operands.made["a_f32"].isnan()
    for root, found in zip(roots, computed(roots, operands), strict=True):
        bad = wrong(found, expected(root, operands)) & finite
        assert not bad.any(), f"{root.op} {found[bad][:5]}"
