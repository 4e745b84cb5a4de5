"""Values of a call, packed by a kernel's signature into memory that stays.

The driver takes an array of pointers, one to each parameter's value.  Both the array and the
values are allocated once; a call writes its values with one ``struct.pack_into``.  The 128 bytes of
each tensor map are found by address, sizes and strides: encoding one takes as long as all the rest.

A block of arguments serves one launch at a time (`flexfa4.kernels.launch.loaded` keeps a pool of
them).  This module makes no calls of the driver; what encodes maps is handed in.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from operator import getitem
from typing import Any, Final

from flexfa4.kernels.compile.compiled_kernel import CompiledKernel
from flexfa4.kernels.compile.signature import MAP_NBYTES, Parameter, TensorMap
from flexfa4.kernels.launch.errors import LaunchValueError
from flexfa4.kernels.launch.tensor_map import Encode, tiled

KEPT_MAPS: Final = 64  # of each parameter, at least


class MapCache(dict[Any, bytes]):
    """Encoded tensor maps of one parameter, by `Tensor`: those used lately are kept.

    Two generations: when the young one, the dict itself, is full it becomes the old one, and what
    is used of the old one becomes young again.  So a hit is one look-up in a dict, without a lock:
    threads that race encode twice, at worst.

    Args:
        spec: the parameter.
        encode: makes the bytes of a map.
        size: maps of a generation.
    """

    def __init__(self, spec: TensorMap, encode: Encode, size: int = KEPT_MAPS) -> None:
        self._spec = spec
        self._encode = encode
        self._size = size
        self._old: dict[Any, bytes] = {}

    def __missing__(self, tensor: Any) -> bytes:
        """Return the map of a `Tensor` that is not young.

        Raises:
            TensorLimitError: the hardware cannot take it.
        """
        found = self._old.get(tensor) or self._encode(tiled(self._spec, tensor))
        if len(self) >= self._size:
            self._old = self.copy()
            self.clear()
        self[tensor] = found
        return found


class ArgumentPacker:
    """How the values of one kernel are packed; makes blocks and fills them.

    Attributes:
        nbytes: of a block.
        offsets: of each parameter's value in a block, in the order of the signature.
    """

    def __init__(self, kernel: CompiledKernel, encode: Encode) -> None:
        """Lay out the values of a kernel: maps first, then numbers, each aligned by its type."""
        self._kernel = kernel
        signature = kernel.signature
        maps = [i for i, p in enumerate(signature) if isinstance(p, TensorMap)]
        numbers = [i for i, p in enumerate(signature) if not isinstance(p, TensorMap)]
        offsets = dict(zip(maps, range(0, MAP_NBYTES * len(maps), MAP_NBYTES), strict=True))
        position = MAP_NBYTES * len(maps)
        layout = "<" + f"{MAP_NBYTES}s" * len(maps)
        for index in numbers:
            parameter = signature[index]
            gap = -position % parameter.alignment
            layout += f"{gap}x{parameter.format}" if gap else parameter.format
            offsets[index] = position + gap
            position += gap + parameter.nbytes
        self.nbytes = position
        self.offsets = tuple(offsets[index] for index in range(len(signature)))
        self._pack = struct.Struct(layout).pack_into
        self._order = [*maps, *numbers]
        self._is_ordered = self._order == list(range(len(signature)))
        specs = [p for p in signature if isinstance(p, TensorMap)]
        self._maps = [MapCache(spec, encode) for spec in specs]

    def block(self) -> ArgumentBlock:
        """Return memory for the values of one launch."""
        return ArgumentBlock(self.nbytes, self.offsets)

    def fill(self, block: ArgumentBlock, values: Sequence[Any]) -> None:
        """Write the values of a launch.

        Args:
            block: memory that `block` returned.
            values: a value for each parameter: a `Tensor` for a tensor map, an int for a pointer
                or an integer, a float for a float.

        Raises:
            LaunchValueError: a value does not fit its parameter.
            TensorLimitError: the hardware's tensor copies cannot take a tensor.
        """
        if len(values) != len(self.offsets):
            raise self._unfit(values)
        ordered = values if self._is_ordered else [values[i] for i in self._order]
        caches = self._maps
        try:
            maps = map(getitem, caches, ordered)  # as many as there are caches: the first values
            self._pack(block.memory, 0, *maps, *ordered[len(caches) :])
        except (struct.error, TypeError, OverflowError) as error:
            raise self._unfit(values) from error

    def _unfit(self, values: Sequence[Any]) -> LaunchValueError:
        """Return the error that names the first value that does not fit."""
        signature = self._kernel.signature
        for parameter, value in zip(signature, values, strict=False):
            expected = _wanted(parameter, value)
            if expected:
                return LaunchValueError(
                    kernel=self._kernel.name,
                    parameter=f"{type(parameter).__name__} {parameter.name}",
                    found_value=f"{value!r} of type {type(value).__name__}",
                    expected=expected,
                )
        return LaunchValueError(
            kernel=self._kernel.name,
            parameter=f"{len(signature)} parameters",
            found_value=f"{len(values)} values",
            expected=", ".join(parameter.name for parameter in signature) or "none",
        )


class ArgumentBlock:
    """Memory that holds the values of one launch, and the pointers to them.

    Attributes:
        memory: the values.
        pointers: address of an array with the address of each value.
    """

    def __init__(self, nbytes: int, offsets: Sequence[int]) -> None:
        """Allocate memory for values at these offsets."""
        self.memory = bytearray(max(nbytes, 1))
        self._values = (ctypes.c_char * len(self.memory)).from_buffer(self.memory)
        start = ctypes.addressof(self._values)
        self._array = (ctypes.c_void_p * max(len(offsets), 1))(*(start + o for o in offsets))
        self.pointers = ctypes.addressof(self._array)


def _wanted(parameter: Parameter, value: Any) -> str:
    """Return what a parameter takes; nothing where the value fits."""
    if isinstance(parameter, TensorMap):
        fits = isinstance(value, tuple) and len(value) == 3
        fits = fits and all(isinstance(part, tuple) for part in value[1:])
        return "" if fits else "a Tensor: address, sizes and strides, in tuples"
    try:
        struct.pack("<" + parameter.format, value)
    except (struct.error, TypeError, OverflowError):
        return {
            "Q": "an address, as an int",
            "i": "an int of 32 bits",
            "q": "an int of 64 bits",
            "f": "a float that is finite in 32 bits, or an infinity or NaN",
        }[parameter.format]
    return ""
