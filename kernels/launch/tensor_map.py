"""Tensors as tensor copies take them: what limits them, and what an encoder is given.

A kernel is compiled for a box and a swizzle (`flexfa4.kernels.compile.signature.TensorMap`); a call
adds a `Tensor`: address, sizes and strides, the contiguous axis first.  Both together are the
arguments of ``cuTensorMapEncodeTiled``, and `Tiled` holds just these.  The driver encodes them
for a device (`flexfa4.kernels.launch.driver`), the emulator for itself.

`limit_of` is the one statement of what the hardware can take: the error quotes it, and a caller
that copies tensors which cannot be taken asks it first.  Strides of axes with one element are free,
as they are in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

from flexfa4.kernels.compile.signature import SWIZZLES, UNIT, TensorMap
from flexfa4.kernels.launch.errors import TensorLimitError

MAX_SIZE: Final = 1 << 32  # elements along an axis
MAX_STRIDE: Final = 1 << 40  # bytes, exclusive


class Tensor(NamedTuple):
    """A tensor of a call; any tuple of the same three serves.

    Attributes:
        address: of its first element.
        sizes: elements along each axis, the contiguous one first.
        strides: bytes from one index to the next, of axes 1 and up.
    """

    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


class Tiled(NamedTuple):
    """The arguments of ``cuTensorMapEncodeTiled``; numbers are those of its enums.

    Attributes:
        data_type: of the elements.
        address: of the tensor.
        sizes: elements along each axis.
        strides: bytes, of axes 1 and up.
        box: elements along each axis that one copy moves.
        steps: indices from one element that is copied to the next.
        interleave: none, always.
        swizzle: of shared memory.
        l2_promotion: what is fetched to L2.
        fill: what elements outside of the tensor are.
    """

    data_type: int
    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    interleave: int
    swizzle: int
    l2_promotion: int
    fill: int


Encode: TypeAlias = Callable[[Tiled], bytes]
"""Makes the 128 bytes of a tensor map."""


def tiled(spec: TensorMap, tensor: tuple[int, tuple[int, ...], tuple[int, ...]]) -> Tiled:
    """Return what an encoder is given for a tensor of a call.

    Args:
        spec: what the kernel was compiled for.
        tensor: a `Tensor`.

    Raises:
        TensorLimitError: the hardware cannot take it.
    """
    given = Tensor(*tensor)
    limit = limit_of(given)
    if limit is None and len(given.sizes) != spec.rank:
        limit = (f"{len(given.sizes)} axes", f"{spec.rank} axes, as the kernel's box has")
    if limit is not None:
        raise TensorLimitError(name=spec.name, found_value=limit[0], expected=limit[1])
    return Tiled(
        spec.row_element.code,
        given.address,
        tuple(given.sizes),
        tuple(
            stride if size > 1 else 0  # of one element the stride is nobody's business
            for size, stride in zip(given.sizes[1:], given.strides, strict=True)
        ),
        spec.box,
        (1,) * spec.rank,
        0,
        SWIZZLES.index(spec.swizzle),
        spec.l2_promotion.bit_length() - 6 if spec.l2_promotion else 0,
        int(spec.nan_fill),
    )


def limit_of(tensor: Tensor) -> tuple[str, str] | None:
    """Return what keeps the hardware's tensor copies from taking a tensor.

    The contiguous axis must be the first; which one that is the caller knows.

    Args:
        tensor: address, sizes and strides.

    Returns:
        What was found and what is allowed, in words; None where nothing is in the way.
    """
    return next(_broken(tensor), None)


def _broken(tensor: Tensor) -> Iterator[tuple[str, str]]:
    """Yield what is in the way; texts are made for that only."""
    address, sizes, strides = tensor
    if len(strides) != len(sizes) - 1:
        yield (
            f"{len(sizes)} sizes and {len(strides)} strides",
            "a stride for each axis but the contiguous one",
        )
    if address <= 0 or address % UNIT:
        yield f"the address {address:#x}", f"addresses that are multiples of {UNIT}"
    if not 1 <= min(sizes) <= max(sizes) <= MAX_SIZE:
        yield f"the sizes {tuple(sizes)}", "1 to 2**32 elements along each axis"
    for size, stride in zip(sizes[1:], strides, strict=True):
        if size > 1 and (stride % UNIT or not 0 <= stride < MAX_STRIDE):
            yield (
                f"a stride of {stride} bytes",
                f"strides that are multiples of {UNIT} bytes, below 2**40",
            )
