"""Zone maps: the least and greatest values of captured tensors within any box of indices.

Each tensor that is asked for gets a table of its extremes (`sparse_table`), whose cells are chosen
by what one block of the mask reads: bounds are sound for any box, and exact for blocks and for the
boxes that a quad-tree makes of them.  Parts of a range outside the tensor are left out: that loads
are in range is proved elsewhere (`loads`).

`Zones` belong to one `Values`, whose tensors must not change: they are made when a mask is
analysed and dropped with the answer.  There is no cache beyond that; whoever knows that captures
are still the same keeps what was found with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import torch

from flexfa4.frontend.analysis.bounds import Leaf, bound, unknown
from flexfa4.frontend.analysis.intervals import Interval
from flexfa4.frontend.evaluate import Values
from flexfa4.frontend.ir import Buffer, Node
from flexfa4.frontend.masks.search.sparse_table import Extremes, SparseTable

# A dimension that one block of the mask reads in steps of one has so many cells in a block.
_CELLS_IN_BLOCK: Final = 8


class Zones:
    """Bounds of the loads of a mask.

    Args:
        values: the captures; loads are in range.
        block_size: the smallest ranges of queries and keys that matter: bounds of smaller ones may
            be loose.
        known: what is known of leaves other than inputs and loads.
    """

    def __init__(
        self,
        values: Values,
        block_size: tuple[int, int] = (128, 128),
        known: Leaf = unknown,
    ) -> None:
        self._values = values
        self._block_size = block_size
        self._known = known
        self._granules: dict[Node, list[int]] = {}
        self._tables: dict[tuple[Buffer, tuple[_Cut, ...]], SparseTable | Interval] = {}

    def load(self, node: Node, indices: Sequence[Interval]) -> Interval | None:
        """Return bounds of a load for each of some boxes.

        Args:
            node: the load.
            indices: bounds of its indices; ends are numbers, or int64 tensors ``(n,)`` of one for
                each box.  Negative indices count from the end.

        Returns:
            Bounds with numbers as ends where all indices have, else with tensors ``(n,)``; None
            for a tensor without elements.
        """
        tensor = self._values.tensors[node.attr]
        if not tensor.numel():
            return None
        ends = [
            _inside(index, size, may_wrap=arg.op not in ("input", "iota"))
            for index, arg, size in zip(indices, node.args, tensor.shape, strict=True)
        ]
        cuts = self._cuts(node, ends)
        table = self._tables.get((node.attr, cuts))
        if table is None:
            table = self._tables[node.attr, cuts] = self._made(node.attr, cuts)
        if isinstance(table, Interval):
            return table
        return table.bounds(
            [end for end, cut in zip(ends, cuts, strict=True) if isinstance(cut, int)]
        )

    def _cuts(self, node: Node, ends: Sequence[tuple[Any, Any]]) -> tuple[_Cut, ...]:
        """Return how to cut each dimension for boxes with these ends.

        Once a dimension was asked for ranges it is cut for ranges.
        """
        granules = self._granules.setdefault(node, [0] * len(ends))
        for d, (lo, hi) in enumerate(ends):
            if not granules[d] and _is_range(lo, hi):
                granules[d] = self._granule(node.args[d])
        return tuple(
            granule if isinstance(lo, torch.Tensor) else (lo, hi)
            for (lo, hi), granule in zip(ends, granules, strict=True)
        )

    def _made(self, buffer: Buffer, cuts: tuple[_Cut, ...]) -> SparseTable | Interval:
        """Return the table of a tensor that is cut in this way; its bounds, if it is one box."""
        tensor = self._values.tensors[buffer].detach().to(self._values.device)
        fixed = []
        for d, cut in enumerate(cuts):
            if isinstance(cut, tuple):
                fixed.append(d)
                tensor = tensor.narrow(d, cut[0], cut[1] - cut[0] + 1)
        extremes = Extremes.of(tensor, buffer.dtype, self._values.dtype)
        if fixed:
            extremes = extremes.over(fixed)
        wanted = [cut for cut in cuts if isinstance(cut, int)]
        if not wanted:
            return extremes.interval(buffer.dtype)
        return SparseTable.of(extremes, wanted, buffer.dtype, tensor.nbytes)

    def _granule(self, index: Node) -> int:
        """Return how many elements along an index make a cell: a power of two."""
        rows, columns = self._block_size
        ranges = {"q": rows, "kv": columns}

        def leaf(node: Node) -> Interval | None:
            if node.op == "input":
                return Interval(0, ranges.get(node.attr, 1) - 1)
            return self._known(node)

        first = bound(index, leaf, self.load)
        extent = int(first.hi) - int(first.lo) + 1
        return 1 << max(0, (extent // _CELLS_IN_BLOCK).bit_length() - 1)


# ---- what is asked of a dimension ----------------------------------------------------------------

# How a dimension is cut: for the range ``(lo, hi)`` of indices that all boxes have, for one
# index in each box (0), or for a range in each (how many elements make a cell).
_Cut: TypeAlias = "tuple[int, int] | int"


def _inside(index: Interval, size: int, may_wrap: bool) -> tuple[Any, Any]:
    """Return the least and greatest element that an index reads, both within the tensor."""
    lo, hi = index.lo, index.hi
    if not isinstance(lo, torch.Tensor) and not isinstance(hi, torch.Tensor):
        if hi < 0:
            lo, hi = lo + size, hi + size
        elif lo < 0:
            hi = size - 1
        return min(max(int(lo), 0), size - 1), min(max(int(hi), 0), size - 1)
    if not isinstance(lo, torch.Tensor):
        lo = torch.as_tensor(lo, device=hi.device)
    if not isinstance(hi, torch.Tensor):
        hi = torch.as_tensor(hi, device=lo.device)
    if may_wrap:
        below, wrapped = lo < 0, (hi < 0) * size
        # an index on both sides of zero reads from both ends of the tensor: from all of it
        hi = (hi + wrapped).masked_fill(below & (hi >= 0), size - 1)
        lo = (lo + wrapped).clamp(min=0)
    return lo.clamp(max=size - 1), hi.clamp(max=size - 1)


def _is_range(lo: Any, hi: Any) -> bool:
    """Whether any box has more than one index."""
    return isinstance(lo, torch.Tensor) and lo is not hi and bool((lo != hi).any())
