"""The ops table: every operation of the IR is one row of `OPS`.

A row says all that the frontend knows about an op: its dtype rule, its meaning on torch tensors,
its derivative, its interval rule, its text form, the torch functions that it stands for, and which
pipe of a GPU it keeps busy.  Adding an op is adding a row here, its emission in the kernels and
one test.  The semantics are torch's (NaN propagates through min and max, ``//`` and ``%`` round
towards minus infinity as in Python).

This module does not simplify (`rules`), does not decide which torch functions are *composed* of
several ops (`tracing.torch_table`), and holds no leaf nodes (`ir`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch

from flexfa4.errors import OperandError
from flexfa4.frontend.analysis import interval_bits as bits
from flexfa4.frontend.analysis import interval_functions as fn
from flexfa4.frontend.analysis import intervals as iv
from flexfa4.frontend.ir import BOOL, F32, I32, DType, Node, const, intern

Pipe = Literal["fma", "alu", "mufu"]
Derivative = Callable[[Node, Node], "tuple[Node | None, ...]"]


@dataclass(frozen=True)
class Op:
    """One row of the table.

    Attributes:
        name: the op's name in nodes.
        dtypes: dtype rule, see `DTypeRule`.
        eager: meaning on torch tensors and Python numbers; operands are already promoted.
        derivative: from the node and the gradient of its result, the gradient of each operand; None
            for the whole op or for an operand where it is zero or where the operand is no f32.
        interval: from the operands' intervals, an interval that holds every possible result.
        text: `Infix`, `Prefix` or `Call`.
        torch: names in ``torch`` and of tensor methods with exactly this meaning; names that take
            more than the operands, or treat bools differently, are compositions of the tracer's.
        pipe: the GPU pipe that one element occupies, and `cost` the instructions it takes there.
        reduces: the op takes a vector and gives a scalar.
    """

    name: str
    dtypes: DTypeRule
    eager: Callable[..., Any]
    derivative: Derivative | None
    interval: Callable[..., iv.Interval]
    text: Infix | Prefix | Call
    torch: tuple[str, ...] = ()
    pipe: Pipe = "alu"
    cost: int = 1
    reduces: bool = False


@dataclass(frozen=True)
class DTypeRule:
    """Which operand dtypes an op takes and what it returns.

    Attributes:
        arity: number of operands.
        operands: dtypes that the promoted operands may have.
        result: the result's dtype, or None for the operands' common dtype.
        minimum: operands are converted up to at least this dtype.
        first: dtype of the first operand where it does not take part in promotion (``where``).
        mixed: operands of different dtypes are promoted; they are refused where this is False.
    """

    arity: int
    operands: frozenset[DType]
    result: DType | None = None
    minimum: DType = BOOL
    first: DType | None = None
    mixed: bool = True


@dataclass(frozen=True)
class Infix:
    """Printed between its operands; Python's precedence, a larger number binds tighter."""

    symbol: str
    precedence: int


@dataclass(frozen=True)
class Prefix:
    """Printed before its operand."""

    symbol: str
    precedence: int


@dataclass(frozen=True)
class Call:
    """Printed as a function call."""

    name: str


_RANK: Final = {BOOL: 0, I32: 1, F32: 2}
_F, _I, _B = frozenset({F32}), frozenset({I32}), frozenset({BOOL})
_NUMBER, _BITS, _ANY = _F | _I, _I | _B, _F | _I | _B

ARITHMETIC2 = DTypeRule(2, _NUMBER, minimum=I32)
ARITHMETIC1 = DTypeRule(1, _NUMBER, minimum=I32)
FLOAT1 = DTypeRule(1, _F, minimum=F32)
FLOAT2 = DTypeRule(2, _F, minimum=F32)
COMPARE = DTypeRule(2, _ANY, result=BOOL)
BITS2 = DTypeRule(2, _BITS, mixed=False)
BITS1 = DTypeRule(1, _BITS)
SHIFT = DTypeRule(2, _I, minimum=I32)
SELECT = DTypeRule(3, _ANY, first=BOOL)


# ---- eager meanings where torch has no function that takes numbers and tensors alike -------------


def _pair(a: Any, b: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Make tensors of both operands; numbers follow the other's dtype and device.

    So does a tensor without dimensions, which may have been computed on the host.
    """
    if isinstance(a, torch.Tensor):
        if isinstance(b, torch.Tensor) and a.device != b.device and not a.dim():
            a = a.to(b.device)
        return a, torch.as_tensor(b, dtype=a.dtype, device=a.device)
    if isinstance(b, torch.Tensor):
        return torch.as_tensor(a, dtype=b.dtype, device=b.device), b
    a = torch.as_tensor(a, device="cpu")
    return a, torch.as_tensor(b, dtype=a.dtype, device="cpu")


def _where(c: Any, a: Any, b: Any) -> Any:
    if not isinstance(c, torch.Tensor):
        return a if c else b
    a, b = _pair(a, b)
    return torch.where(c if c.dim() else c.to(a.device), a, b)


def _cast_eager(dtype: DType) -> Callable[[Any], Any]:
    """Convert tensors; f32 means the score type, which the evaluator knows and passes by dtype."""

    def cast(a: Any, float_dtype: torch.dtype = torch.float32) -> Any:
        if not isinstance(a, torch.Tensor):
            return {F32: float, I32: int, BOOL: bool}[dtype](a)
        return a.to({F32: float_dtype, I32: torch.int64, BOOL: torch.bool}[dtype])

    return cast


# ---- derivatives: short names for building gradient expressions ----------------------------------


def _mul(a: Node, b: Node) -> Node:
    return apply("mul", a, b)


def _f(value: float) -> Node:
    return const(value, F32)


def _d_div(n: Node, g: Node) -> tuple[Node | None, ...]:
    a, b = n.args
    return apply("div", g, b), apply("neg", _mul(g, apply("div", apply("div", a, b), b)))


def _d_pow(n: Node, g: Node) -> tuple[Node | None, ...]:
    a, b = n.args
    # torch: d/da = b * a^(b-1), and 0 where b = 0; d/db = a^b * ln a, and 0 where a = 0 <= b
    da = _mul(g, _mul(b, apply("pow", a, apply("sub", b, _f(1)))))
    da = apply("where", apply("eq", b, _f(0)), _f(0), da)
    db = _mul(g, _mul(n, apply("log", a)))
    zero = apply("and", apply("eq", a, _f(0)), apply("ge", b, _f(0)))
    return da, apply("where", zero, _f(0), db)


def _d_minmax(n: Node, g: Node) -> tuple[Node | None, ...]:
    a, b = n.args  # torch gives each operand half where they are equal
    lose = "lt" if n.op == "max" else "gt"  # not its opposite: with NaN, both sides get all
    half = _mul(g, _f(0.5))
    tie = apply("eq", a, b)

    def side(x: Node, y: Node) -> Node:
        return apply("where", tie, half, apply("where", apply(lose, x, y), _f(0), g))

    return side(a, b), side(b, a)


def _d_mod(n: Node, g: Node) -> tuple[Node | None, ...]:
    a, b = n.args
    return g, apply("neg", _mul(g, apply("floor", apply("div", a, b))))


def _d_extreme(n: Node, g: Node) -> tuple[Node | None, ...]:
    (v,) = n.args  # torch spreads the gradient evenly over all extreme elements
    hit = apply("eq", v, n)
    count = apply("sum", apply("to_f32", hit))
    return (apply("where", hit, apply("div", g, count), _f(0)),)


def _unary(derivative: Callable[[Node, Node], Node]) -> Derivative:
    """Derivative of a one-operand op, from `derivative(operand, result)`."""
    return lambda n, g: (_mul(g, derivative(n.args[0], n)),)


def _square(a: Node) -> Node:
    return apply("mul", a, a)


_LN2, _2_SQRT_PI = math.log(2.0), 2.0 / math.sqrt(math.pi)
_d_exp = _unary(lambda x, y: y)
_d_exp2 = _unary(lambda x, y: _mul(y, _f(_LN2)))
_d_expm1 = _unary(lambda x, y: apply("add", y, _f(1)))
_d_log = _unary(lambda x, y: apply("div", _f(1), x))
_d_log2 = _unary(lambda x, y: apply("div", _f(1 / _LN2), x))
_d_log1p = _unary(lambda x, y: apply("div", _f(1), apply("add", x, _f(1))))
_d_sqrt = _unary(lambda x, y: apply("div", _f(0.5), y))
_d_rsqrt = _unary(lambda x, y: _mul(_f(-0.5), _mul(y, _square(y))))
_d_sin = _unary(lambda x, y: apply("cos", x))
_d_cos = _unary(lambda x, y: apply("neg", apply("sin", x)))
_d_tanh = _unary(lambda x, y: apply("sub", _f(1), _square(y)))
_d_sigmoid = _unary(lambda x, y: _mul(y, apply("sub", _f(1), y)))
_d_erf = _unary(lambda x, y: _mul(_f(_2_SQRT_PI), apply("exp", apply("neg", _square(x)))))
_d_atan = _unary(lambda x, y: apply("div", _f(1), apply("add", _square(x), _f(1))))
_d_abs = _unary(lambda x, y: apply("sign", x))


# ---- the table -----------------------------------------------------------------------------------

_T = torch
_ROWS: Final[tuple[Op, ...]] = (
    # arithmetic
    Op("add", ARITHMETIC2, _T.add, lambda n, g: (g, g), iv.add, Infix("+", 10), pipe="fma"),
    Op("sub", ARITHMETIC2, _T.sub, lambda n, g: (g, apply("neg", g)), iv.sub, Infix("-", 10),
       pipe="fma"),
    Op("mul", ARITHMETIC2, _T.mul, lambda n, g: (_mul(g, n.args[1]), _mul(g, n.args[0])), iv.mul,
       Infix("*", 11), pipe="fma"),
    Op("div", FLOAT2, _T.div, _d_div, iv.div, Infix("/", 11), pipe="mufu",
       cost=8),
    Op("floordiv", ARITHMETIC2, _T.floor_divide, None, iv.floordiv, Infix("//", 11),
       ("floor_divide",), "alu", 10),
    Op("mod", ARITHMETIC2, _T.remainder, _d_mod, iv.mod, Infix("%", 11), ("remainder",), "alu", 12),
    Op("pow", ARITHMETIC2, _T.pow, _d_pow, fn.pow_, Infix("**", 13), ("pow",), "mufu", 3),
    Op("neg", ARITHMETIC1, _T.neg, lambda n, g: (apply("neg", g),), iv.neg, Prefix("-", 12),
       pipe="fma", cost=0),
    Op("abs", ARITHMETIC1, _T.abs, _d_abs, iv.abs_, Call("abs"), ("abs", "absolute"), "alu"),
    Op("sign", ARITHMETIC1, _T.sign, None, iv.sign, Call("sign"), ("sign", "sgn"), "alu", 3),
    Op("min", ARITHMETIC2, lambda a, b: _T.minimum(*_pair(a, b)), _d_minmax, iv.min_, Call("min"),
       ("minimum",), "alu"),
    Op("max", ARITHMETIC2, lambda a, b: _T.maximum(*_pair(a, b)), _d_minmax, iv.max_, Call("max"),
       ("maximum",), "alu"),
    # functions of one float
    Op("exp", FLOAT1, _T.exp, _d_exp, fn.exp, Call("exp"), ("exp",), "mufu", 1),
    Op("exp2", FLOAT1, _T.exp2, _d_exp2, fn.exp2, Call("exp2"), ("exp2",), "mufu", 1),
    Op("expm1", FLOAT1, _T.expm1, _d_expm1, fn.expm1, Call("expm1"), ("expm1",), "mufu", 3),
    Op("log", FLOAT1, _T.log, _d_log, fn.log, Call("log"), ("log",), "mufu", 1),
    Op("log2", FLOAT1, _T.log2, _d_log2, fn.log2, Call("log2"), ("log2",), "mufu", 1),
    Op("log1p", FLOAT1, _T.log1p, _d_log1p, fn.log1p, Call("log1p"), ("log1p",), "mufu", 3),
    Op("sqrt", FLOAT1, _T.sqrt, _d_sqrt, fn.sqrt, Call("sqrt"), ("sqrt",), "mufu", 2),
    Op("rsqrt", FLOAT1, _T.rsqrt, _d_rsqrt, fn.rsqrt, Call("rsqrt"), ("rsqrt",), "mufu", 1),
    Op("sin", FLOAT1, _T.sin, _d_sin, fn.unit, Call("sin"), ("sin",), "mufu", 2),
    Op("cos", FLOAT1, _T.cos, _d_cos, fn.unit, Call("cos"), ("cos",), "mufu", 2),
    Op("tanh", FLOAT1, _T.tanh, _d_tanh, fn.tanh, Call("tanh"), ("tanh",), "mufu", 1),
    Op("sigmoid", FLOAT1, _T.sigmoid, _d_sigmoid, fn.sigmoid, Call("sigmoid"), ("sigmoid",),
       "mufu", 2),
    Op("erf", FLOAT1, _T.erf, _d_erf, fn.erf, Call("erf"), ("erf",), "fma", 12),
    Op("atan", FLOAT1, _T.atan, _d_atan, fn.atan, Call("atan"), ("atan", "arctan"), "fma", 12),
    Op("floor", FLOAT1, _T.floor, None, iv.floor, Call("floor")),
    Op("ceil", FLOAT1, _T.ceil, None, iv.ceil, Call("ceil")),
    Op("round", FLOAT1, _T.round, None, iv.round_, Call("round")),
    Op("trunc", FLOAT1, _T.trunc, None, iv.trunc, Call("trunc")),
    # comparisons
    Op("lt", COMPARE, _T.lt, None, iv.lt, Infix("<", 5), ("lt", "less")),
    Op("le", COMPARE, _T.le, None, iv.le, Infix("<=", 5), ("le", "less_equal")),
    Op("gt", COMPARE, _T.gt, None, iv.gt, Infix(">", 5), ("gt", "greater")),
    Op("ge", COMPARE, _T.ge, None, iv.ge, Infix(">=", 5), ("ge", "greater_equal")),
    Op("eq", COMPARE, _T.eq, None, iv.eq, Infix("==", 5), ("eq",)),
    Op("ne", COMPARE, _T.ne, None, iv.ne, Infix("!=", 5), ("ne", "not_equal")),
    # logic on bools, bits on integers
    Op("and", BITS2, _T.bitwise_and, None, bits.and_, Infix("&", 8), ("bitwise_and",)),
    Op("xor", BITS2, _T.bitwise_xor, None, bits.xor, Infix("^", 7), ("bitwise_xor",)),
    Op("or", BITS2, _T.bitwise_or, None, bits.or_, Infix("|", 6), ("bitwise_or",)),
    Op("not", BITS1, _T.bitwise_not, None, iv.not_, Prefix("~", 12), ("bitwise_not",)),
    Op("shl", SHIFT, _T.bitwise_left_shift, None, bits.shl, Infix("<<", 9),
       ("bitwise_left_shift",)),
    Op("shr", SHIFT, _T.bitwise_right_shift, None, bits.shr, Infix(">>", 9),
       ("bitwise_right_shift",)),
    # selection and conversion
    Op("where", SELECT, _where,
       lambda n, g: (None, apply("where", n.args[0], g, _f(0)), apply("where", n.args[0], _f(0),
       g)), iv.where, Call("where"), ("where",)),
    Op("to_f32", DTypeRule(1, _ANY, F32), _cast_eager(F32), lambda n, g: (g,), iv.to_f32,
       Call("f32")),
    Op("to_i32", DTypeRule(1, _ANY, I32), _cast_eager(I32), None, iv.to_i32, Call("i32")),
    Op("to_bool", DTypeRule(1, _ANY, BOOL), _cast_eager(BOOL), None, iv.to_bool, Call("bool")),
    # reductions of a vector
    Op("sum", ARITHMETIC1, lambda v: v.sum(-1), lambda n, g: (g,), iv.sum_, Call("sum"),
       pipe="fma", reduces=True),
    Op("amax", ARITHMETIC1, lambda v: v.amax(-1), _d_extreme, iv.same, Call("amax"),
       reduces=True),
    Op("amin", ARITHMETIC1, lambda v: v.amin(-1), _d_extreme, iv.same, Call("amin"),
       reduces=True),
    Op("any", DTypeRule(1, _B), lambda v: v.any(-1), None, iv.same, Call("any"),
       reduces=True),
    Op("all", DTypeRule(1, _B), lambda v: v.all(-1), None, iv.same, Call("all"),
       reduces=True),
)  # fmt: skip

OPS: Final[dict[str, Op]] = {row.name: row for row in _ROWS}


def promote(*args: Node, minimum: DType = BOOL) -> tuple[Node, ...]:
    """Convert the operands to their common dtype (bool < i32 < f32), at least `minimum`."""
    target = max((*(a.dtype for a in args), minimum), key=_RANK.__getitem__)
    return tuple(cast(a, target) for a in args)


def cast(node: Node, dtype: DType) -> Node:
    """Return `node` converted to `dtype`: itself where it has it, a constant for a constant."""
    if node.dtype is dtype:
        return node
    # a float outside 64 bits, or NaN, is no integer: that is left to the device
    if node.op == "const" and (dtype is not I32 or abs(node.attr) < 2**63):
        return const(node.attr, dtype)
    return intern("to_" + dtype.value, (node,), None, dtype, node.length)


def apply(name: str, *args: Node) -> Node:
    """Return the node of op `name` on `args`, converted by the op's dtype rule.

    Raises:
        OperandError: the dtypes or vector lengths do not go together.
    """
    row, rule = OPS[name], OPS[name].dtypes
    assert len(args) == rule.arity, f"{name} takes {rule.arity} operands"
    if name.startswith("to_"):
        return cast(args[0], DType(name[3:]))
    if rule.first is not None:
        head, tail = args[:1], promote(*args[1:], minimum=rule.minimum)
        accepted = head[0].dtype is rule.first and tail[0].dtype in rule.operands
    else:
        head, tail = (), promote(*args, minimum=rule.minimum)
        accepted = tail[0].dtype in rule.operands
    if not accepted or not (rule.mixed or len({a.dtype for a in args}) == 1):
        raise _operand_error(name, args, rule)
    operands = head + tail
    lengths = {a.length for a in operands} - {None}
    if len(lengths) > 1 or (row.reduces and not lengths):
        raise _length_error(name, args, row.reduces)
    length = None if row.reduces else lengths.pop() if lengths else None
    return intern(name, operands, None, rule.result or tail[0].dtype, length)


def written(name: str) -> str:
    """Return how people write an op: its operator's symbol, or its function's name."""
    text = OPS[name].text
    return text.name if isinstance(text, Call) else text.symbol


def _operand_error(name: str, args: tuple[Node, ...], rule: DTypeRule) -> OperandError:
    names = sorted(d.value for d in rule.operands)
    first = f"{rule.first.value} first, then " if rule.first else ""
    alike = ", the same for both" if not rule.mixed else ""
    hint = "a condition: compare with != 0" if rule.first or BOOL in rule.operands else "a number"
    return OperandError(
        name=f"`{written(name)}`",
        operands=", ".join(a.dtype.value for a in args),
        expected=first + " or ".join(names) + alike,
        rewrite=f"convert the operand to {hint}",
    )


def _length_error(name: str, args: tuple[Node, ...], reduces: bool) -> OperandError:
    shapes = ", ".join("a number" if a.length is None else f"a vector of {a.length}" for a in args)
    return OperandError(
        name=f"`{written(name)}`",
        operands=shapes,
        expected="a vector" if reduces else "numbers, and vectors of one length",
        rewrite="index the captured tensors so that one axis of the same size is left",
    )
