"""What a launch did, counted while it ran.

What this module deliberately does not do: count; the execution core does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Traffic:
    """Bytes that were moved, and operations on memory.

    Attributes:
        global_read: bytes that `ld` read from global memory; ``global_written`` by `st`.
        global_written: see above.
        shared_read: bytes read from shared memory of the own block by `ld` and `ldmatrix`.
        shared_written: by `st` and `stmatrix`.
        local_read: bytes of local memory.
        local_written: see above.
        cluster_read: bytes of shared memory of another block of the cluster.
        cluster_written: see above.
        copied_in: bytes that `cp.async` copied.
        bulk_loaded: bytes that `cp.async.bulk` copied to shared memory.
        bulk_stored: bytes that it copied from there.
        bulk_reduced: bytes that `cp.reduce.async.bulk` added or otherwise reduced.
        tensor_loaded: the same by tensor maps, out-of-bounds elements included.
        tensor_stored: see above.
        tensor_reduced: see above.
        multicast: bytes written to blocks beyond the first by multicast copies.
        global_reductions: operations of `atom` and `red` in global memory.
        shared_reductions: the same in shared memory.
    """

    global_read: int = 0
    global_written: int = 0
    shared_read: int = 0
    shared_written: int = 0
    local_read: int = 0
    local_written: int = 0
    cluster_read: int = 0
    cluster_written: int = 0
    copied_in: int = 0
    bulk_loaded: int = 0
    bulk_stored: int = 0
    bulk_reduced: int = 0
    tensor_loaded: int = 0
    tensor_stored: int = 0
    tensor_reduced: int = 0
    multicast: int = 0
    global_reductions: int = 0
    shared_reductions: int = 0


@dataclass(frozen=True)
class Run:
    """What a launch did.

    Attributes:
        by_warp: executed instructions of each warp of a block, added up over the blocks: number of
            times by opcode, as the PTX writes it.  An instruction counts once for a warp, however
            many of its lanes take part.
        matrices: matrix products by instruction and shape.
        traffic: bytes and operations on memory.
        printed: what the kernel printed.
        seconds: that the core took.
    """

    by_warp: tuple[Mapping[str, int], ...] = ()
    matrices: Mapping[str, int] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    printed: tuple[str, ...] = ()
    seconds: float = 0.0

    def __repr__(self) -> str:
        """Return the totals; the counters themselves would fill pages."""
        return (
            f"Run({self.instructions} instructions of {len(self.by_warp)} warps"
            f" in {self.seconds * 1e3:.1f} ms; see executed, by_warp, matrices, traffic, printed)"
        )

    @property
    def executed(self) -> dict[str, int]:
        """Executed instructions of all warps by opcode, the most frequent first."""
        total: dict[str, int] = {}
        for warp in self.by_warp:
            for opcode, number in warp.items():
                total[opcode] = total.get(opcode, 0) + number
        return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))

    @property
    def instructions(self) -> int:
        """Executed instructions of all warps."""
        return sum(sum(warp.values()) for warp in self.by_warp)
