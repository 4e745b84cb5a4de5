"""Runs `whole_row_kernels.WholeRows` on an emulated device, for tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from cutlass import BFloat16, Float32, Int32, cute

from flexfa4.emulator import Device
from flexfa4.frontend.binding import BoundGraph
from flexfa4.kernels.compile.cute import Compilation, compile_with_cute
from flexfa4.kernels.emit.captures import capture_values, captures_signature
from tests.emulate.evaluation import TYPES, Placed, pointer
from tests.emulate.whole_row_kernels import ROWS, RowWork, WholeRows

ARCH = "sm_100a"


@dataclass(frozen=True)
class Taken:
    """What the kernel wrote.

    Attributes:
        probabilities: ``(heads, tiles, 32, keys)``, relative to the maximum that a tile found.
        corrections: ``(heads, tiles, 32)``: of what was before a tile.
        inverse, lse: ``(heads, 32)``.
    """

    probabilities: torch.Tensor
    corrections: torch.Tensor
    inverse: torch.Tensor
    lse: torch.Tensor

    @property
    def normalised(self) -> torch.Tensor:
        """The probabilities ``(heads, 32, keys of all tiles)``, as an output's sum has them."""
        factors = torch.ones_like(self.corrections)
        for tile in reversed(range(factors.shape[1] - 1)):
            factors[:, tile] = factors[:, tile + 1] * self.corrections[:, tile + 1]
        factors = factors * self.inverse[:, None]
        scaled = self.probabilities.float() * factors[..., None]
        return scaled.permute(0, 2, 1, 3).flatten(2)


def taken(
    work: RowWork,
    products: torch.Tensor,
    scale: float = 1.0,
    limits: torch.Tensor | None = None,
    bound: BoundGraph | None = None,
) -> Taken:
    """Run the kernel.

    Args:
        work: what it is compiled for.
        products: fp32 ``(heads, 32, keys of all tiles)``.
        scale: the softmax scale.
        limits: int32 ``(32, 2)``.
        bound: the captures of the mod.
    """
    heads, _, length = products.shape
    tiles = length // work.keys
    dtype = torch.bfloat16 if work.element is BFloat16 else torch.float16
    found = Taken(
        torch.zeros(heads, tiles, ROWS, work.keys, dtype=dtype),
        torch.zeros(heads, tiles, ROWS),
        torch.zeros(heads, ROWS),
        torch.zeros(heads, ROWS),
    )
    ends = torch.zeros(heads, ROWS, 2)
    if limits is None:
        limits = torch.zeros(ROWS, 2, dtype=torch.int32)
    with Device(ARCH) as device:
        captures: tuple[Any, ...] = ()
        if bound is not None:
            placed = tuple(Placed(t.detach(), device) for t in bound.tensors)
            there = BoundGraph(bound.graph, placed, bound.scalars)  # type: ignore[arg-type]
            captures = captured(work, there)

        def place(tensor: torch.Tensor, element: Any) -> Any:
            return pointer(element, int(device.tensor(tensor).data_ptr()))

        results = (
            place(found.probabilities, work.element),
            place(found.corrections, Float32),
            place(ends, Float32),
        )
        given = (
            place(products, Float32),
            place(limits, Int32),
            results,
            Float32(scale),
            (Int32(heads), Int32(tiles)),
            (*captures, Int32(0)),
        )
        cute.compile(WholeRows(work), *given)(*given)
    found.inverse.copy_(ends[..., 0])
    found.lse.copy_(ends[..., 1])
    return found


def ptx_of(work: RowWork, bound: BoundGraph | None = None) -> str:
    """Return the text of the kernel."""
    return compiled(work, bound).ptx


def compiled(work: RowWork, bound: BoundGraph | None = None) -> Compilation:
    """Compile the kernel, for no device in particular."""
    captures = () if bound is None else captured(work, bound)
    results = tuple(pointer(kind, 1 << 20) for kind in (work.element, Float32, Float32))
    sizes = (Int32(1), Int32(1))
    places = (pointer(Float32, 1 << 20), pointer(Int32, 1 << 20))
    given = (*places, results, Float32(1.0), sizes, (*captures, Int32(0)))
    return compile_with_cute(WholeRows(work), given, ARCH)


def captured(work: RowWork, bound: BoundGraph) -> tuple[Any, ...]:
    """Return the values of the mod's captures; tensors lie where `bound` says."""
    signature = captures_signature(bound.graph, work.plan)
    values = capture_values(bound, work.plan, 1 << 20)
    return tuple(TYPES[p.kind](v) for p, v in zip(signature, values, strict=True))
