"""What CuTe-DSL makes of the result of each operation, in a fifth of the time.

The bindings of MLIR hand every result to a *caster*, which makes the object that Python sees.  That
of CuTe-DSL goes through its wrapper of functions for users, and for vectors looks for the element
type in a table that it builds each time: half of the time that an operation takes, and a kernel
has ten thousand.  The casters here make the same objects, of the same classes, with the same
attributes.  They are there for the time of a compilation; then CuTe-DSL's own are back.

What this module deliberately does not do: work with a release of CuTe-DSL that it was not held
against; others keep their own casters.  It loads cutlass, so it is imported as `cute` is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import cutlass
from cutlass import BFloat16, Float16, Float32
from cutlass._mlir import ir
from cutlass._mlir_helpers.arith import ArithValue
from cutlass._mlir_helpers.vector import Vector

from flexfa4.kernels.cache.keys import RELEASE

_Caster = Callable[[Any], Any]

_FLOATS: Final = {ir.F32Type: Float32, ir.F16Type: Float16, ir.BF16Type: BFloat16}


def _number(is_float: bool) -> _Caster:
    """Return what casts a number whose sign is not known."""

    def cast(value: Any) -> Any:
        made = ArithValue.__new__(ArithValue)
        ir.Value.__init__(made, value)
        made.is_float, made.signed = is_float, None
        return made

    return cast


def _vector(value: Any) -> Any:
    """Cast a vector: of the floats that kernels have here, others by CuTe-DSL."""
    kind = value.type
    element = kind.element_type
    dtype = _FLOATS.get(type(element))
    if dtype is None:
        return Vector(value)
    made = Vector.__new__(Vector)
    ir.Value.__init__(made, value)
    made.is_float, made.signed = True, None
    made._dtype, made._mlir_type, made._shape = dtype, element, tuple(kind.shape)
    return made


# what has a caster: ours, and CuTe-DSL's
_CASTERS: Final[tuple[tuple[Any, _Caster, _Caster], ...]] = (
    (ir.F32Type.static_typeid, _number(True), ArithValue),
    (ir.IntegerType.static_typeid, _number(False), ArithValue),
    (ir.VectorType.static_typeid, _vector, Vector),
)


@contextmanager
def quick_casters() -> Iterator[None]:
    """Cast results quickly for a while."""
    if cutlass.__version__ != RELEASE:
        yield
        return
    for kind, ours, _ in _CASTERS:
        ir.register_value_caster(kind, replace=True)(ours)
    try:
        yield
    finally:
        for kind, _, theirs in _CASTERS:
            ir.register_value_caster(kind, replace=True)(theirs)
