"""The scalar types of PTX, and which of them go together.

A type is what an instruction's suffix names (``.f32``) or a register is declared with (``.b32``).
Packed types (``f16x2``, ``e4m3x2``, ``f32x2``) are held in registers of bits.

What this module deliberately does not do: arithmetic.
"""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass


class Kind(enum.Enum):
    """What the bits of a type mean."""

    PREDICATE = "predicate"
    BITS = "bits"
    INTEGER = "integer"
    FLOAT = "float"
    PACKED = "packed"  # and other formats that no register is declared with


@dataclass(frozen=True, slots=True)
class ScalarType:
    """A type of one register or one element.

    Attributes:
        name: as PTX spells it, without the dot.
        kind: what its bits mean.
        bits: its size; a predicate has 1.
    """

    name: str
    kind: Kind
    bits: int

    def __str__(self) -> str:
        return f".{self.name}"

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return self.bits // 8


_NAMES = {
    Kind.PREDICATE: {1: "pred"},
    Kind.BITS: {8: "b8", 16: "b16", 32: "b32", 64: "b64", 128: "b128"},
    Kind.INTEGER: {8: "u8 s8", 16: "u16 s16", 32: "u32 s32", 64: "u64 s64"},
    Kind.FLOAT: {16: "f16", 32: "f32 f16x2", 64: "f64"},
    Kind.PACKED: {
        8: "e2m1x2",
        16: "bf16 e4m3x2 e5m2x2 e2m3x2 e3m2x2 ue8m0x2 e2m1x4",
        32: "bf16x2 tf32 u16x2 s16x2 e4m3x4 e5m2x4 e2m3x4 e3m2x4",
        64: "f32x2",
    },
}

TYPES: dict[str, ScalarType] = {
    name: ScalarType(name, kind, bits)
    for kind, sizes in _NAMES.items()
    for bits, names in sizes.items()
    for name in names.split()
}

PRED = TYPES["pred"]
REGISTER_TYPES = frozenset(name for name, type_ in TYPES.items() if type_.kind is not Kind.PACKED)
"""Types that a register can be declared with."""

MEMORY_TYPES = frozenset(
    name for name, type_ in TYPES.items() if type_.kind is not Kind.PACKED and type_ is not PRED
)
"""Types that a variable can be declared with."""

_BITS = {bits: TYPES[name] for bits, name in _NAMES[Kind.BITS].items()}


def bits_type(bits: int) -> ScalarType | None:
    """Return the untyped type of a size, or None where there is none."""
    return _BITS.get(bits)


@functools.cache
def fits(register: ScalarType, operand: ScalarType, wider: bool) -> bool:
    """Whether a register may stand for an operand of an instruction.

    Sizes agree; bits go with any type of their size; integers go with integers of either sign,
    floats with floats.  With `wider`, the rule of loads, stores and conversions, the register may
    also be wider (PTX ISA, "Operand Size Exceeding Instruction-Type Size").
    """
    if (register.kind is Kind.PREDICATE) != (operand.kind is Kind.PREDICATE):
        return False
    if register.bits != operand.bits:
        return (
            wider
            and register.bits > operand.bits
            and (Kind.BITS in (register.kind, operand.kind) or register.kind is operand.kind)
        )
    if Kind.BITS in (register.kind, operand.kind):
        return True
    return register.kind is operand.kind
