"""A launch of a kernel, as it arrived: the record that the execution core gets.

Everything in it was copied while the launching call still ran, since parameters lie on the
caller's stack.  The tensors that pointers lead to are not copied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from flexfa4.emulator.host.architectures import Architecture
from flexfa4.emulator.host.errors import LaunchShapeError, TensorMapError, WrongTargetError
from flexfa4.emulator.host.signatures import Signature, Slot
from flexfa4.emulator.host.tensor_map import ALIGNMENT, NBYTES, TensorMap
from flexfa4.emulator.results import Run

Dim3: TypeAlias = tuple[int, int, int]  # x, y, z

MOST_BLOCKS: Final = 2**32 - 1
"""Blocks of a grid that the emulator can number; devices have no such limit."""


@dataclass(frozen=True)
class Parameter:
    """The value of one kernel parameter.

    Attributes:
        slot: its name, size and alignment.
        data: its bytes, in the order of memory.
    """

    slot: Slot
    data: bytes

    @property
    def name(self) -> str:
        """Its name in the PTX."""
        return self.slot.name

    def integer(self) -> int:
        """Return its bytes as one unsigned number: the address, where it is a pointer."""
        return int.from_bytes(self.data, "little")


@dataclass(frozen=True)
class Shape:
    """Sizes of a launch: blocks in the grid, threads in a block, blocks in a cluster."""

    grid: Dim3
    block: Dim3
    cluster: Dim3 = (1, 1, 1)
    shared_memory: int = 0  # dynamic, bytes for each block


@dataclass(frozen=True)
class Launch:
    """A kernel and everything it was launched with.

    Attributes:
        ptx: text of the module that defines it, edited where the device edits.
        signature: name of the kernel, its target and parameters.
        shape: grid, block, cluster and dynamic shared memory.
        parameters: values in order.
        stream: handle of the stream; launches run one after another whatever it is.
        cooperative: all blocks are resident at once.
        programmatic: may start before the launch ahead of it has ended.
        run: what it did; None until it has run to its end, and where it failed.
    """

    ptx: str = field(repr=False)
    signature: Signature
    shape: Shape
    parameters: tuple[Parameter, ...]
    stream: int = 0
    cooperative: bool = False
    programmatic: bool = False
    run: Run | None = field(default=None, repr=False, compare=False)

    @property
    def entry(self) -> str:
        """Name of the kernel in the PTX."""
        return self.signature.entry

    @property
    def grid(self) -> Dim3:
        """Blocks along x, y, z."""
        return self.shape.grid

    @property
    def block(self) -> Dim3:
        """Threads of a block along x, y, z."""
        return self.shape.block

    @property
    def cluster(self) -> Dim3:
        """Blocks of a cluster along x, y, z."""
        return self.shape.cluster

    @property
    def shared_memory(self) -> int:
        """Bytes of dynamic shared memory of a block."""
        return self.shape.shared_memory

    @property
    def tensor_maps(self) -> Mapping[str, TensorMap]:
        """Tensor maps among the parameters, by the parameter's name.

        A map is a parameter of 128 aligned bytes that decode; another struct of that size is left
        out.  Code that copies through a map decodes it itself, and gets the reason.
        """
        decoded = {}
        for parameter in self.parameters:
            if parameter.slot.nbytes == NBYTES and parameter.slot.alignment % ALIGNMENT == 0:
                try:
                    decoded[parameter.name] = TensorMap.decode(parameter.data)
                except TensorMapError:
                    continue
        return decoded

    def check(self, device: Architecture) -> None:
        """Refuse what the CUDA driver refuses.

        Raises:
            WrongTargetError: for PTX of another architecture.
            LaunchShapeError: for a size beyond the device's limits.
        """
        if self.signature.target != device.name:
            raise WrongTargetError(
                entry=self.entry, target=self.signature.target, device=device.name
            )
        for rule in _rules(self, device):
            if not rule.holds:
                raise LaunchShapeError(
                    entry=self.entry,
                    found_value=rule.found,
                    wanted=rule.wanted,
                    rewrite=rule.rewrite,
                )


@dataclass(frozen=True)
class _Rule:
    """Whether a launch keeps a limit; what it has, what may be, and what to write instead."""

    holds: bool
    found: str
    wanted: str
    rewrite: str


def _rules(launch: Launch, device: Architecture) -> tuple[_Rule, ...]:
    """Return the rules in the order in which they are told."""
    grid, block, cluster = launch.grid, launch.block, launch.cluster
    static = launch.signature.static_shared_memory
    shared, room = launch.shared_memory + static, device.max_shared_memory - static
    pairs = tuple(zip(grid, cluster, strict=True))
    whole = tuple(-(-g // max(c, 1)) * c for g, c in pairs)
    return (
        _Rule(
            _within(grid, device.max_grid),
            f"grid {grid}",
            f"from (1, 1, 1) to {device.max_grid}",
            "at least one block along each axis, and the most of them along x",
        ),
        _Rule(
            math.prod(grid) <= MOST_BLOCKS,
            f"{math.prod(grid)} blocks in the grid",
            f"at most {MOST_BLOCKS} of them in the emulator",
            "fewer blocks, each with a loop over its share of the work",
        ),
        _Rule(
            _within(block, device.max_block),
            f"block {block}",
            f"from (1, 1, 1) to {device.max_block}",
            "smaller blocks, and more of them in the grid",
        ),
        _Rule(
            math.prod(block) <= device.max_threads,
            f"{math.prod(block)} threads in a block",
            f"at most {device.max_threads}",
            "smaller blocks, and more of them in the grid",
        ),
        _Rule(
            _within(cluster, (device.max_cluster,) * 3)
            and math.prod(cluster) <= device.max_cluster,
            f"cluster {cluster}",
            f"from 1 to {device.max_cluster} blocks",
            f"cluster={device.max_cluster} or less",
        ),
        _Rule(
            all(g % c == 0 for g, c in pairs if c > 0),
            f"grid {grid} and cluster {cluster}",
            "a grid that is a multiple of the cluster along each axis",
            f"grid={whole}, with blocks that find nothing to do",
        ),
        _Rule(
            shared <= device.max_shared_memory,
            f"{shared} bytes of shared memory, {static} of them the kernel's own",
            f"at most {device.max_shared_memory} for a block",
            f"shared_memory={room} or less" if room >= 0 else "smaller .shared variables",
        ),
    )


def _within(sizes: Dim3, limits: Dim3) -> bool:
    return all(1 <= size <= limit for size, limit in zip(sizes, limits, strict=True))
