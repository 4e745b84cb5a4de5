"""Arguments of a launch as the bytes of its kernel's parameters, by the types that these declare.

    .u8 to .u64     an int; of 64 bits also a tensor, which is the address of its first element
    .s8 to .s64     the same, within the range of the type
    .f16 to .f64    a float, never an int: its bits would be another number
    .b8 to .b64     bits that may be either: an int, or a float as .f16, .f32 or .f64 of the size
    .b8 arrays      a struct: bytes; of up to 8 bytes also an int, of 8 bytes also a tensor
    other arrays    bytes, which every other parameter takes, too

Compilers declare signed integers as ``.u32``, so numbers below zero fit there.  Numbers may also be
those of numpy, and tensors without axes where the parameter cannot be a pointer.

What this module deliberately does not do: register the memory of tensors (`Kernel.run` does).
"""

from __future__ import annotations

import math
import numbers
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from flexfa4.emulator.failures.options import KernelArgumentError
from flexfa4.emulator.host.cuda_tensor import CudaTensor, cpu_tensor
from flexfa4.emulator.host.signatures import Slot

if TYPE_CHECKING:
    import torch

POINTER: Final = 8  # bytes
_FLOATS: Final = {2: ("<e", "f16"), 4: ("<f", "f32"), 8: ("<d", "f64")}  # by their bytes
_ORDER: Final = "little"


@dataclass(frozen=True)
class Argument:
    """An argument that fits its parameter.

    Attributes:
        data: the bytes of the parameter.
        tensor: the tensor that it points to, if it is a pointer to one.
    """

    data: bytes
    tensor: torch.Tensor | None = None


def bound(value: Any, slot: Slot, index: int, kernel: str) -> Argument:
    """Return a value as the bytes of its parameter.

    Args:
        value: a CPU tensor, a number or bytes.
        slot: the parameter.
        index: its number, for messages.
        kernel: name of the kernel, for messages.

    Raises:
        KernelArgumentError: the parameter is declared with a type that takes no such value.
        NotACpuTensorError: a tensor that does not lie in the CPU's memory.
    """
    form = _Form.of(slot)
    if hasattr(value, "data_ptr"):  # a tensor, or one that a device presents
        what = f"argument {index} ({slot.name}) of {kernel} is"
        tensor = value.cpu if isinstance(value, CudaTensor) else cpu_tensor(value, what)
        if form.pointer:
            return Argument(tensor.data_ptr().to_bytes(POINTER, _ORDER), tensor)
        if not tensor.ndim:
            value = tensor.item()
    data = form.data(value)
    if data is None:
        raise KernelArgumentError(
            index=index,
            kernel=kernel,
            found_value=described(value),
            name=slot.name,
            declared=slot.declared,
            expected=", or ".join(form.expected()),
            rewrite=form.rewritten(value),
        )
    return Argument(data)


@dataclass(frozen=True)
class _Form:
    """What a parameter takes.

    Attributes:
        nbytes: its size.
        integers: the least int, and the first above the greatest; None where it takes none.
        floats: the format of a float; None where it takes none.
        pointer: whether it can be an address.
    """

    nbytes: int
    integers: tuple[int, int] | None = None
    floats: str | None = None
    pointer: bool = False

    @classmethod
    def of(cls, slot: Slot) -> _Form:
        kind, nbytes, bits = slot.type[0], slot.nbytes, 8 * slot.nbytes
        if nbytes > POINTER or (slot.elements > 1 and kind != "b"):
            return cls(nbytes)
        if kind == "f":
            return cls(nbytes, floats=_FLOATS[nbytes][0])
        greatest = 1 << (bits - 1 if kind == "s" else bits)
        one = kind == "b" and slot.elements == 1 and nbytes in _FLOATS
        floats = _FLOATS[nbytes][0] if one else None
        return cls(nbytes, (-(1 << (bits - 1)), greatest), floats, pointer=nbytes == POINTER)

    def data(self, value: Any) -> bytes | None:
        """Return the bytes of a value, or None where it is none that the parameter takes."""
        if isinstance(value, (bytes, bytearray)):
            return bytes(value) if len(value) == self.nbytes else None
        if isinstance(value, numbers.Integral):
            number = int(value)
            if self.integers is None or not self.integers[0] <= number < self.integers[1]:
                return None
            return (number % (1 << 8 * self.nbytes)).to_bytes(self.nbytes, _ORDER)
        if isinstance(value, numbers.Real) and self.floats is not None:
            try:
                return struct.pack(self.floats, float(value))
            except OverflowError:
                return None
        return None

    def expected(self) -> list[str]:
        """Say what it takes."""
        said = ["a CPU tensor"] if self.pointer else []
        if self.integers is not None:
            bits = 8 * self.nbytes
            most = bits - 1 if self.integers[1] < 1 << bits else bits
            said.append(f"an int from -2**{bits - 1} up to 2**{most} - 1")
        if self.floats is not None:
            said.append(f"a float within the range of .{_FLOATS[self.nbytes][1]}")
        return [*said, f"{self.nbytes} bytes"]

    def rewritten(self, value: Any) -> str:
        """Say what to write in place of a value that does not fit."""
        if isinstance(value, numbers.Integral) and self.integers:
            return "a number within the range, or a wider parameter"
        if isinstance(value, numbers.Integral) and self.floats:
            return f"{int(value)}.0"
        if isinstance(value, numbers.Real) and self.floats is None and self.integers:
            number = float(value)
            return str(int(number)) if math.isfinite(number) else "an int"
        if hasattr(value, "data_ptr"):
            return "x.item(), the value of a tensor with one element"
        if isinstance(value, (list, tuple)) and self.pointer:
            return "torch.tensor(x), with the dtype that the kernel reads"
        if type(value).__module__ == "numpy" and self.pointer:
            return "torch.from_numpy(x), which shares the array's memory"
        return "a value of its type, or its bytes: struct.pack(...)"


def described(value: Any) -> str:
    """Return what a message calls a value."""
    if isinstance(value, (bytes, bytearray)):
        return f"{len(value)} bytes"
    if isinstance(value, numbers.Integral):
        return f"the int {int(value)}"
    if isinstance(value, numbers.Real):
        return f"the float {float(value)!r}"
    if hasattr(value, "data_ptr"):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a value of type {type(value).__name__}"
