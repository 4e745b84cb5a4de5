"""`ForwardPlan`: all that the forward kernel's code depends on, and the key it is kept by.

A plan says nothing that a call may change without new code: lengths, strides, heads, batch, values
of captures and the scale are parameters of the kernel, and `signature` is their order.  Needs no
CuTe-DSL: a warm process makes plans, finds their kernels on disk and launches them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flexfa4.frontend.ir import Graph
from flexfa4.kernels.blocks.walk import ORDER_PARAMETERS, WalkPlan
from flexfa4.kernels.compile.signature import (
    Float32,
    Int32,
    Int64,
    Parameter,
    Pointer,
    Signature,
    TensorMap,
)
from flexfa4.kernels.emit.captures import CapturePlan, captures_signature
from flexfa4.kernels.emit.program import MaskProgram, ScoreProgram
from flexfa4.kernels.sm90.forward.storage import Storage, plan_storage

WARPGROUP_ROWS: Final = 64
"""Queries of a warpgroup: the rows of a WGMMA."""

_PLAIN: Final = ScoreProgram(defers=True)
_NOTHING: Final = CapturePlan()


@dataclass(frozen=True)
class Tiling:
    """How the work of a block is cut.

    Attributes:
        warpgroups: that consume, each with 64 rows: 1, 2 or 3.
        keys: of a tile; a multiple of 16, at most 256.
        stages: of the rings of K and V.
    """

    warpgroups: int
    keys: int
    stages: int = 2

    @property
    def rows(self) -> int:
        """Rows of a tile of queries."""
        return self.warpgroups * WARPGROUP_ROWS


@dataclass(frozen=True)
class ForwardPlan:
    """See the module.

    Attributes:
        element: of q, k, v and out: a key of `flexfa4.kernels.compile.signature.ELEMENTS`.
        head_dims: of q and k, and of v and out.
        tiling: of the work.
        walk: how tiles of keys are found; its shape is that of the tiling.
        score: the score mod.
        score_captures: what is known of its captures.
        mask: evaluated for each score of a partial tile; None where `walk` has limits for each row.
        mask_captures: what is known of its captures.
        limit_captures: what is known of the captures of the limits.
        sink: a logit of each head joins the denominator.
        lse: it is written.
        tau: see `flexfa4.primitives.row_softmax.RowSoftmax`.
        fast: approximate functions may be used in the score mod.
        fetched: blocks stay, and fetch the next item when they are free; otherwise one block for
            each item.
    """

    element: str
    head_dims: tuple[int, int]
    tiling: Tiling
    walk: WalkPlan
    score: ScoreProgram = _PLAIN
    score_captures: CapturePlan = _NOTHING
    mask: MaskProgram | None = None
    mask_captures: CapturePlan = _NOTHING
    limit_captures: CapturePlan = _NOTHING
    sink: bool = False
    lse: bool = True
    tau: float = 8.0
    fast: bool = True
    fetched: bool = True

    @property
    def group(self) -> int:
        """Query heads that are packed into the rows of a tile."""
        return self.walk.shape.group

    @property
    def storage(self) -> Storage:
        """The plan of shared memory."""
        return plan_storage(self.tiling.rows, self.tiling.keys, self.head_dims, self.tiling.stages)

    @property
    def graphs(self) -> tuple[tuple[str, Graph, CapturePlan], ...]:
        """The graphs that are evaluated, by name, with what is known of their captures."""
        found: list[tuple[str, Graph, CapturePlan]] = []
        if self.score.graph is not None:
            found.append(("score", self.score.graph, self.score_captures))
        if self.mask is not None:
            found.append(("mask", self.mask.graph, self.mask_captures))
        if self.walk.interval is not None:
            found.append(("limit", self.walk.interval.graph, self.limit_captures))
        return tuple(found)

    @property
    def maps(self) -> tuple[TensorMap, ...]:
        """The tensor maps.

        Axes of q and out are ``(D, G, S, H / G, B)`` with G heads packed, moved slab by slab; those
        of k and v are ``(slab, S, slabs, H, B)``, moved a tile at once.
        """
        storage, group = self.storage, self.group
        rows = {"q": self.tiling.rows, "out": WARPGROUP_ROWS}
        tiles = {"q": storage.q, "k": storage.k, "v": storage.v, "out": storage.out}
        found = []
        for name, tile in tiles.items():
            if name in rows:
                box = (tile.slab, group, rows[name] // group, 1, 1)
            else:
                box = (tile.slab, tile.rows, tile.slabs, 1, 1)
            found.append(TensorMap(name, self.element, box, tile.swizzle))
        return tuple(found)

    @property
    def scalars(self) -> tuple[Parameter, ...]:
        """The parameters behind the tensor maps, but for captures."""
        pointers = (
            (self.lse, "lse"), (self.sink, "sink"), (self.fetched, "counter"),
        )  # fmt: skip
        return (
            *(Pointer(name) for wanted, name in pointers if wanted),
            *(Int32(name) for name in ("q_len", "kv_len", "heads", "kv_heads", "kv_batch_step")),
            Float32("scale"),
            *ORDER_PARAMETERS,
            *self.walk.parameters,
        )

    @property
    def signature(self) -> Signature:
        """All parameters of the kernel, in order."""
        kinds = {"pointer": Pointer, "i64": Int64, "i32": Int32, "f32": Float32}
        captures = [
            kinds[p.kind](f"{what}.{p.name}")
            for what, graph, plan in self.graphs
            for p in captures_signature(graph, plan)
        ]
        return (*self.maps, *self.scalars, *captures)
