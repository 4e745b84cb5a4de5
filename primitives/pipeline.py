"""Rings of buffers in shared memory, between one producer and the warps that consume.

Each stage of a ring has two mbarriers: *full* completes when the bytes of a load have arrived, and
*empty* when all consuming warps have arrived on it.  A `Position` is where one side stands in the
ring; producer and consumers each keep their own, and advance it once for each item.

Knows nothing of what the stages hold, nor how it is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Boolean, Int32, cute


class Position:
    """Stage of a ring and the parity of its round; a value that loops may carry.

    Attributes:
        stage: 0 <= stage < stages of the ring.
        parity: 0 in the first round over all stages, 1 in the second, 0 in the third, ...
    """

    def __init__(self, stages: int, stage: Int32, parity: Int32) -> None:
        self.stages = stages
        self.stage = stage
        self.parity = parity

    @staticmethod
    def start(stages: int) -> Position:
        """Return the first stage of the first round."""
        return Position(stages, Int32(0), Int32(0))

    def next(self) -> Position:
        """Return the position behind this one."""
        if self.stages == 1:
            return Position(1, self.stage, self.parity ^ 1)
        wraps = Int32(self.stage == self.stages - 1)
        return Position(self.stages, (self.stage + 1) * (1 - wraps), self.parity ^ wraps)

    def previous(self) -> Position:
        """Return the position before this one."""
        if self.stages == 1:
            return Position(1, self.stage, self.parity ^ 1)
        wraps = Int32(self.stage == 0)
        stage = self.stage - 1 + wraps * self.stages
        return Position(self.stages, stage, self.parity ^ wraps)

    def moved(self, stages: int) -> Position:
        """Return the position so many stages behind this one."""
        at = self
        for _ in range(stages):
            at = at.next()
        return at

    def where(self, condition: Boolean, other: Position) -> Position:
        """Return this position where a condition holds, else the other one."""
        return Position(
            self.stages,
            cutlass.select_(condition, self.stage, other.stage),
            cutlass.select_(condition, self.parity, other.parity),
        )

    def __extract_mlir_values__(self) -> list[Any]:
        return [self.stage.ir_value(), self.parity.ir_value()]

    def __new_from_mlir_values__(self, values: list[Any]) -> Position:
        return Position(self.stages, Int32(values[0]), Int32(values[1]))


@dataclass(frozen=True)
class Ring:
    """The mbarriers of a ring.

    Attributes:
        barriers: in shared memory, ``2 * stages`` of 8 bytes: full ones first, then empty ones.
        stages: buffers in the ring.
        bytes: of one load, that is, of all copies into one stage.
        consumers: warps that release each stage.
    """

    barriers: cute.Pointer
    stages: int
    bytes: int
    consumers: int

    def initialise(self) -> None:
        """Make the mbarriers; by one thread, followed by a fence and a barrier of the block."""
        for stage in range(self.stages):
            cute.arch.mbarrier_init(self.barriers + stage, 1)
            cute.arch.mbarrier_init(self.barriers + self.stages + stage, self.consumers)

    def full(self, position: Position) -> cute.Pointer:
        """Return the mbarrier on which the copies into a stage complete."""
        return self.barriers + position.stage

    def empty(self, position: Position) -> cute.Pointer:
        """Return the mbarrier on which consumers give a stage back."""
        return self.barriers + self.stages + position.stage

    def wait_until_free(self, position: Position) -> None:
        """Wait until a stage may be overwritten; the producer."""
        cute.arch.mbarrier_wait(self.empty(position), position.parity ^ 1)

    def expect(self, position: Position) -> None:
        """Announce the bytes of a stage's load; one thread of the producer, before its copies."""
        cute.arch.mbarrier_arrive_and_expect_tx(self.full(position), self.bytes)

    def wait(self, position: Position) -> None:
        """Wait until a stage has been loaded; a consuming warp."""
        cute.arch.mbarrier_wait(self.full(position), position.parity)

    def release(self, position: Position) -> None:
        """Give a stage back; one lane of a consuming warp, after the warp's last read of it."""
        cute.arch.mbarrier_arrive(self.empty(position))
