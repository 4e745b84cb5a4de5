"""How far the GPU's approximations are from the exact values, over all numbers of their types.

For each instruction every input is tried: 2**32 of them for f32.  Exact values are computed in f64
by torch on the GPU, which is good for errors of a hundredth of a unit.

What this module deliberately does not do: know what errors are allowed; `tests.test_calibration`
compares them with the PTX ISA's bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from tests.calibration.gpu import DeviceKernel

CHUNK = 1 << 26
LEAST_EXPONENT = {torch.float32: -126, torch.float16: -14, torch.bfloat16: -126}
MANTISSA = {torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "ex2": torch.exp2,
    "lg2": torch.log2,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "rcp": torch.reciprocal,
    "sqrt": torch.sqrt,
    "rsqrt": lambda x: 1 / x.sqrt(),
}
INSTRUCTIONS = (
    *(f"{name}.approx{ftz}.f32" for name in FUNCTIONS for ftz in ("", ".ftz") if name != "tanh"),
    "tanh.approx.f32",
    "ex2.approx.f16",
    "tanh.approx.f16",
    "ex2.approx.ftz.bf16",
    "tanh.approx.bf16",
)

Range = tuple[float, float]
_TURNS = ((0, 2 * math.pi), (2 * math.pi, 100 * math.pi))
_RANGES: dict[str, tuple[Range, ...]] = {
    "sin": _TURNS,
    "cos": _TURNS,
    "lg2": ((0.5, 2), (2, math.inf), (0, 0.5)),
}

KERNEL = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry sweep(.param .u64 out, .param .u32 first, .param .u32 count)
{{
    .reg .b32 i, n, x, y;
    .reg .b16 hx, hy;
    .reg .b64 at, base;
    .reg .pred p;
    mov.u32 i, %ctaid.x;
    mov.u32 n, %ntid.x;
    mul.lo.u32 i, i, n;
    mov.u32 n, %tid.x;
    add.u32 i, i, n;
    ld.param.u32 n, [count];
    setp.ge.u32 p, i, n;
    @p bra END;
    ld.param.u64 base, [out];
    ld.param.u32 x, [first];
    add.u32 x, x, i;
    {instruction}
END:
    ret;
}}
"""
WORD = "{op} y, x; mul.wide.u32 at, i, 4; add.u64 at, at, base; st.global.b32 [at], y;"
HALF = (
    "cvt.u16.u32 hx, x; {op} hy, hx; mul.wide.u32 at, i, 2; add.u64 at, at, base;"
    " st.global.b16 [at], hy;"
)


def ranges_of(opcode: str) -> tuple[Range, ...]:
    """Return the ranges of |x| for which errors are measured apart, as the PTX ISA bounds them."""
    return _RANGES.get(opcode.split(".")[0], ((0, math.inf),))


def dtype_of(opcode: str) -> torch.dtype:
    """Return the type of an instruction's operands."""
    return {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[
        opcode.split(".")[-1]
    ]


def flushed(opcode: str, x: torch.Tensor) -> torch.Tensor:
    """Make zero of subnormal numbers, where the instruction does."""
    least = 2.0 ** LEAST_EXPONENT[dtype_of(opcode)]
    return (
        torch.where(x.abs() < least, torch.zeros_like(x).copysign(x), x) if ".ftz" in opcode else x
    )


def exact(opcode: str, *operands: torch.Tensor) -> torch.Tensor:
    """Return the exact results, as f64."""
    wide = [flushed(opcode, x.double()) for x in operands]
    if len(wide) == 2:
        return wide[0] / wide[1]
    return FUNCTIONS[opcode.split(".")[0]](wide[0])


def sweep(opcode: str) -> list[dict[str, float]]:
    """Try an instruction on every input.

    Returns:
        For each of its ranges the greatest errors of finite results: in units in the last place
        (``ulp``), relative to normal results (``relative``) and as they are (``absolute``); and how
        many results are infinite, NaN or zero where the rounded ones are not, or the other way
        round (``different``).
    """
    dtype = dtype_of(opcode)
    wide = dtype == torch.float32
    kernel = DeviceKernel(KERNEL.format(instruction=(WORD if wide else HALF).format(op=opcode)))
    kinds = ("ulp", "relative", "absolute", "different")
    errors = [dict.fromkeys(kinds, 0.0) for _ in ranges_of(opcode)]
    total = 1 << 32 if wide else 1 << 16
    chunk = min(CHUNK, total)
    out = torch.zeros(chunk, dtype=dtype, device="cuda")
    for first in range(0, total, chunk):
        kernel.launch_on(out, first, chunk)
        _take(errors, opcode, _inputs(first, chunk, dtype), out)
    return errors


def _inputs(first: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    signed = first - (1 << 32) if first >= 1 << 31 else first
    words = torch.arange(signed, signed + count, dtype=torch.int64, device="cuda")
    return words.to(torch.int32 if dtype == torch.float32 else torch.int16).view(dtype)


def _take(
    errors: list[dict[str, float]], opcode: str, x: torch.Tensor, results: torch.Tensor
) -> None:
    dtype = dtype_of(opcode)
    least = 2.0 ** LEAST_EXPONENT[dtype]
    value, found = exact(opcode, x), results.double()
    rounded = flushed(opcode, value.to(dtype).double())
    usual = rounded.isfinite() & found.isfinite() & (rounded != 0) & (found != 0)
    if ".ftz" in opcode:
        usual &= value.abs() >= least
    different = ~usual & (rounded != found) & ~(rounded.isnan() & found.isnan())
    gap = (found - value).abs()
    exponent = torch.frexp(value.abs())[1] - 1
    unit = torch.exp2((exponent.clamp(min=LEAST_EXPONENT[dtype]) - MANTISSA[dtype]).double())
    size = x.double().abs()
    for error, (low, high) in zip(errors, ranges_of(opcode), strict=True):
        inside = usual & (size >= low) & (size <= high)
        error["different"] += int((different & (size >= low) & (size <= high)).sum())
        if inside.any():
            error["ulp"] = max(error["ulp"], float((gap / unit)[inside].max()))
            error["absolute"] = max(error["absolute"], float(gap[inside].max()))
        normal = inside & (value.abs() >= least)
        if normal.any():
            error["relative"] = max(error["relative"], float((gap / value.abs())[normal].max()))
