"""Single instructions on values of a kernel that is being traced.

Thin names over the operations of MLIR's dialects, by the machine type of their operands: what
CuTe-DSL's own operators would build, without looking for the place in the source each time, and
with a choice of what may be fused.  Knows no graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

from cutlass import Boolean, Float32, Int32, Int64
from cutlass._mlir import ir
from cutlass._mlir.dialects import arith, llvm, math, nvvm
from cutlass.cutlass_dsl import T

from flexfa4.kernels.emit.captures import Kind
from flexfa4.primitives import packed

Value: TypeAlias = Any
"""A value of MLIR: f32, i32, i64 or i1; for what says so, a pair of f32 (`packed`) as well."""

Machine = Literal["f32", "i32", "i64", "bool"]

_TYPES: Final[dict[str, Callable[[], Any]]] = {
    "f32": T.f32,
    "i32": T.i32,
    "i64": T.i64,
    "bool": T.bool,
}
_LIMITS: Final = {"i32": 1 << 32, "i64": 1 << 64}
WRAPPERS: Final[dict[str, Any]] = {"f32": Float32, "i32": Int32, "i64": Int64, "bool": Boolean}
_COMPARE_INTEGERS: Final = {
    "lt": arith.CmpIPredicate.slt, "le": arith.CmpIPredicate.sle, "gt": arith.CmpIPredicate.sgt,
    "ge": arith.CmpIPredicate.sge, "eq": arith.CmpIPredicate.eq, "ne": arith.CmpIPredicate.ne,
}  # fmt: skip
_COMPARE_FLOATS: Final = {  # with NaN, only `ne` holds
    "lt": arith.CmpFPredicate.OLT, "le": arith.CmpFPredicate.OLE, "gt": arith.CmpFPredicate.OGT,
    "ge": arith.CmpFPredicate.OGE, "eq": arith.CmpFPredicate.OEQ, "ne": arith.CmpFPredicate.UNE,
}  # fmt: skip


def machine(value: Value) -> Machine:
    """Return the type of a value."""
    name = str(value.type)
    return "bool" if name == "i1" else name  # type: ignore[return-value]


def constant(kind: Machine, value: float | int | bool) -> Value:
    """Return a constant; integers wrap around."""
    if kind == "f32":
        return arith.constant(T.f32(), float(value))
    if kind == "bool":
        return arith.constant(T.bool(), int(bool(value)))
    limit = _LIMITS[kind]
    signed = (int(value) + limit // 2) % limit - limit // 2
    return arith.constant(_TYPES[kind](), signed)


def constant_like(value: Value, number: float) -> Value:
    """Return a float, as a pair where the value is one."""
    return packed.both(number) if packed.is_pair(value) else constant("f32", number)


def unwrap(value: Any, kind: Machine | Kind) -> Value:
    """Return a value of CuTe-DSL, or a Python number, as one of MLIR of the given type."""
    if kind == "pointer":
        kind = "i64"
    if isinstance(value, (bool, int, float)):
        return constant(kind, value)
    found = value.ir_value() if hasattr(value, "ir_value") else value
    return resized(found, kind) if kind in _LIMITS else found


def wrapped(value: Value) -> Any:
    """Return a value of MLIR as one of CuTe-DSL."""
    return WRAPPERS[machine(value)](value)


# ---- integers ------------------------------------------------------------------------------------


def resized(value: Value, kind: Machine) -> Value:
    """Return an integer in another width: extended with its sign, or cut off."""
    own = machine(value)
    if own == kind:
        return value
    return arith.extsi(T.i64(), value) if kind == "i64" else arith.trunci(T.i32(), value)


def extended(value: Value) -> Value:
    """Return an integer that is not negative as i64."""
    return value if machine(value) == "i64" else arith.extui(T.i64(), value)


def moved(address: Value, index: Value, stride: int | Value, wide: Value | None) -> Value:
    """Return ``address + index * stride``.

    Args:
        address: i64.
        index: i32 or i64, not negative.
        stride: in bytes: a number, or of the index' type, in which the product fits.
        wide: the stride as i64 where this is computed for each column; None elsewhere.
    """
    if isinstance(stride, int):
        # of 32 bits with a number, one instruction multiplies and adds
        step = constant("i64", stride) if wide is None else wide
        return arith.addi(address, arith.muli(resized(index, "i64"), step))
    if wide is not None:  # so it does with a value, and takes more registers
        index, stride = extended(index), wide
    return arith.addi(address, extended(arith.muli(index, stride)))


def scaled(distance: Value, storage: str) -> Value:
    """Return a distance in bytes between elements of a dtype as that between elements of four."""
    size = nbytes(storage)
    if size > 4:
        return arith.shrui(distance, constant("i64", 1))
    return arith.shli(distance, constant("i64", {4: 0, 2: 1, 1: 2}[size])) if size < 4 else distance


def compare(name: str, a: Value, b: Value) -> Value:
    """Return whether a relation of the ops table holds."""
    if machine(a) == "f32":
        return arith.cmpf(_COMPARE_FLOATS[name], a, b)
    return arith.cmpi(_COMPARE_INTEGERS[name], a, b)


def select(condition: Value, a: Value, b: Value) -> Value:
    """Return `a` where the condition holds, else `b`."""
    return arith.select(condition, a, b)


def negative(value: Value) -> Value:
    """Return whether a number is less than 0."""
    return compare("lt", value, constant(machine(value), 0))


def to_float(value: Value) -> Value:
    """Return an integer as the nearest f32."""
    return arith.sitofp(T.f32(), value)


# ---- floats --------------------------------------------------------------------------------------


def add(a: Value, b: Value) -> Value:
    """Return a + b, of floats or pairs; may become part of a fused multiply-add."""
    return arith.addf(a, b)


def add_alone(a: Value, b: Value) -> Value:
    """Return a + b, rounded by itself: never fused with a product."""
    return nvvm.addf(a, b, rnd=nvvm.FPRoundingMode.RN)


def fma(a: Value, b: Value, c: Value) -> Value:
    """Return a * b + c, of floats or pairs, rounded once."""
    return packed.fma(a, b, c) if packed.is_pair(c) else math.fma(a, b, c)


def larger(a: Value, b: Value) -> Value:
    """Return the larger float; NaN if one is.  MLIR's own maximum becomes four instructions."""
    return nvvm.fmax(a, b, nan=True)


def lesser(a: Value, b: Value) -> Value:
    """Return the lesser float; NaN if one is."""
    return nvvm.fmin(a, b, nan=True)


def instruction(name: str) -> Callable[[Value], Value]:
    """Return a function of one float that is one instruction of PTX; two for a pair."""

    def call(x: Value) -> Value:
        if packed.is_pair(x):
            return packed.pair(*map(call, packed.values(x)))
        return llvm.inline_asm(T.f32(), [x], f"{name} $0, $1;", "=f,f", has_side_effects=False)

    return call


def instruction2(name: str) -> Callable[[Value, Value], Value]:
    """Return a function of two floats that is one instruction of PTX; two for pairs."""

    def call(x: Value, y: Value) -> Value:
        if packed.is_pair(x):
            return packed.pair(*map(call, packed.values(x), packed.values(y)))
        asm = f"{name} $0, $1, $2;"
        return llvm.inline_asm(T.f32(), [x, y], asm, "=f,f,f", has_side_effects=False)

    return call


def joined(name: str) -> Callable[[Value, Value], Value]:
    """Return ``and``, ``or`` or ``xor`` of conditions as one instruction of PTX.

    LLVM would make two selections of one by ``a and b``; the assembler joins conditions as it
    compares.
    """

    def call(a: Value, b: Value) -> Value:
        asm = f"{name}.pred $0, $1, $2;"
        return llvm.inline_asm(T.bool(), [a, b], asm, "=b,b,b", has_side_effects=False)

    return call


# ---- memory --------------------------------------------------------------------------------------

_ELEMENTS: Final[dict[str, Callable[[], Any]]] = {
    "float64": T.f64, "float32": T.f32, "float16": T.f16, "bfloat16": T.bf16,
    "int64": T.i64, "int32": T.i32, "int16": T.i16, "int8": T.i8, "uint8": T.i8, "bool": T.i8,
}  # fmt: skip
_BITS: Final = {"float64": 64, "float16": 16, "bfloat16": 16, "int64": 64, "int16": 16, "int8": 8,
                "uint8": 8, "bool": 8}  # fmt: skip


def nbytes(storage: str) -> int:
    """Return the size of an element of a dtype."""
    return _BITS.get(storage, 32) // 8


def elements(address: Value, storage: str, count: int) -> list[Value]:
    """Read adjacent elements in global memory, as they are stored.

    Args:
        address: i64; a multiple of the size of all elements together.
        storage: dtype of the elements, as torch names it.
        count: how many: a power of two, at most 16 bytes of them.
    """
    pointer = llvm.inttoptr(llvm.PointerType.get(1), address)
    element = _ELEMENTS[storage]()
    size = nbytes(storage)
    if count == 1:
        return [llvm.load(element, pointer, alignment=size)]
    vector = llvm.load(ir.VectorType.get([count], element), pointer, alignment=size * count)
    return [llvm.extractelement(vector, constant("i32", i)) for i in range(count)]


def loaded(value: Value, storage: str, kind: Machine) -> Value:
    """Return a stored element as the type that the graph computes with."""
    if storage == "bool":
        return arith.cmpi(arith.CmpIPredicate.ne, value, arith.constant(T.i8(), 0))
    if storage == "float32" or (storage, kind) in (("int64", "i64"), ("int32", "i32")):
        return value
    if kind == "f32":
        return (arith.truncf if storage == "float64" else arith.extf)(T.f32(), value)
    if storage == "int64":
        return arith.trunci(T.i32(), value)
    return (arith.extui if storage == "uint8" else arith.extsi)(_TYPES[kind](), value)
