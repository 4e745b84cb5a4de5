"""What torch's functions mean in the graph, by name.

Names that are one op come from the ops table; the rest are compositions, each written so that its
values (NaN and infinities included) and its derivative follow torch.  `activations` and
`conversions` add to the table.  When a name is looked up is the business of `torch_functions`.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

import torch

from flexfa4.errors import OperandError, UnsupportedFunctionError
from flexfa4.frontend import composed
from flexfa4.frontend.ir import BOOL, F32, I32, DType, Node
from flexfa4.frontend.ops import OPS
from flexfa4.frontend.tracing import hosts, locate
from flexfa4.frontend.tracing.proxies import (
    Operators,
    Traced,
    as_node,
    build,
    dtype_class,
    op,
)

Handler = Callable[..., Any]
H = TypeVar("H", bound=Handler)
FUNCTIONS: Final[dict[str, Handler]] = {}
"""torch's name -> what it does to operands of which some are traced; signatures are torch's."""

_FAMILIES: Final = (
    "element-wise functions (torch.where, exp, log, tanh, abs, clamp, minimum, maximum ...), "
    "comparisons, indexing, and reductions over one axis; docs/mods.md lists them all"
)
_OUTSIDE: Final = "these, or compute it outside the mod into a captured tensor"
_INDEXING: Final = "indexing: table[i, j]"
_SORTED: Final = "torch.sort outside the mod: capture the result and index it"
_SOFTMAX: Final = "the score alone: attention takes the softmax of what the mod returns"
_STOPPED: Final = (
    "the value with its gradient, for a mod cannot stop the gradient of a part of it; "
    "a captured tensor is detached outside: t = t.detach()"
)
_MEMBERSHIP: Final = "(kv_idx == a) | (kv_idx == b), or a captured table of bools: table[kv_idx]"
INSTEAD: Final = {
    "isin": _MEMBERSHIP,
    "embedding": "indexing of the weights: weight[index, h]",
    "softmax": _SOFTMAX, "log_softmax": _SOFTMAX, "softmin": _SOFTMAX, "logsumexp": _SOFTMAX,
    "index_select": _INDEXING, "gather": _INDEXING, "take": _INDEXING,
    "take_along_dim": _INDEXING, "index": _INDEXING,
    "sort": _SORTED, "argsort": _SORTED, "topk": _SORTED, "searchsorted": _SORTED,
    "detach": _STOPPED, "detach_": _STOPPED, "requires_grad_": _STOPPED, "stop_gradient": _STOPPED,
    "linear": "the layer applied outside the mod, and its result indexed inside",
}  # fmt: skip
"""torch's function that a mod cannot have -> what to write instead."""


def unsupported(name: str, rewrite: str = "") -> NoReturn:
    """Refuse a function outside the vocabulary.

    Args:
        name: torch's name of it.
        rewrite: what to write instead, by default what the table of advice says.
    """
    plain = name.rstrip("_").lstrip(".")
    rewrite = rewrite or INSTEAD.get(name.lstrip("."), "") or INSTEAD.get(plain, "")
    if not rewrite and name.endswith("_") and name[:2] != "__":
        rewrite = f"the form that gives a new value: x = x.{plain}(...)"
    public = [n for n in FUNCTIONS if hasattr(torch, n) or hasattr(torch.nn.functional, n)]
    # a name that is spelled alike helps where it is a slip, not where it is another function
    near = difflib.get_close_matches(plain, public, n=2, cutoff=0.8) if not rewrite else []
    raise UnsupportedFunctionError(
        where=locate.here(),
        name=f"`{name}`",
        names=", ".join([*near, _FAMILIES]),
        rewrite=rewrite or _OUTSIDE,
    )


# What a captured integer on the right must be, on each call, with integers on the left.
_DIVISORS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "floordiv": (lambda v: v != 0, "not zero"),
    "mod": (lambda v: v != 0, "not zero"),
    "pow": (lambda v: v >= 0, "not negative"),
}


# ---- building blocks -----------------------------------------------------------------------------


def apply(name: str, *args: Any) -> Traced:
    """Apply an op to operands of any kind."""
    nodes = [as_node(a) for a in args]
    if (
        name in _DIVISORS
        and type(args[1]) is hosts.HostScalar
        and F32 not in {n.dtype for n in nodes}
    ):
        hosts.require(args[1], *_DIVISORS[name], name)
    return Traced(op(name, *nodes))


def where(condition: Any, a: Any, b: Any) -> Traced:
    """Choose between operands of any kind."""
    return apply("where", condition, a, b)


def cast(x: Any, dtype: DType) -> Traced:
    """Convert an operand of any kind."""
    return apply("to_" + dtype.value, x)


def dtype_of(*args: Any) -> DType:
    """Return the common dtype of operands."""
    order = [BOOL, I32, F32]
    return max((as_node(a).dtype for a in args), key=order.index)


def register(*names: str) -> Callable[[H], H]:
    """Enter a function into the table under these names, which nobody has entered before."""

    def add(handler: H) -> H:
        for name in names:
            assert name not in FUNCTIONS, f"{name} has two meanings"
            FUNCTIONS[name] = handler
        return handler

    return add


def _fixed(handler: Handler, arity: int) -> Handler:
    """Give a handler of any number of operands the signature of one with `arity`."""
    names = ("input", "other", "third")[:arity]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(n, kind) for n in names]

    def fixed(*args: Any, **kwargs: Any) -> Any:
        return handler(*args, *(kwargs[n] for n in names if n in kwargs))

    fixed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return fixed


for _row in OPS.values():
    register(*_row.torch)(_fixed(partial(apply, _row.name), _row.dtypes.arity))


@register("__getitem__")
def _getitem(tensor: Any, index: Any) -> Any:
    whole = tensor if isinstance(tensor, Operators) else hosts.adopt(tensor)
    return whole[index]  # type: ignore[index]


@register("select")
def _select(input: Any, dim: int, index: Any) -> Any:
    return _getitem(input, (slice(None),) * (dim % input.ndim) + (index,))


# ---- arithmetic: torch's extra arguments, and its meaning on bools -------------------------------


@register("add")
def _add(input: Any, other: Any, alpha: Any = None) -> Traced:
    scaled = other if alpha is None else _mul(other, alpha)
    return apply("or" if dtype_of(input, scaled) is BOOL else "add", input, scaled)


@register("mul", "multiply")
def _mul(input: Any, other: Any) -> Traced:
    return apply("and" if dtype_of(input, other) is BOOL else "mul", input, other)


@register("sub", "subtract")
def _sub(input: Any, other: Any, alpha: Any = None) -> Traced:
    if dtype_of(input, other) is BOOL:
        _refuse_bools("-", "a ^ b, or a & ~b")
    return apply("sub", input, other if alpha is None else _mul(other, alpha))


@register("rsub")
def _rsub(input: Any, other: Any, alpha: Any = None) -> Traced:
    return _sub(other, input, alpha)


@register("neg", "negative")
def _neg(input: Any) -> Traced:
    if dtype_of(input) is BOOL:
        _refuse_bools("-", "~condition")
    return apply("neg", input)


@register("pos", "positive")
def _pos(input: Any) -> Traced:
    return Traced(as_node(input))


def _refuse_bools(name: str, advice: str) -> NoReturn:
    raise OperandError(
        where=locate.here(), name=f"`{name}`", operands="bool", expected="numbers", rewrite=advice
    )


@register("div", "divide", "true_divide")
def _div(input: Any, other: Any, rounding_mode: str | None = None) -> Traced:
    if rounding_mode == "floor":
        return apply("floordiv", input, other)
    if rounding_mode == "trunc" and dtype_of(input, other) is not F32:
        size = apply("floordiv", apply("abs", input), apply("abs", other))
        return where(apply("lt", apply("mul", input, other), 0), apply("neg", size), size)
    quotient = apply("div", input, other)
    return apply("trunc", quotient) if rounding_mode == "trunc" else quotient


@register("fmod")
def _fmod(input: Any, other: Any) -> Traced:
    # C's remainder has the sign of the dividend; by `where`, for abs has no derivative at 0
    is_negative = apply("lt", input, 0)
    rest = apply("mod", where(is_negative, apply("neg", input), input), apply("abs", other))
    return where(is_negative, apply("neg", rest), rest)


def _rounding(name: str) -> Handler:
    def handler(input: Any) -> Traced:  # integers are whole already
        return apply(name, input) if dtype_of(input) is F32 else Traced(as_node(input))

    return handler


for _names in (("floor",), ("ceil",), ("trunc", "fix")):
    register(*_names)(_rounding(_names[0]))


@register("round")
def _round(input: Any, decimals: int = 0) -> Traced:
    if dtype_of(input) is not F32:
        return Traced(as_node(input))
    if decimals == 0:
        return apply("round", input)
    scale = 10.0**decimals
    return apply("div", apply("round", apply("mul", input, scale)), scale)


@register("matmul", "dot", "inner", "vdot")
def _dot(input: Any, other: Any) -> Traced:
    return _sum(_mul(input, other), -1)


# ---- reductions over the one axis of a vector ----------------------------------------------------


def _vector(x: Any, dim: Any, name: str, keepdim: bool) -> Node:
    if keepdim:
        raise OperandError(
            where=locate.here(),
            name=f"`{name}`",
            operands="keepdim=True",
            expected="keepdim=False: the result is one number, which goes with vectors as it is",
            rewrite=f"x.{name}(-1)",
        )
    if dim not in (None, 0, -1, (0,), (-1,), [0], [-1]):
        raise OperandError(
            where=locate.here(),
            name=f"`{name}`",
            operands=f"dim={dim!r}",
            expected="dim=-1 or none: a value of the mod is a number or a vector",
            rewrite=f"x.{name}(-1)",
        )
    return as_node(x)


def _reduction(name: str, x: Any, dim: Any, keepdim: bool = False) -> Traced:
    node = _vector(x, dim, name, keepdim)
    return Traced(node) if node.length is None else apply(name, Traced(node))


@register("sum")
def _sum(input: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Traced:
    x = input if dtype is None else cast(input, dtype_class(dtype))
    return _reduction("sum", cast(x, I32) if dtype_of(x) is BOOL else x, dim, keepdim)


@register("mean")
def _mean(input: Any, dim: Any = None, keepdim: bool = False) -> Traced:
    length = _vector(input, dim, "mean", keepdim).length
    return apply("div", _sum(input, dim), length or 1)


def _truth_reduction(name: str) -> Handler:
    return lambda input, dim=None, keepdim=False: _reduction(name, cast(input, BOOL), dim, keepdim)


register("any")(_truth_reduction("any"))
register("all")(_truth_reduction("all"))


def _extreme(reduction: str, pairwise: str) -> None:
    def amax(input: Any, dim: Any = None, keepdim: bool = False) -> Traced:
        return _reduction(reduction, input, dim, keepdim)

    def max_(input: Any, other: Any = None) -> Traced:
        if other is None:
            return _reduction(reduction, input, None)
        if isinstance(other, int) and as_node(input).length is not None:
            unsupported(pairwise + " with dim", f"x.{reduction}(-1)")
        return apply(pairwise, input, other)

    register(reduction)(amax)
    register(pairwise)(max_)


_extreme("amax", "max")
_extreme("amin", "min")


# ---- selection -----------------------------------------------------------------------------------


@register("clamp", "clip")
def _clamp(input: Any, min: Any = None, max: Any = None) -> Traced:
    bounds = (None if bound is None else as_node(bound) for bound in (min, max))
    return Traced(build(composed.clamp, as_node(input), *bounds))


@register("clamp_min")
def _clamp_min(input: Any, min: Any) -> Traced:
    return _clamp(input, min)


@register("clamp_max")
def _clamp_max(input: Any, max: Any) -> Traced:
    return _clamp(input, None, max)


@register("masked_fill")
def _masked_fill(input: Any, mask: Any, value: Any) -> Traced:
    return where(mask, value, input)


@register("fmin")
def _fmin(input: Any, other: Any) -> Traced:
    return where(apply("or", apply("le", input, other), _isnan(other)), input, other)


@register("fmax")
def _fmax(input: Any, other: Any) -> Traced:
    return where(apply("or", apply("ge", input, other), _isnan(other)), input, other)


@register("nan_to_num")
def _nan_to_num(input: Any, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Traced:
    limit = torch.finfo(torch.float32).max
    x = where(_isnan(input), nan, input)
    x = where(apply("eq", x, math.inf), limit if posinf is None else posinf, x)
    return where(apply("eq", x, -math.inf), -limit if neginf is None else neginf, x)


# ---- tests and logic ---------------------------------------------------------------------------


@register("isnan")
def _isnan(input: Any) -> Traced:
    return Traced(build(composed.isnan, as_node(input)))


@register("isinf")
def _isinf(input: Any) -> Traced:
    return apply("eq", apply("abs", input), math.inf)


@register("isfinite")
def _isfinite(input: Any) -> Traced:
    return apply("lt", apply("abs", input), math.inf)


@register("isposinf")
def _isposinf(input: Any) -> Traced:
    return apply("eq", input, math.inf)


@register("isneginf")
def _isneginf(input: Any) -> Traced:
    return apply("eq", input, -math.inf)


@register("logical_not")
def _logical_not(input: Any) -> Traced:
    return apply("not", cast(input, BOOL))


def _logical(name: str) -> Handler:
    return lambda input, other: apply(name, cast(input, BOOL), cast(other, BOOL))


for _name in ("and", "or", "xor"):
    register(f"logical_{_name}")(_logical(_name))


# ---- the names of Python's operators, by which torch calls them --------------------------------


def _swapped(handler: Handler) -> Handler:
    return lambda input, other: handler(other, input)


OPERATIONS: Final[dict[str, Handler]] = {
    name: FUNCTIONS[torch_name]
    for name, torch_name in {
        "floordiv": "floor_divide", "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or",
        "xor": "bitwise_xor", "not": "bitwise_not", "shl": "bitwise_left_shift",
        "shr": "bitwise_right_shift",
        **{n: n for n in ("add", "sub", "mul", "div", "pow", "matmul", "neg", "pos", "abs")},
        **{n: n for n in ("eq", "ne", "lt", "le", "gt", "ge")},
    }.items()
}  # fmt: skip
"""Name of an op that has an operator -> what the operator does to operands of which some are
traced."""

_PYTHON_NAMES: Final = {
    "truediv": "div", "lshift": "shl", "rshift": "shr", "invert": "not",
    **{name: name for name in OPERATIONS if name not in ("shl", "shr", "not")},
}  # fmt: skip
for _python, _name in _PYTHON_NAMES.items():
    register(f"__{_python}__")(OPERATIONS[_name])
    register(f"__r{_python}__")(_swapped(OPERATIONS[_name]))
