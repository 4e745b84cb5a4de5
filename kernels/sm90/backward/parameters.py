"""The parameters of a launch of the main backward kernel, in the kernel that is being traced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from cutlass import Float32, Int32, Int64, cute

from flexfa4.frontend.ir import input_, make_graph
from flexfa4.kernels.emit.evaluator import Fixed, Leaves
from flexfa4.kernels.emit.gradient_sites import GradientSite, Sink
from flexfa4.kernels.emit.places import Columns
from flexfa4.kernels.emit.sites import MaskSite
from flexfa4.kernels.forward.traced_parameters import TracedParameters
from flexfa4.kernels.sm90.backward.plan import BackwardPlan
from flexfa4.kernels.sm90.backward.storage import STATISTICS
from flexfa4.primitives import wgmma
from flexfa4.primitives.device_arithmetic import DEVICE
from flexfa4.primitives.scheduler import NUMBERS, Order, Sections
from flexfa4.primitives.tile_walk import Dense, Listed, Ranks

_IDENTITY: Final = make_graph("score", input_("score"))


@dataclass(frozen=True)
class Maps:
    """Carriers of the tensor maps (`flexfa4.primitives.tma`), in the order of the plan."""

    q: Any
    k: Any
    v: Any
    do: Any
    dk: Any
    dv: Any


class Parameters(TracedParameters[BackwardPlan]):
    """The parameters of a launch.

    Attributes:
        plan: what the kernel is traced for.
        maps: carriers of the tensor maps.
    """

    def __init__(self, plan: BackwardPlan, maps: Sequence[Any], values: Sequence[Any]) -> None:
        self.maps = Maps(*maps)
        super().__init__(plan, values)

    @property
    def group(self) -> Int32:
        """Query heads that share a key head."""
        return Int32(self["group"])

    @property
    def ranks(self) -> Ranks:
        """What tells whose turn it is at a tile of dQ."""
        source = self.source
        assert isinstance(source, (Dense, Listed))
        return source

    @property
    def order(self) -> Order:
        """The order of work: its heads are key heads."""
        walk = self.plan.walk
        sections = Sections.from_numbers([self[name] for name in NUMBERS])
        values = [self[p.name] for p in walk.parameters]
        return walk.order_of(values, sections, DEVICE, heads_together=self.group)

    @property
    def _tiles(self) -> Int32:
        queries = self.plan.tiling.queries
        return Int32(DEVICE.quotient(self["q_len"] + (queries - 1), queries))

    def _tile_place(self, batch: Int32, head: Int32, q_tile: Int32) -> Int64:
        """Return the number of a tile of queries, of which there are less than 2**31."""
        return Int64((batch * self["heads"] + head) * self._tiles + q_tile)

    def statistics_of(self, batch: Int32, head: Int32, q_tile: Int32) -> cute.Pointer:
        """Return where the statistics of a tile of queries lie."""
        numbers = STATISTICS * self.plan.tiling.queries
        start = cute.recast_ptr(self["statistics"], dtype=Float32)
        return start + self._tile_place(batch, head, q_tile) * numbers

    def turn_of(self, batch: Int32, head: Int32, q_tile: Int32, warp: Int32) -> cute.Pointer:
        """Return where the turns of a consumer warp at a tile of dQ are counted."""
        warps = self.plan.tiling.warpgroups * (wgmma.THREADS // wgmma.WARP)
        place = self._tile_place(batch, head, q_tile) * warps + warp
        return cute.recast_ptr(self["turns"], dtype=Int32) + place

    def dq_of(self, batch: Int32, head: Int32, q_tile: Int32) -> cute.Pointer:
        """Return where the sums of a tile of dQ lie."""
        order = self.plan.dq_order
        start = cute.recast_ptr(self["dq"], dtype=Float32)
        return start + self._tile_place(batch, head, q_tile) * (order.part * order.parts)

    def gradient_site(self, batch: Int32, head: Int32, sink: Sink | None) -> GradientSite:
        """Return the score mod and its derivatives, for the queries of a head.

        Args:
            batch: the batch.
            head: the query head.
            sink: who adds up what captured tensors get; None where none does.
        """
        fixed = self.score_fixed(batch, head, self._columns)
        return GradientSite(self.plan.score, fixed, self.scale, sink)

    def score_fixed(self, batch: Int32, head: Int32, columns: Columns) -> Fixed:
        """Return what evaluates the score mod, for the queries of a head in some columns."""
        plan = self.plan
        return Fixed(
            plan.score.graph or _IDENTITY,
            plan.score_captures,
            self._leaves("score", batch, head),
            columns,
            fast=plan.fast,
        )

    def mask_site(self, batch: Int32, head: Int32) -> MaskSite:
        """Return the mask for the queries of a head."""
        mask = self.plan.mask
        assert mask is not None
        leaves = self._leaves("mask", batch, head)
        fixed = Fixed(mask.graph, self.plan.mask_captures, leaves, self._columns, exact=True)
        return MaskSite(mask, fixed)

    @property
    def _columns(self) -> Columns:
        count = self.plan.tiling.score_columns // 4
        return Columns(tuple(wgmma.column_of(i) for i in range(count)), 2)

    def _leaves(self, what: str, batch: Int32 | None, head: Int32 | None) -> Leaves:
        return Leaves(
            batch,
            head,
            self["q_len"],
            self["kv_len"],
            self["heads"],
            self["kv_heads"],
            self._captures.get(what, ()),
        )
