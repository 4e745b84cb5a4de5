"""fp32 numbers of a thread, read and written one by one by their places while a kernel is traced.

Tensors of CuTe-DSL can do that, too.  But an element of one takes an operation for its coordinate,
one for the access, and most of a millisecond of Python to make them; tiles of scores are read and
written by the thousand, and first calls of a variant wait for that.  Here an access is an address
and a load or a store, which is what CuTe-DSL makes of its own: the code is the same.

Makes no registers (`cute.make_rmem_tensor` does), and has no layouts: places are counted as they
lie in memory.  Arithmetic on what is read may stay in values of MLIR, which costs least.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from cutlass import Float32, cute
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm, vector
from cutlass.cutlass_dsl import T

Value: TypeAlias = Any
"""A value of MLIR, f32."""

_BYTES: Final = 4


class Numbers:
    """Numbers in registers; may be used wherever it was made, and in loops and branches there.

    Attributes:
        tensor: they are of.
        places: that may be asked for.

    Args:
        tensor: of fp32, in registers, without gaps.
        places: the ones that are asked for; None for all.
    """

    def __init__(self, tensor: cute.Tensor, places: range | None = None) -> None:
        assert tensor.element_type is Float32 and tensor.memspace == cute.AddressSpace.rmem
        self.tensor = tensor
        self.places = range(cute.size(tensor)) if places is None else places
        start, number = tensor.iterator.to_llvm_ptr(), T.f32()
        # once for all accesses, which are many
        self._addresses = {
            place: llvm.getelementptr(start.type, start, [], [place], number, "None")
            for place in self.places
        }

    def __len__(self) -> int:
        return len(self.places)

    def value(self, place: int) -> Value:
        """Return the number at a place."""
        return llvm.LoadOp(T.f32(), self._addresses[place], alignment=_BYTES).result

    def set(self, place: int, value: Value) -> None:
        """Set the number at a place."""
        llvm.StoreOp(value, self._addresses[place], alignment=_BYTES)

    def __getitem__(self, place: int) -> Float32:
        return Float32(self.value(place))

    def __setitem__(self, place: int, number: Float32) -> None:
        self.set(place, number.ir_value())

    # CuTe-DSL makes variables of a loop of what the objects in it hold; an address is none.

    def __extract_mlir_values__(self) -> list[Any]:
        return []

    def __new_from_mlir_values__(self, values: list[Any]) -> Any:
        return self


def several_of(source: cute.Pointer, count: int) -> list[Float32]:
    """Read numbers that lie side by side in memory, by one instruction.

    Args:
        source: where the first one is; a multiple of the bytes of all.
        count: how many: 1, 2 or 4.
    """
    if (
        count > 2
    ):  # a copy reads these as words of 64 bits; otherwise ptxas orders pairs differently
        several = cute.make_rmem_tensor(count, Float32)
        cute.autovec_copy(cute.make_tensor(source, cute.make_layout(count)), several)
        numbers = Numbers(several)
        return [numbers[i] for i in range(count)]
    read = llvm.load(
        ir.VectorType.get([count], T.f32()), source.to_llvm_ptr(), alignment=_BYTES * count
    )
    return [
        Float32(vector.extract(read, dynamic_position=[], static_position=[i]))
        for i in range(count)
    ]
