"""Which tiles are visited, whatever the lengths of the sequences turn out to be.

A mask of one sequence serves where its closed form is one interval of keys for each query, with
ends that a kernel computes from the lengths of that sequence; what the form rests on has to hold
for all lengths up to the totals.  Captured tensors are not looked into: integers of 64 bits in them
are taken to be less than ``2**62`` in size, far beyond any position.
"""

from __future__ import annotations

import functools
from typing import Final

import torch

from flexfa4.frontend.analysis.bounds import Leaf, Premises, bound, bounds, premises
from flexfa4.frontend.analysis.intervals import ANY_I32
from flexfa4.frontend.analysis.intervals import Interval as Bounds
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.evaluate import Values
from flexfa4.frontend.ir import I32, Buffer, Node
from flexfa4.frontend.masks.grid import MaskSize
from flexfa4.frontend.masks.solving.premises import Bounded
from flexfa4.frontend.masks.solving.solve import NotClosed, closed_form
from flexfa4.frontend.masks.solving.solved import Solved
from flexfa4.frontend.ops import OPS
from flexfa4.frontend.sizes import Sizes
from flexfa4.kernels.blocks.intervals import Interval, interval_of
from flexfa4.kernels.blocks.steps import steps_of
from flexfa4.kernels.blocks.walk import Walk, WalkPlan
from flexfa4.primitives.tile_walk import TileShape

_FAR: Final = 1 << 62


def walk_of(mask: BoundGraph | None, shape: TileShape, sizes: Sizes) -> Walk | None:
    """Return how a kernel finds its tiles, None where it takes lists of them.

    Args:
        mask: of one sequence; None for none.
        shape: of a tile.
        sizes: of the call: as many batches as sequences, and the totals for lengths.
    """
    if mask is None:
        return Walk(WalkPlan("dense", shape))
    dtypes = tuple([t.dtype for t in mask.tensors])
    interval = _interval(premises(mask, sizes, any_length=True), dtypes)
    if interval is None:
        return None
    tensors = dict(zip(mask.graph.buffers, mask.tensors, strict=True))
    scalars = dict(zip(mask.graph.scalars, mask.scalars, strict=True))
    graph = interval.graph
    own = (tuple([tensors[b] for b in graph.buffers]), tuple([scalars[s] for s in graph.scalars]))
    captured = BoundGraph(graph, *own)
    return Walk(_plan(interval, shape), interval=captured)


@functools.lru_cache(maxsize=256)
def _plan(interval: Interval, shape: TileShape) -> WalkPlan:
    alike = all(steps_of(end, interval.line).monotone for end in (interval.begin, interval.end))
    return WalkPlan("closed", shape, interval, "edges" if alike else "all")


@functools.lru_cache(maxsize=256)
def _interval(given: Premises, dtypes: tuple[torch.dtype, ...]) -> Interval | None:
    """Return the interval of a mask; None where it has none, or not for all lengths.

    Args:
        given: the mask.
        dtypes: of the tensors that it captures.
    """
    form = closed_form(given.graph, "kv")
    if isinstance(form, NotClosed) or len(form.spans) > 1:
        return None
    leaf = _leaf(given, dtypes)
    for premise in form.premises:
        if not isinstance(premise, Bounded):
            return None
        if not bound(premise.node, leaf).within(premise.lo, premise.hi):
            return None
    sizes, shapes = given.sizes, dict(zip(given.graph.buffers, given.shapes, strict=True))
    for root in (form.root, *(end for span in form.spans for end in (span.start, span.stop))):
        found = bounds(root, leaf)
        for node, values in found.items():
            if values == ANY_I32 and node.dtype is I32 and node.op in OPS:
                return None  # it may overflow
            if node.op == "load":
                indices = zip(node.args, shapes[node.attr], strict=True)
                if not all(found[index].within(-n, n - 1) for index, n in indices):
                    return None
    size = MaskSize(sizes.batch, sizes.heads, sizes.q_len, sizes.kv_len)
    interval = interval_of(Solved(form, Values(_names(given.graph.buffers)), size))
    return None if interval is None or interval.tables else interval


def _leaf(given: Premises, dtypes: tuple[torch.dtype, ...]) -> Leaf:
    """Return what is known of leaves, loads among them."""
    domain = given.domain()
    stored = dict(zip(given.graph.buffers, dtypes, strict=True))

    def leaf(node: Node) -> Bounds | None:
        if node.op != "load" or node.dtype is not I32:
            return domain.leaf(node)
        info = torch.iinfo(stored[node.attr])
        return Bounds(max(info.min, -_FAR), min(info.max, _FAR))

    return leaf


def _names(buffers: tuple[Buffer, ...]) -> dict[Buffer, torch.Tensor]:
    """Return buffers without content: `interval_of` asks for their names alone."""
    return dict.fromkeys(buffers, torch.empty(0))
