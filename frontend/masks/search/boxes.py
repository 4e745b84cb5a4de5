"""Three-valued evaluation of a mask over many boxes at once: always, never, or maybe visible.

A box is a batch, a head, a range of queries and a range of keys.  Every expression of the mask is
bounded over all boxes together by the interval rules of the ops table; loads are bounded by zone
maps.  FULL and EMPTY are proved; PARTIAL says only that neither is.

Splitting boxes, which is how the answers become sharp, is `refine`'s business; deciding what stays
open is `tiles`'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from flexfa4.frontend.analysis.bounds import Leaf, bound
from flexfa4.frontend.analysis.intervals import Interval
from flexfa4.frontend.ir import Node
from flexfa4.frontend.masks.search.zones import Zones

# Boxes evaluated at once: the temporaries of a chunk, 8 bytes a box, stay in a core's cache.  A
# device has more to keep busy.
_CHUNK: Final = 1 << 14
_CHUNK_DEVICE: Final = 1 << 18


@dataclass(frozen=True, eq=False)
class Boxes:
    """Boxes of lanes, none empty: int64 tensors ``(n,)`` on the device of the mask's values.

    Attributes:
        b, h: batch and head.
        q_start, q_stop: half-open range of queries.
        kv_start, kv_stop: half-open range of keys.
    """

    b: torch.Tensor
    h: torch.Tensor
    q_start: torch.Tensor
    q_stop: torch.Tensor
    kv_start: torch.Tensor
    kv_stop: torch.Tensor

    def __len__(self) -> int:
        return self.b.shape[0]

    def __getitem__(self, which: slice) -> Boxes:
        ends = (self.b, self.h, self.q_start, self.q_stop, self.kv_start, self.kv_stop)
        return Boxes(*(end[which] for end in ends))

    def interval(self, name: str) -> Interval:
        """Return what an input ranges over in each box."""
        match name:
            case "q":
                return Interval(self.q_start, self.q_stop - 1)
            case "kv":
                return Interval(self.kv_start, self.kv_stop - 1)
        point = {"b": self.b, "h": self.h}[name]
        return Interval(point, point)


def verdicts(root: Node, known: Leaf, zones: Zones, boxes: Boxes) -> torch.Tensor:
    """Return what is proved of a mask in each box.

    Args:
        root: the mask.
        known: what is known of leaves other than inputs and loads.
        zones: the zone maps of its captures.
        boxes: where.

    Returns:
        int8 ``(n,)``: EMPTY where no lane is visible, FULL where all are, PARTIAL where neither is
        proved.
    """
    found = torch.empty(len(boxes), dtype=torch.int8, device=boxes.b.device)
    chunk = _CHUNK if boxes.b.device.type == "cpu" else _CHUNK_DEVICE
    for start in range(0, len(boxes), chunk):
        some = slice(start, start + chunk)
        found[some] = _verdicts(root, known, zones, boxes[some])
    return found


def _verdicts(root: Node, known: Leaf, zones: Zones, boxes: Boxes) -> torch.Tensor:
    def leaf(node: Node) -> Interval | None:
        return boxes.interval(node.attr) if node.op == "input" else known(node)

    mask = bound(root, leaf, zones.load)
    lo, hi = (torch.as_tensor(end, device=boxes.b.device) for end in (mask.lo, mask.hi))
    return lo.to(torch.int8) + hi.to(torch.int8)  # EMPTY, PARTIAL and FULL are 0, 1 and 2
