"""Runs `emit_kernels.Evaluation` on an emulated device, for tests."""

from __future__ import annotations

from typing import Any

import cutlass
import torch
from cutlass import cute
from cutlass.cute.runtime import make_ptr

from flexfa4.emulator import Device
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.sizes import Sizes
from flexfa4.kernels.compile.cute import compile_with_cute
from flexfa4.kernels.emit.captures import CapturePlan, capture_values, captures_signature
from tests.emulate.emit_kernels import Evaluation, Work

TYPES: dict[str, Any] = {
    "pointer": cutlass.Int64,
    "i64": cutlass.Int64,
    "i32": cutlass.Int32,
    "f32": cutlass.Float32,
}


def pointer(element: Any, address: int) -> Any:
    return make_ptr(element, address, cute.AddressSpace.gmem, assumed_align=16)


def arguments(
    bound: BoundGraph, plan: CapturePlan, sizes: Sizes, out: int, products: int, scale: float
) -> tuple[Any, ...]:
    """Return the arguments of a launch; the captures lie where `bound` says."""
    signature = captures_signature(bound.graph, plan)
    values = capture_values(bound, plan, products)
    # one more, for an empty tuple is no argument
    captures = [TYPES[p.kind](v) for p, v in zip(signature, values, strict=True)]
    return (
        pointer(cutlass.Int64, out),
        pointer(cutlass.Float32, products),
        scale,
        tuple(cutlass.Int32(n) for n in sizes),
        (*captures, cutlass.Int32(0)),
    )


def ptx_of(work: Work, bound: BoundGraph, sizes: Sizes) -> str:
    """Return the text of the kernel."""
    example = arguments(bound, work.plan, sizes, 1 << 20, 1 << 20, 1.0)
    return compile_with_cute(Evaluation(work), example, work.arch).ptx


class Placed:
    """A tensor whose address is the emulated device's."""

    def __init__(self, tensor: torch.Tensor, device: Device) -> None:
        self._tensor, self._device = tensor, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)

    def data_ptr(self) -> int:
        return int(self._device.tensor(self._tensor).data_ptr())


def evaluated(
    work: Work,
    bound: BoundGraph,
    sizes: Sizes,
    products: torch.Tensor | None = None,
    scale: float = 1.0,
) -> torch.Tensor:
    """Return the results as int64 ``(results, B, H, Lq, Lk)``: of floats, the bits.

    Args:
        work: what to evaluate.
        bound: the captures.
        sizes: of the call.
        products: ``(B, H, Lq, Lk)``, the scores before scaling; None for zeros.
        scale: the softmax scale.
    """
    shape = (sizes.batch, sizes.heads, sizes.q_len, sizes.kv_len)
    if products is None:
        products = torch.zeros(shape)
    out = torch.full((work.results, *shape), -(2**62), dtype=torch.int64)
    with Device(work.arch) as device:
        placed = tuple(Placed(t.detach(), device) for t in bound.tensors)
        there = BoundGraph(bound.graph, placed, bound.scalars)  # type: ignore[arg-type]
        out_at, products_at = (int(device.tensor(t).data_ptr()) for t in (out, products))
        given = arguments(there, work.plan, sizes, out_at, products_at, scale)
        cute.compile(Evaluation(work), *given)(*given)
    return out


def floats(bits: torch.Tensor) -> torch.Tensor:
    """Return the floats whose bits were written."""
    return bits.to(torch.int32).view(torch.float32)
