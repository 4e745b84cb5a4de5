"""Captured values while a mod is traced: known now, read again on each call.

A `HostScalar` stands for a Python number, a `HostTensor` for a tensor.  Both know their current
value and the `Source` from which it can be read again.  Computing with them alone is done at once,
by Python and torch, and gives a new captured value whose source is that computation: ``bias * 2``,
``torch.exp(slopes)``, ``w // 2``, ``t.shape[0]`` run again, with autograd, on each call.  Together
with a traced value they become leaves of the graph: a scalar, or a load.

Where Python itself needs the value (``if w > 0``, ``range(n)``), it gets it, and the trace is
specialised: the session checks on each call that it would get the same.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from flexfa4.errors import (
    CaptureError,
    OperandError,
    OutsideModError,
    UnsupportedFunctionError,
)
from flexfa4.frontend import integers
from flexfa4.frontend.ir import Node, const
from flexfa4.frontend.ops import written
from flexfa4.frontend.tracing import locate
from flexfa4.frontend.tracing.indexing import View
from flexfa4.frontend.tracing.proxies import Operators, Traced, op, refuse_number
from flexfa4.frontend.tracing.sources import Attr, Build, Call, Const, Item, Source, describe

if TYPE_CHECKING:
    from flexfa4.frontend.tracing.captures import Session


class _Active(threading.local):
    session: Session | None = None


ACTIVE: Final = _Active()
"""The session of the trace that runs on this thread."""


class HostScalar(Operators):
    """A Python number whose value is read again on each call."""

    __slots__ = ("_session", "_source", "_value")

    def __init__(self, session: Session, source: Source, value: int | float | bool) -> None:
        self._session, self._source, self._value = session, source, value

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The number's own type, so that ``isinstance(w, int)`` holds as without tracing."""
        used(self)
        return type(self._value)

    @property
    def node(self) -> Node:
        """The run-time scalar; a bool is carried by an integer."""
        if isinstance(self._value, bool):
            as_int = self._session.scalar(Call(int, (self._source,)), int(self._value))
            return op("ne", as_int, const(0))
        used(self)
        return self._session.scalar(self._source, self._value)

    def specialise(self) -> Any:
        """Return the value and require it on each call."""
        used(self)
        self._session.specialise(self._source, self._value)
        return self._value

    def __bool__(self) -> bool:
        if isinstance(self._value, bool):
            return bool(self.specialise())
        truth = HostScalar(self._session, Call(bool, (self._source,)), bool(self._value))
        return bool(truth.specialise())

    def __int__(self) -> int:
        return int(self.specialise())

    def __float__(self) -> float:
        return float(self.specialise())

    def __complex__(self) -> complex:
        return complex(self.specialise())

    def __index__(self) -> int:
        index: int = self.specialise().__index__()  # a float refuses, as without tracing
        return index

    def __hash__(self) -> int:
        return hash(self.specialise())

    def __repr__(self) -> str:
        return repr(self.specialise())

    def __str__(self) -> str:
        return str(self.specialise())

    def __format__(self, spec: str) -> str:
        return format(self.specialise(), spec)

    def __round__(self, digits: Any = None) -> Any:
        return evaluate(round, (self,) if digits is None else (self, digits), {})

    def __floor__(self) -> Any:
        return evaluate(math.floor, (self,), {})

    def __ceil__(self) -> Any:
        return evaluate(math.ceil, (self,), {})

    def __trunc__(self) -> Any:
        return evaluate(math.trunc, (self,), {})

    def __getattr__(self, name: str) -> Any:
        used(self)
        getattr(self._value, name)  # whether it exists depends on the type alone
        return getattr(self.specialise(), name)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        # only numpy calls this, so it is loaded
        import numpy

        return numpy.asarray(self.specialise(), *args, **kwargs)


class HostTensor(View):
    """A tensor whose value is read again on each call."""

    __slots__ = ("_session", "_source", "_value")

    def __init__(self, session: Session, source: Source, value: torch.Tensor) -> None:
        self._session, self._source, self._value = session, source, value
        super().__init__(self, None)

    @property
    def source(self) -> Source:
        """Where the tensor comes from."""
        return self._source

    @property
    def value(self) -> torch.Tensor:
        """The tensor as it is now."""
        return self._value

    @property
    def session(self) -> Session:
        """The trace that the tensor belongs to."""
        return self._session

    def __repr__(self) -> str:
        return f"the captured tensor {describe(self._source)}"

    def __bool__(self) -> bool:
        return bool(evaluate(bool, (self,), {}))

    def __int__(self) -> int:
        return int(evaluate(int, (self,), {}))

    def __float__(self) -> float:
        return float(evaluate(float, (self,), {}))

    def __index__(self) -> int:
        return int(evaluate(int, (self,), {}))

    def __len__(self) -> int:
        return int(evaluate(len, (self,), {}))

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __hash__(self) -> int:
        return id(self)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._value, name)  # raises AttributeError where torch does
        if callable(value):
            function = getattr(type(self._value), name, None) or getattr(torch.Tensor, name)

            def method(*args: Any, **kwargs: Any) -> Any:
                from flexfa4.frontend.tracing.torch_functions import dispatch

                return dispatch(function, (self, *args), kwargs)

            return method
        used(self)
        return self._session.computed(value, Attr(self._source, name))

    @property
    def dtype(self) -> torch.dtype:
        """The tensor's own dtype; a tensor of another one is then traced anew."""
        used(self)
        dtype: torch.dtype = self._session.computed(self._value.dtype, Attr(self._source, "dtype"))
        return dtype

    @property
    def device(self) -> torch.device:
        """The tensor's device; a tensor on another one is then traced anew."""
        used(self)
        device: torch.device = self._session.computed(
            self._value.device, Attr(self._source, "device")
        )
        return device

    @property
    def shape(self) -> tuple[Any, ...]:
        """The sizes, each a captured number."""
        used(self)
        sizes = Attr(self._source, "shape")
        return tuple(
            HostScalar(self._session, Item(sizes, i), n) for i, n in enumerate(self._value.shape)
        )

    def size(self, dim: Any = None) -> Any:
        """Return the sizes, or the size along one axis."""
        return self.shape if dim is None else self.shape[dim]

    @property
    def ndim(self) -> int:
        """The number of axes; a tensor with another number is traced anew."""
        used(self)
        return self._value.dim()

    def dim(self) -> int:
        """Return the number of axes."""
        return self.ndim

    def item(self) -> Any:
        """Return the value of a tensor of one element, a captured number."""
        return evaluate(torch.Tensor.item, (self,), {})

    def _refuse_change(self, *args: Any) -> Any:
        raise in_place_error(repr(self), "an in-place operator")

    __setitem__ = __iadd__ = __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = _refuse_change
    __imod__ = __ipow__ = __iand__ = __ior__ = __ixor__ = __ilshift__ = __irshift__ = _refuse_change


def in_place_error(name: str, how: str) -> UnsupportedFunctionError:
    """Return the error for a captured value that a mod changes."""
    return UnsupportedFunctionError(
        where=locate.here(),
        name=f"changing {name} by {how}",
        names="the forms that give a new value, such as t + 1 or t.add(1)",
        rewrite="change the tensor before the call of attention",
    )


def used(value: HostScalar | HostTensor) -> None:
    """Require on each call that a captured value is of the kind that it is now."""
    session, source, now = value._session, value._source, value._value
    if isinstance(now, torch.Tensor):
        session.require_tensor(source, now)
    else:
        session.require_type(source, now)


def require(value: HostScalar, test: Callable[[Any], bool], key: str, op_name: str) -> None:
    """Require of a captured integer on each call that an operation with it has a result.

    Raises:
        OperandError: it has none now.
    """
    if not test(value._value):
        node, now = value.node, int(value._value)
        found = integers.problem(op_name, (node, node), lambda n: now)
        assert found is not None
        raise OperandError(
            where=locate.here(),
            name=f"`{written(op_name)}`",
            operands=f"an integer and `{describe(value._source)}`, which is {now}",
            expected=found.expected,
            rewrite=found.rewrite,
        )
    value._session.program.check(value._source, test, key)


# ---- computing with captured values --------------------------------------------------------------


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        kind = type(value)
        if issubclass(kind, Operators):
            yield value
        elif kind is list or isinstance(value, tuple):
            yield from _flat(value)
        elif kind is dict:
            yield from _flat(value.values())
        elif kind is slice:
            yield from _flat((value.start, value.stop, value.step))
        else:
            yield value


def is_host(value: Any) -> bool:
    """Return whether a value is captured and whole."""
    return type(value) is HostScalar or type(value) is HostTensor


def any_traced(args: Iterable[Any]) -> bool:
    """Return whether some argument, however deeply nested, differs from score to score."""
    return any(
        isinstance(v, Traced) or (isinstance(v, View) and type(v) is not HostTensor)
        for v in _flat(args)
    )


def any_host(args: Iterable[Any]) -> bool:
    """Return whether some argument, however deeply nested, is captured."""
    return any(map(is_host, _flat(args)))


def captured(args: Iterable[Any]) -> Iterator[Any]:
    """Yield the present values of the captured arguments, however deeply nested."""
    return (v._value for v in _flat(args) if is_host(v))


def evaluate(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute on captured values now, and again on each call.

    Exceptions of the function are the user's own and pass unchanged.
    """
    session = next(v for v in _flat((args, kwargs)) if is_host(v))._session
    return compute(session, function, args, kwargs)


def compute(
    session: Session, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Compute now, and again on each call; `args` may hold `Reading` objects."""
    frozen = tuple(_freeze(a) for a in args), tuple((n, _freeze(a)) for n, a in kwargs.items())
    value = function(*map(_thaw, args), **{n: _thaw(a) for n, a in kwargs.items()})
    return session.computed(value, Call(function, *frozen))


@dataclass(frozen=True)
class Reading:
    """A value as an operand of `compute`: what it is now, and how to read it again."""

    value: Any
    source: Source


def _freeze(value: Any) -> Source:
    """Return the source of an argument."""
    if is_host(value):
        used(value)
        source: Source = value._source
        return source
    kind = type(value)
    if kind is Reading:
        read: Source = value.source
        return read
    if kind is list or isinstance(value, tuple):
        return Build(list if kind is list else tuple, tuple(map(_freeze, value)))
    if kind is slice:
        return Build(slice, tuple(map(_freeze, (value.start, value.stop, value.step))))
    if kind is dict:
        items = tuple(_freeze(x) for pair in value.items() for x in pair)
        return Build(dict, items)
    return Const(value)


def _thaw(value: Any) -> Any:
    """Return the present value of an argument."""
    if is_host(value):
        return value._value
    kind = type(value)
    if kind is Reading:
        return value.value
    if kind is list or isinstance(value, tuple):
        return (list if kind is list else tuple)(map(_thaw, value))
    if kind is slice:
        return slice(*map(_thaw, (value.start, value.stop, value.step)))
    if kind is dict:
        return {_thaw(k): _thaw(v) for k, v in value.items()}
    return value


def constant(tensor: torch.Tensor) -> Node:
    """Return the node of a plain tensor that met a traced value: a number, or a captured constant.

    Raises:
        CaptureError: as `adopt`.
    """
    adopted = adopt(tensor)
    if tensor.numel() == 1 and tensor.dim() <= 1 and not tensor.is_complex():
        return const(tensor.item())
    return adopted.node


def adopt(tensor: torch.Tensor) -> HostTensor:
    """Return a plain tensor that met a traced value as a captured one.

    Raises:
        OutsideModError: nothing is being traced.
        CaptureError: it was not made inside the mod, so its next value cannot be found.
    """
    session = ACTIVE.session
    if session is None:
        raise OutsideModError(where=locate.here(), name="a value of a mod, such as flexfa4.q_len,")
    if not session.made_inside(tensor):
        raise CaptureError(
            where=locate.here(),
            name="this tensor",
            kind="neither reachable from the mod's variables nor made inside the mod",
            rewrite="keep it in a variable, attribute or default that the mod reads itself; inside"
            " the mod, torch.tensor(...) makes one",
        )
    return HostTensor(session, Const(tensor), tensor)


# ---- the math module: on captured numbers its functions are captured computations ----------------


def _math_function(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        if any_traced(args):
            refuse_number()
        return evaluate(function, args, {}) if any_host(args) else function(*args)

    return call


MATH_FUNCTIONS: Final = {
    name: _math_function(function)
    for name, function in vars(math).items()
    if callable(function) and name not in ("floor", "ceil", "trunc") and name[0] != "_"
}
"""`math`'s functions for mods; ``floor``, ``ceil`` and ``trunc`` already ask their argument."""
