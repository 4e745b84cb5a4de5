"""The ends of the intervals of a mask, as values of a kernel that CuTe-DSL traces."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from flexfa4.kernels.blocks.intervals import Interval
from flexfa4.kernels.emit.builders import wrapped
from flexfa4.kernels.emit.captures import CapturePlan
from flexfa4.kernels.emit.evaluator import Fixed, Frame, Leaves
from flexfa4.kernels.emit.places import Columns, Row


@dataclass(frozen=True)
class EmittedEnds:
    """Evaluates the ends of intervals where it is called; see `primitives.tile_walk.RowEnds`.

    Attributes:
        interval: the intervals.
        plan: what is known of its captures, along the interval's index.
        leaves: values of the kernel; batch and head are those of each row that is asked for.
    """

    interval: Interval
    plan: CapturePlan
    leaves: Leaves

    def __call__(self, batch: Any, head: Any, line: Any) -> tuple[Any, Any]:
        """Return the interval of a query, or of a key, integers of 32 or 64 bits."""
        leaves = replace(self.leaves, b=batch, h=head)
        fixed = Fixed(self.interval.graph, self.plan, leaves, Columns((0,)), exact=True)
        frame = Frame(fixed).with_rows([Row(line)])
        begin, end = (
            frame.evaluate(node, 0 if frame.axes(node) else None, None)
            for node in (self.interval.begin, self.interval.end)
        )
        return wrapped(begin), wrapped(end)
