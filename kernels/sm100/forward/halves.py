"""Which tiles of keys an item visits, and which of its halves take part in which.

The halves of an item share the tiles of K and V that are loaded; a half that sees nothing of a
tile, or has no queries at all, is left out of its products, its softmax and its rescaling.  Each
warp works that out for itself.
"""

from __future__ import annotations

from typing import Any

from cutlass import Int32

from flexfa4.kernels.emit.evaluator import TraceTime
from flexfa4.kernels.forward.parameters import Parameters
from flexfa4.kernels.sm100.forward.barriers import both
from flexfa4.kernels.sm100.forward.plan import TILE_ROWS
from flexfa4.kernels.sm100.forward.tmem import HALVES
from flexfa4.primitives.device_arithmetic import DEVICE
from flexfa4.primitives.scheduler import Item
from flexfa4.primitives.tile_walk import Closed, Line, Listed, Stretch, TileShape, Visits


class Halves(TraceTime):
    """The halves of an item.

    Attributes:
        tiles: of keys that it visits, if any.
        exist: a flag for each half: it has queries.
    """

    def __init__(self, parameters: Parameters, item: Item) -> None:
        walk = parameters.plan.walk
        queries, first = walk.shape.queries // HALVES, HALVES * item.q_tile
        self.exist = both(True, (first + 1) * queries < parameters["q_len"])
        if walk.shape.rows > TILE_ROWS:  # products are of both blocks: all halves take part
            assert walk.source == "dense"
            self.exist = Int32((1 << HALVES) - 1)
        self._own: list[Stretch] = []
        self._line: tuple[Line, Any] | None = None
        if walk.source == "closed":
            shape = TileShape(queries, walk.shape.keys, walk.shape.group)
            source = Closed(shape, parameters.limits, walk.sampling)
            self._own = [source.row(item.batch, item.head, first + half) for half in range(HALVES)]
            self.tiles: Visits = self._own[0].joined(self._own[1])
            return
        listed = parameters.source
        self.tiles = listed.row(item.batch, item.head, item.q_tile)
        if isinstance(listed, Listed) and isinstance(self.tiles, Line) and walk.halves:
            self._line = self.tiles, listed.halves

    def of_partial(self, i: Int32) -> Int32:
        """Return a flag for each half: it takes part in the i-th visit that needs the mask."""
        if self._own:
            tile = self.tiles.partial(i)
            see = [(own.begin <= tile) & (tile < own.end) for own in self._own]
            return both(*see) & self.exist
        if self._line is not None:
            line, halves = self._line
            return Int32(DEVICE.load(halves, line.begin + i)) & self.exist
        return self.exist

    def of_visit(self, i: Int32) -> Int32:
        """Return likewise for the i-th visit, of those with the mask and then those without."""
        if not self._own and self._line is None:
            return self.exist
        partial = self.of_partial(i)
        return Int32(DEVICE.select(i < self.tiles.partial_count, partial, self.exist))
