"""Values that record what a mod does with them.

`Traced` wraps one node of the graph.  Its operators, its methods and, through torch's
``__torch_function__``, torch's functions give new traced values.  `Operators` is the part that it
shares with values that are known while tracing (`hosts`) and with captured tensors that are indexed
in part (`indexing`).

Everything that a traced value can do goes through three doors: `operate` (operators),
`torch_functions.call` (functions and methods) and the refusals below (``bool()``, ``int()``,
iteration ...), which find out who asked (`locate`) and say what to write instead.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NoReturn

import torch

from flexfa4.errors import (
    IndexingError,
    OperandError,
    TracedBoolError,
    TracedNumberError,
    UnsupportedFunctionError,
)
from flexfa4.frontend import integers, ir, ops
from flexfa4.frontend.ir import BOOL, F32, I32, DType, Node
from flexfa4.frontend.tracing import locate

TORCH_DTYPES: Final = {F32: torch.float32, I32: torch.int64, BOOL: torch.bool}

# name of the op in the table -> Python's function, for values known while tracing
OPERATORS: Final[dict[str, Callable[..., Any]]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "floordiv": operator.floordiv, "mod": operator.mod, "pow": operator.pow,
    "matmul": operator.matmul, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    "shl": operator.lshift, "shr": operator.rshift, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
    "neg": operator.neg, "not": operator.invert, "abs": abs, "pos": operator.pos,
}  # fmt: skip


def dtype_class(dtype: torch.dtype) -> DType:
    """Return the IR's type for a torch dtype.

    Every floating dtype is F32: computing in a narrower one than the scores is not expressed.
    """
    if dtype is torch.bool:
        return BOOL
    return F32 if dtype.is_floating_point else I32


def op(name: str, *args: Node) -> Node:
    """Apply an op of the table.

    Raises:
        OperandError: the dtypes or vector lengths do not go together.
    """
    if problem := integers.problem(name, args):
        raise OperandError(where=locate.here(), name=f"`{ops.written(name)}`", **vars(problem))
    return build(partial(ops.apply, name), *args)


def build(function: Callable[..., Node], *args: Node | None) -> Node:
    """Build a node; the one place where operand errors get the user's line.

    Raises:
        OperandError: the dtypes or vector lengths do not go together.
    """
    try:
        return function(*args)
    except OperandError as error:
        fields = dict(error.fields)
        if fields["name"].strip("`") in ("&", "|", "^"):
            fields["rewrite"] = locate.parentheses() or fields["rewrite"]
        raise OperandError(where=locate.here(), **fields) from None


def as_node(value: Any) -> Node:
    """Return the node of an operand: a traced or captured value, a number or a bool.

    Raises:
        OperandError: the value is none of these.
    """
    if isinstance(value, Operators):
        return value.node
    if isinstance(value, torch.Tensor):
        from flexfa4.frontend.tracing.hosts import constant

        return constant(value)
    if isinstance(value, (bool, float)):
        return ir.const(value)
    if isinstance(value, numbers.Integral):
        return _integer(int(value))
    if isinstance(value, numbers.Real):
        return ir.const(float(value))
    raise OperandError(
        where=locate.here(),
        name="an operation on scores or indices",
        operands=f"a {type(value).__name__}",
        expected="traced values, captured tensors, numbers and bools",
        rewrite="convert it to a number or a tensor",
    )


def _integer(value: int) -> Node:
    if not integers.fits(value):
        raise OperandError(
            where=locate.here(),
            name="an operation on scores or indices",
            operands="an int beyond 64 bits",
            expected=f"ints from {integers.LOWEST} to {integers.HIGHEST}",
            rewrite="a float, such as 1e20",
        )
    return ir.const(value)


def is_operand(value: Any) -> bool:
    """Return whether `as_node` takes the value."""
    return isinstance(value, (Operators, torch.Tensor, numbers.Real))


def operate(name: str, *args: Any) -> Any:
    """Apply an operator to operands of which at least one is an `Operators`."""
    if torch.compiler.is_dynamo_compiling():
        from flexfa4.frontend.tracing import tape

        if (running := tape.running()) is not None:
            return running.operate(name, args)
    from flexfa4.frontend.tracing import hosts, torch_functions

    if not hosts.any_traced(args):
        return hosts.evaluate(OPERATORS[name], args, {})
    if name in ("eq", "ne") and not all(map(is_operand, args)):
        return NotImplemented  # as tensors do: q == None is False
    for arg in args:
        if not is_operand(arg) and _has_reflected(arg, name):
            return NotImplemented
    return torch_functions.OPERATIONS[name](*args)


def _has_reflected(value: Any, name: str) -> bool:
    """Return whether a class of the user's says what the operator means with it on the right."""
    method = f"__r{OPERATORS[name].__name__.strip('_')}__"
    return type(value).__module__ != "builtins" and hasattr(type(value), method)


def refuse_number() -> NoReturn:
    """Refuse to give Python one number for a value that differs from score to score."""
    request = locate.number_request()
    raise TracedNumberError(
        where=request.where,
        construct=request.construct,
        expression=request.expression,
        rewrite=request.rewrite,
    )


def _binary(name: str) -> Callable[[Any, Any], Any]:
    return lambda self, other: operate(name, self, other)


def _reflected(name: str) -> Callable[[Any, Any], Any]:
    return lambda self, other: operate(name, other, self)


def _unary(name: str) -> Callable[[Any], Any]:
    return lambda self: operate(name, self)


def _in_place(name: str) -> Callable[[Any, Any], Any]:
    def change(self: Operators, other: Any) -> Any:
        result = operate(name, self, other)
        self.note_change(ops.written(name) + "=")
        return result

    return change


def refuse_changed(change: str) -> NoReturn:
    """Refuse to read a value that an in-place operator changed under another name.

    torch changes the one tensor, whatever its names; values of a graph stay what they are.
    """
    raise UnsupportedFunctionError(
        where=locate.here(),
        name=f"reading a value by one name after `{change}` changed it by another",
        names="values that stay what they are",
        rewrite=f"the operator that gives a new value: y = y {change.removesuffix('=')} x",
    )


class Operators:
    """Base of all values that stand for something else while a mod is traced."""

    __slots__ = ()

    @property
    def node(self) -> Node:
        """The value as a node of the graph."""
        raise AssertionError("each subclass has its own")

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        from flexfa4.frontend.tracing import torch_functions

        return torch_functions.dispatch(func, args, kwargs or {})

    def __array_ufunc__(self, function: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        from flexfa4.frontend.tracing import numpy_functions

        return numpy_functions.ufunc(function, method, args, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        from flexfa4.frontend.tracing import numpy_functions

        return numpy_functions.call(function, args, kwargs)

    __add__, __radd__ = _binary("add"), _reflected("add")
    __sub__, __rsub__ = _binary("sub"), _reflected("sub")
    __mul__, __rmul__ = _binary("mul"), _reflected("mul")
    __truediv__, __rtruediv__ = _binary("div"), _reflected("div")
    __floordiv__, __rfloordiv__ = _binary("floordiv"), _reflected("floordiv")
    __mod__, __rmod__ = _binary("mod"), _reflected("mod")
    __pow__, __rpow__ = _binary("pow"), _reflected("pow")
    __matmul__, __rmatmul__ = _binary("matmul"), _reflected("matmul")
    __and__, __rand__ = _binary("and"), _reflected("and")
    __or__, __ror__ = _binary("or"), _reflected("or")
    __xor__, __rxor__ = _binary("xor"), _reflected("xor")
    __lshift__, __rlshift__ = _binary("shl"), _reflected("shl")
    __rshift__, __rrshift__ = _binary("shr"), _reflected("shr")
    __lt__, __le__ = _binary("lt"), _binary("le")
    __gt__, __ge__ = _binary("gt"), _binary("ge")
    __eq__ = _binary("eq")
    __ne__ = _binary("ne")
    __neg__, __pos__ = _unary("neg"), _unary("pos")
    __invert__, __abs__ = _unary("not"), _unary("abs")
    __iadd__, __isub__, __imul__ = _in_place("add"), _in_place("sub"), _in_place("mul")
    __itruediv__, __ifloordiv__ = _in_place("div"), _in_place("floordiv")
    __imod__, __ipow__ = _in_place("mod"), _in_place("pow")
    __iand__, __ior__, __ixor__ = _in_place("and"), _in_place("or"), _in_place("xor")
    __ilshift__, __irshift__ = _in_place("shl"), _in_place("shr")
    __hash__ = object.__hash__

    def note_change(self, change: str) -> None:
        """Note that an in-place operator gave another value; numbers have stayed what they were."""

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return operate("floordiv", self, other), operate("mod", self, other)

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return operate("floordiv", other, self), operate("mod", other, self)


class Traced(Operators):
    """A value of the graph: what a mod computes for one score.

    Behaves as a 0-dim tensor, or as a 1-dim tensor where a captured tensor is read along an axis.
    The dtype is ``float32`` (the score type), ``int64`` or ``bool``.
    """

    __slots__ = ("_change", "_node")

    def __init__(self, node: Node) -> None:
        self._node = node
        self._change = ""

    @property
    def node(self) -> Node:
        """The node of the graph."""
        if self._change:
            refuse_changed(self._change)
        return self._node

    def note_change(self, change: str) -> None:
        """Make reading the value an error; expressions of sizes are numbers to Python."""
        if self._node.depends:
            self._change = change

    def __repr__(self) -> str:
        from flexfa4.frontend.text.printing import expression

        return expression(self._node)

    def __format__(self, spec: str) -> str:
        return refuse_number() if spec else repr(self)

    # ---- what torch tensors have --------------------------------------------------------------

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that stands for the value's type."""
        return TORCH_DTYPES[self._node.dtype]

    @property
    def device(self) -> torch.device:
        """The device on which constants may be made: the CPU, wherever the call runs."""
        return torch.device("cpu")

    @property
    def shape(self) -> torch.Size:
        """``()``, or ``(n,)`` for a vector."""
        length = self._node.length
        return torch.Size(() if length is None else (length,))

    @property
    def ndim(self) -> int:
        """0, or 1 for a vector."""
        return len(self.shape)

    @property
    def requires_grad(self) -> bool:
        """False: gradients are taken of the graph, not of traced values."""
        return False

    def __getattr__(self, name: str) -> Any:
        """Return a tensor method by its name; the table of `torch_functions` says which exist."""
        from flexfa4.frontend.tracing import torch_functions

        return torch_functions.method(self, name)

    def __getitem__(self, index: Any) -> Any:
        if index is Ellipsis or index == ():
            return self
        raise IndexingError(
            where=locate.here(),
            name="a value of the mod",
            index="[...]",
            expected="indexing of captured tensors; a value of the mod is one number",
            rewrite="use the value itself, or index the captured tensor that it comes from",
        )

    def __setitem__(self, index: Any, value: Any) -> None:
        raise UnsupportedFunctionError(
            where=locate.here(),
            name="assignment to an item",
            names="operators and torch.where",
            rewrite="torch.where(condition, new, old)",
        )

    # ---- what would need a value ----------------------------------------------------------------

    def __bool__(self) -> bool:
        if self._node.op == "const":
            return bool(self._node.attr)
        request = locate.truth_request()
        raise TracedBoolError(
            where=request.where,
            construct=request.construct,
            expression=request.expression,
            rewrite=request.rewrite,
        )

    def _refuse_number(self, *args: Any, **kwargs: Any) -> NoReturn:
        refuse_number()

    __int__ = __float__ = __index__ = __complex__ = __array__ = _refuse_number

    def __iter__(self) -> Iterator[Any]:
        refuse_number()

    def __len__(self) -> int:
        if self._node.length is None:
            raise OperandError(
                where=locate.here(),
                name="`len()`",
                operands="a value of the mod, which is one number",
                expected="vectors and captured tensors",
                rewrite="len() of the captured tensor",
            )
        return self._node.length

    def __round__(self, digits: int = 0) -> Any:
        return self.round(decimals=digits)

    def __floor__(self) -> Any:
        return self.floor()

    def __ceil__(self) -> Any:
        return self.ceil()

    def __trunc__(self) -> Any:
        return self.trunc()


def inputs(kind: str) -> tuple[Traced, ...]:
    """Return the arguments of a mod: ``score, b, h, q_idx, kv_idx``, without score for a mask."""
    names = list(ir.INPUTS) if kind == "score" else list(ir.INPUTS)[1:]
    return tuple(Traced(ir.input_(name)) for name in names)


q_len: Final = Traced(ir.symbol("q_len"))
kv_len: Final = Traced(ir.symbol("kv_len"))
num_heads: Final = Traced(ir.symbol("num_heads"))
num_kv_heads: Final = Traced(ir.symbol("num_kv_heads"))
