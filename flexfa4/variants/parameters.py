"""Checks of the variants' parameters, when a variant is made rather than when it runs.

And how a mod reads a parameter that differs by batch entry, or that a default instance lacks.

Only what every variant needs to say in the same words; a check that one variant alone needs stays
beside it.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, SupportsFloat, SupportsIndex, TypeVar, cast

import torch

from flexfa4.errors import ArgumentError, NoValuesError, describe

T = TypeVar("T")
_LARGEST: Final = 2**63 - 1


def require_whole(name: str, value: object, *, at_least: int | None) -> None:
    """Refuse what is not an int of at least `at_least` (True and False are not numbers here).

    Ints beyond 64 bits, which no tensor holds, are refused too.

    Args:
        name: of the parameter, for the message.
        value: what was passed.
        at_least: the smallest int, None for any.

    Raises:
        ArgumentError: it is not.
    """
    low = -math.inf if at_least is None else at_least
    if _is_whole(value, low) and operator.index(cast(SupportsIndex, value)) > _LARGEST:
        raise ArgumentError(
            name=name,
            found_value=repr(value),
            expected="an int of 64 bits, below 2**63",
            rewrite="pass a smaller number, such as the length of the sequence",
        )
    if not _is_whole(value, low):
        raise ArgumentError(
            name=name,
            found_value=repr(value),
            expected="an int" if at_least is None else f"an int, at least {at_least}",
            rewrite=f"pass a whole number such as {_near(value, low)}",
        )


def _near(value: object, low: float) -> float:
    """Return the whole number that may have been meant: 3 for -3, 3.5 and "3"."""
    try:
        number = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return max(low, 1)
    return int(number) if low == -math.inf else max(abs(number), low)


def _is_whole(value: object, low: float) -> bool:
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return whole and operator.index(cast(SupportsIndex, value)) >= low


def require_wholes(name: str, values: object, *, at_least: int | None) -> None:
    """Refuse what is not a list or another sequence of ints, each of at least `at_least`.

    Args:
        name: of the parameter, for the message, which adds the index of a wrong element.
        values: what was passed.
        at_least: the smallest int, None for any.

    Raises:
        ArgumentError: it is not.
    """
    for index, value in enumerate(as_sequence(name, values, of="ints", such_as="[2, 4, 3]")):
        require_whole(f"{name}[{index}]", value, at_least=at_least)


def as_sequence(name: str, values: object, *, of: str, such_as: str) -> Sequence[object]:
    """Return what is a list or another sequence, but no text.

    Args:
        name: of the parameter, for the message.
        values: what was passed.
        of: what its elements are, and
        such_as: an example, both for the message.

    Raises:
        ArgumentError: it is none.
    """
    if isinstance(values, Sequence) and not isinstance(values, (str, bytes, bytearray)):
        return values
    raise ArgumentError(
        name=name,
        found_value=describe(values),
        expected=f"a list of {of}",
        rewrite=f"pass a list such as {such_as}; of a tensor, tensor.tolist()",
    )


def require_positive(name: str, value: object) -> None:
    """Refuse what is not a finite number above zero.

    Raises:
        ArgumentError: it is not.
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    try:
        number = float(cast(SupportsFloat, value)) if is_number else math.nan
    except OverflowError:  # an int beyond every float
        number = math.inf
    if not 0 < number < math.inf:
        raise ArgumentError(
            name=name,
            found_value=repr(value),
            expected="a finite number above 0",
            rewrite="pass a number such as 50.0",
        )


def require_sizes(name: str, value: object, *, axes: int | None = None, at_least: int = 1) -> None:
    """Refuse what is not a tuple of ints, one for each axis, each of at least `at_least`.

    Args:
        name: of the parameter.
        value: what was given.
        axes: how many ints; None takes any number but zero.
        at_least: the smallest of them that is allowed.

    Raises:
        ArgumentError: it is not.
    """
    sizes: tuple[object, ...] = value if isinstance(value, tuple) else ()
    count = len(sizes)
    if not count or axes not in (None, count) or not all(_is_whole(n, at_least) for n in sizes):
        number = "one int for each axis" if axes is None else f"{axes} ints"
        raise ArgumentError(
            name=name,
            found_value=repr(value),
            expected=f"a tuple of {number}, each at least {at_least}",
            rewrite=f"pass a tuple such as {(max(at_least, 1),) * (axes or 2)}",
        )


def require_index_tensor(name: str, value: object, *, dims: tuple[int, ...]) -> None:
    """Refuse what is not an integer tensor with one of these numbers of dimensions.

    Raises:
        ArgumentError: it is not.
    """
    _require_tensor(name, value, _INTEGERS, dims)


def require_values(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor that is read when a variant is made, and has nothing to read.

    Raises:
        NoValuesError: it is on the meta device.
    """
    if torch.compiler.is_dynamo_compiling():
        from flexfa4.frontend.tracing import dynamo

        dynamo.leave_to_python(f"the values of {name} are read: make the mod outside")
    if tensor.is_meta:
        raise NoValuesError(what=f"{name} is", rewrite=f"{name} made under torch.device('cpu')")


def require_bool_tensor(name: str, value: object, *, dims: tuple[int, ...]) -> None:
    """Refuse what is not a tensor of bools with one of these numbers of dimensions.

    Raises:
        ArgumentError: it is not.
    """
    _require_tensor(name, value, _BOOLS, dims)


def require_float_tensor(name: str, value: object, *shapes: tuple[int | str, ...]) -> torch.Tensor:
    """Refuse what is not a tensor of real numbers of one of these shapes.

    Args:
        name: of the parameter, for the message.
        value: what was passed.
        shapes: a size, or the name of an axis of any size, for each axis: ``("buckets", "H")``.

    Returns:
        `value`.

    Raises:
        ArgumentError: it is not.
    """
    dims = tuple(map(len, shapes))
    _require_tensor(name, value, _FLOATS, dims)
    tensor = cast(torch.Tensor, value)
    for shape in shapes:
        if len(shape) == tensor.dim() and all(
            isinstance(size, str) or size == found
            for size, found in zip(shape, tensor.shape, strict=True)
        ):
            return tensor
    words = " or ".join(
        f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})" for shape in shapes
    )
    raise ArgumentError(
        name=name,
        found_value=f"a tensor of shape {tuple(tensor.shape)}",
        expected=f"{_FLOATS.words} of shape {words}",
        rewrite="make it of that shape",
    )


@dataclass(frozen=True)
class _Elements:
    """What the elements of a tensor must be: in words, a test of the dtype, and how to convert."""

    words: str
    holds: Callable[[torch.dtype], bool]
    convert: str


_INTEGERS: Final = _Elements(
    "an integer tensor",
    lambda d: not (d.is_floating_point or d.is_complex or d is torch.bool),
    ".long()",
)
_BOOLS: Final = _Elements("a tensor of bools", lambda d: d is torch.bool, ".bool()")
_FLOATS: Final = _Elements("a float tensor", lambda d: d.is_floating_point, ".float()")


def _require_tensor(name: str, value: object, elements: _Elements, dims: tuple[int, ...]) -> None:
    if not isinstance(value, torch.Tensor):
        found, rewrite = repr(value), "wrap it: torch.tensor(...)"
    elif not elements.holds(value.dtype):
        found, rewrite = f"a tensor of {value.dtype}", f"convert it: {elements.convert}"
    elif value.dim() not in dims:
        found, rewrite = f"a tensor of shape {tuple(value.shape)}", "reshape it"
    else:
        return
    ranks = " or ".join(map(str, dims)) + f" dimension{'s' if dims != (1,) else ''}"
    expected = f"{elements.words} with {ranks}"
    raise ArgumentError(name=name, found_value=found, expected=expected, rewrite=rewrite)


def require_bool(name: str, value: object) -> None:
    """Refuse what is not True or False.

    Raises:
        ArgumentError: it is not.
    """
    if not isinstance(value, bool):
        raise ArgumentError(
            name=name,
            found_value=repr(value),
            expected="True or False",
            rewrite=f"pass {bool(value)}" if isinstance(value, int) else "pass True",
        )


def require_whole_or_per_batch(name: str, value: object, *, at_least: int | None) -> None:
    """Refuse what is neither an int of at least `at_least` nor an integer tensor () or (B,).

    The elements of a tensor are not read: they may change from call to call.

    Args:
        name: of the parameter, for the message.
        value: what was passed.
        at_least: the smallest int, None for any.

    Raises:
        ArgumentError: it is neither.
    """
    if isinstance(value, torch.Tensor):
        require_index_tensor(name, value, dims=(0, 1))
    else:
        require_whole(name, value, at_least=at_least)


def of_batch(value: int | torch.Tensor, b: Any) -> Any:
    """Return the value of batch entry `b` of a parameter that is an int, or of shape () or (B,)."""
    return element(value, b) if isinstance(value, torch.Tensor) else value


def element(table: torch.Tensor, outer: Any, *index: Any) -> Any:
    """Return ``table[outer, *index]``, or ``table[index]`` of a table without the outer axis.

    All indices at once, so that they broadcast where they are tensors.
    """
    return table[(outer, *index)] if table.dim() > len(index) else table[index]


def shared(index: Any, size: Any) -> Any:
    """Return `index` along an axis of `size`; 0 where an axis of one serves all indices."""
    return 0 if size == 1 else index


def given(name: str, value: T | None, *, expected: str, rewrite: str) -> T:
    """Return a parameter that a default instance does not have.

    Raises:
        ArgumentError: it is None.
    """
    if value is None:
        raise ArgumentError(name=name, found_value="None", expected=expected, rewrite=rewrite)
    return value
