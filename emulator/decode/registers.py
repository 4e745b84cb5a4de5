"""The register file of a warp: where each register has its 32 lanes.

Registers of all functions lie behind each other; registers that are filled once, when a warp
starts, follow them: numbers, addresses, special registers.  Equal ones are one.  Operands that are
written to nowhere share one register, which nobody reads.

What this module deliberately does not do: decide which registers of a function may share a place
(`flexfa4.emulator.decode.liveness`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flexfa4.emulator.decode.encoding import Filled, InitialRecord
from flexfa4.emulator.ptx.program import Register

LANES: Final = 32
LINE: Final = 64  # bytes: registers begin at a cache line, and predicates at a word
PREDICATE: Final = 1  # bits
_SMALLEST: Final = 16  # bits of a register that is no predicate


def register_bits(bits: int) -> int:
    """Return the size of the register that holds values of a size; predicates stay at 1."""
    return bits if bits == PREDICATE else max(bits, _SMALLEST)


def _nbytes(bits: int) -> int:
    return 4 if bits == PREDICATE else bits // 8 * LANES


class RegisterFile:
    """The register file, as it is laid out.

    Attributes:
        initials: the registers that are filled when a warp starts.
        size: bytes so far.
    """

    def __init__(self) -> None:
        self.initials: list[InitialRecord] = []
        self.size = 0
        self._banks: dict[tuple[str, int], int] = {}  # start of a function's bank of a size
        self._slots: dict[str, Mapping[Register, int]] = {}
        self._filled: dict[tuple[Filled, int, int, str], int] = {}
        self._sink: int | None = None

    def add_function(
        self, name: str, slots: Mapping[Register, int], banks: Mapping[int, int]
    ) -> None:
        """Lay out a function's registers.

        Args:
            name: of the function.
            slots: place of each register in the bank of its size.
            banks: number of places of each size in bits; 1 for predicates.
        """
        self._slots[name] = slots
        for bits in sorted(banks, reverse=True):
            self._align()
            self._banks[name, bits] = self.size
            self.size += banks[bits] * _nbytes(register_bits(bits))
        self._align()

    def place(self, function: str, register: Register) -> int:
        """Return the offset of a function's register."""
        bits = register.type.bits
        slot = self._slots[function][register]
        return self._banks[function, bits] + slot * _nbytes(register_bits(bits))

    def filled(self, kind: Filled, bits: int, value: int = 0, name: str = "") -> int:
        """Return the offset of a register that is filled when a warp starts."""
        key = (kind, bits, value, name)
        place = self._filled.get(key)
        if place is None:
            place = self._filled[key] = self._take(bits)
            self.initials.append(InitialRecord(kind, bits, place, value, name))
        return place

    def sink(self) -> int:
        """Return the offset of a register of any size that nobody reads."""
        if self._sink is None:
            self._sink = self._take(128)
        return self._sink

    def _take(self, bits: int) -> int:
        self._align()
        place = self.size
        self.size += _nbytes(bits)
        return place

    def _align(self) -> None:
        self.size = -(-self.size // LINE) * LINE
