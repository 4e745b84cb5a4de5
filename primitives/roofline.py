"""How long work takes that several resources of a multiprocessor share: a roofline with soft edges.

`Work` is what a piece of a kernel asks of each resource, or what the hardware does in a cycle.  If
all overlapped perfectly, the slowest resource would decide; if nothing did, times would
add up.  Kernels are between: the time is the p-norm of the times of what executes, with p from
measurements (1 is no overlap, infinity the roofline).  Copies that run on their own, by TMA or by
the tensor cores' reads of shared memory, only bound it.

Knows no kernels: `kernels.<architecture>.model` says how much work a tile is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final


@dataclass(frozen=True)
class Work:
    """What is asked of a multiprocessor, or what it does in a cycle.

    Attributes:
        tensor: floating point operations of the tensor cores.
        mufu: exponentials and other special functions, of all threads.
        fma: fp32 additions and multiplications, likewise.
        alu: integer operations, comparisons, selections, extremes and conversions, likewise.
        issue: instructions of any kind, likewise: 32 for each of a warp.
        load: reads of global memory, likewise.
        shared: bytes of shared memory that the tensor cores read.
        l2: bytes that come from the L2 cache.
        columns: bytes that threads read from tensor memory and write to it.
    """

    tensor: float = 0.0
    mufu: float = 0.0
    fma: float = 0.0
    alu: float = 0.0
    issue: float = 0.0
    load: float = 0.0
    shared: float = 0.0
    l2: float = 0.0
    columns: float = 0.0

    def over(self, rates: Work) -> Cycles:
        """Return the cycles that each resource is busy.

        Args:
            rates: what each does in a cycle; 0 for what is not there, and not asked for.
        """
        asked = {f.name: (getattr(self, f.name), getattr(rates, f.name)) for f in fields(self)}
        return {name: work / rate if work else 0.0 for name, (work, rate) in asked.items()}


Cycles = dict[str, float]
"""Cycles by resource, the attributes of `Work`."""

EXECUTED: Final = ("tensor", "mufu", "fma", "alu", "issue", "load")
"""The resources whose times share the p-norm; the others run on their own."""

NAMES: Final = {
    "tensor": "tensor cores",
    "mufu": "special functions",
    "fma": "fp32",
    "alu": "integers and comparisons",
    "issue": "issue slots",
    "load": "loads",
    "shared": "shared memory",
    "l2": "L2 cache",
    "columns": "tensor memory",
}
"""The resources in words."""


def overlapped(cycles: Cycles, overlap: float) -> float:
    """Return how long work takes of which each resource has a part.

    Args:
        cycles: that each of them is busy.
        overlap: the exponent p, at least 1; see the module.
    """
    assert overlap >= 1
    busiest = max(cycles.values())
    if not busiest or math.isinf(overlap):
        return busiest
    norm = math.fsum(math.pow(cycles[name] / busiest, overlap) for name in EXECUTED)
    return busiest * max(1.0, math.pow(norm, 1 / overlap))


def bounds_of(cycles: Cycles) -> list[str]:
    """Return the resources that are busy longest: several, where they are alike."""
    busiest = max(cycles.values())
    return [name for name, busy in cycles.items() if busy >= _ALIKE * busiest]


_ALIKE: Final = 0.98
