"""Compiled kernels that were not compiled, for tests of what is done with one."""

from __future__ import annotations

from typing import Any

from flexfa4.kernels.compile.compiled_kernel import CompiledKernel, Resources, Versions
from flexfa4.kernels.compile.signature import (
    Float32,
    Int32,
    Int64,
    Pointer,
    Signature,
    TensorMap,
)

EVERY_KIND: Signature = (
    TensorMap("x", "bf16", box=(64, 128, 1), swizzle=128),
    Int32("rows"),
    Pointer("out"),
    TensorMap("y", "f32", box=(8,), l2_promotion=0, nan_fill=True),
    Float32("scale"),
    Int64("stride"),
    Int32("columns"),
)


def compiled_kernel(**fields: Any) -> CompiledKernel:
    """Return a kernel with these fields, and others that stand for something."""
    given: dict[str, Any] = {
        "name": "kernel",
        "arch": "sm_90a",
        "signature": EVERY_KIND,
        "block": (384, 1, 1),
        "cluster": (2, 1, 1),
        "resources": Resources(168, (24, 240), 8, 16, 200_000),
        "versions": Versions("4.8.1", "V13.4.59"),
        "ptx": ".version 8.8\n// µ\n" * 100,
        "cubin": bytes(range(256)) * 8,
    }
    return CompiledKernel(**{**given, **fields})
