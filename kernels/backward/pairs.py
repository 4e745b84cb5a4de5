"""The batches and query heads that a tile of keys belongs to, in a kernel that is being traced.

Query heads of a group share a key head, and batches of queries may share a batch of keys: a block
meets the queries of all of them, one pair of batch and head after the other.
"""

from __future__ import annotations

from cutlass import Int32

from flexfa4.kernels.backward.parameters import Parameters
from flexfa4.kernels.emit.evaluator import TraceTime
from flexfa4.primitives.scheduler import Item


class Pairs(TraceTime):
    """The pairs of batch and query head that an item's keys belong to.

    Attributes:
        count: how many there are.
    """

    def __init__(self, parameters: Parameters, item: Item) -> None:
        self._group = parameters.group
        self._item = item
        self.count = self._group * parameters["shared_batches"]

    def of(self, number: Int32) -> tuple[Int32, Int32]:
        """Return batch and query head of a pair."""
        further = number // self._group
        head = self._item.head * self._group + number - further * self._group
        return self._item.batch + further, head
