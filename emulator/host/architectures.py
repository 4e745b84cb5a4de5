"""The devices that can be emulated: what host code asks of one, and what a launch may use.

A table, and the look-up in it.  Numbers are those of the CUDA driver's device attributes for an
H100/H200, a B200 and a B300; the limits of threads and shared memory are also in the CUDA C++
Programming Guide, "Technical Specifications per Compute Capability".  What a kernel itself can do
on an architecture is not decided here but by the reader of its PTX.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from flexfa4.emulator.host.errors import UnknownArchitectureError

KIB: Final = 1024
MIB: Final = 1024 * KIB


@dataclass(frozen=True)
class Architecture:
    """A GPU as its host sees it.

    Attributes:
        name: the ``.target`` of its PTX, such as ``sm_100a``.
        capability: compute capability, major and minor.
        sms: number of streaming multiprocessors.
        shared_memory: bytes of shared memory of one multiprocessor.
        max_cluster: blocks in a cluster, where a kernel allows more than the portable 8.
        l2_cache: bytes of the second-level cache.
    """

    name: str
    capability: tuple[int, int]
    sms: int
    shared_memory: int
    max_cluster: int
    l2_cache: int

    reserved_shared_memory: ClassVar[int] = KIB  # of each block, for the driver
    warp: ClassVar[int] = 32
    max_threads_of_sm: ClassVar[int] = 2048
    max_threads: ClassVar[int] = 1024
    max_grid: ClassVar[tuple[int, int, int]] = (2**31 - 1, 65535, 65535)
    max_block: ClassVar[tuple[int, int, int]] = (1024, 1024, 64)

    @property
    def max_shared_memory(self) -> int:
        """Bytes of shared memory that one block may have, static and dynamic."""
        return self.shared_memory - self.reserved_shared_memory

    def attribute(self, number: int) -> int | None:
        """Return a device attribute, or None for one that host code of kernels does not ask.

        Args:
            number: of the driver's enum CUdevice_attribute, which the runtime's agrees with.
        """
        return {
            1: self.max_threads,
            10: self.warp,
            16: self.sms,
            38: self.l2_cache,
            39: self.max_threads_of_sm,
            75: self.capability[0],
            76: self.capability[1],
            81: self.shared_memory,
            97: self.max_shared_memory,
        }.get(number)


ARCHITECTURES: Final = {
    row.name: row
    for row in (
        Architecture("sm_90a", (9, 0), 132, 228 * KIB, 16, 50 * MIB),
        Architecture("sm_100a", (10, 0), 148, 228 * KIB, 16, 126 * MIB),
        Architecture("sm_103a", (10, 3), 148, 228 * KIB, 16, 126 * MIB),
    )
}


def architecture(name: object) -> Architecture:
    """Return the row of an architecture.

    Raises:
        UnknownArchitectureError: for a name that is not in the table.
    """
    found = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if found is None:
        raise UnknownArchitectureError(name=name, names=", ".join(ARCHITECTURES))
    return found
