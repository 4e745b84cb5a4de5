"""The parameters of a launch of a main backward kernel, in the kernel that is being traced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from cutlass import Float32, Int32, Int64, Uint32, cute

from flexfa4.frontend.ir import input_, make_graph
from flexfa4.kernels.backward.plan import STATISTICS, GradientPlan
from flexfa4.kernels.emit.evaluator import Fixed, Leaves
from flexfa4.kernels.emit.gradient_sites import GradientSite, Sink
from flexfa4.kernels.emit.places import Columns
from flexfa4.kernels.emit.sites import MaskSite
from flexfa4.kernels.forward.tiles import ELEMENT
from flexfa4.kernels.forward.traced_parameters import TracedParameters
from flexfa4.primitives.device_arithmetic import DEVICE
from flexfa4.primitives.scheduler import NUMBERS, Order, Sections
from flexfa4.primitives.tile_walk import Dense, Listed, Ranks

_IDENTITY: Final = make_graph("score", input_("score"))


@dataclass(frozen=True)
class Maps:
    """Carriers of the tensor maps (`flexfa4.primitives.tma`), in the order of the plan.

    Some tensors have a second map, for another product than the first one's.
    """

    q: Any
    k: Any
    v: Any
    do: Any
    dk: Any
    dv: Any
    q_of_dk: Any = None
    do_of_dv: Any = None
    k_of_dq: Any = None


class Parameters(TracedParameters[GradientPlan]):
    """The parameters of a launch.

    Attributes:
        plan: what the kernel is traced for.
        maps: carriers of the tensor maps.
    """

    def __init__(self, plan: GradientPlan, maps: Sequence[Any], values: Sequence[Any]) -> None:
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

    def tile_number(self, batch: Int32, head: Int32, q_tile: Int32) -> Int64:
        """Return the number of a tile of queries, of which there are less than 2**31."""
        return Int64((batch * self["heads"] + head) * self._tiles + q_tile)

    def statistics_of(self, batch: Int32, head: Int32, q_tile: Int32) -> cute.Pointer:
        """Return where the statistics of a tile of queries lie."""
        numbers = STATISTICS * self.plan.tiling.queries
        start = cute.recast_ptr(self["statistics"], dtype=Float32)
        return start + self.tile_number(batch, head, q_tile) * numbers

    def turn_of(self, batch: Int32, head: Int32, q_tile: Int32, warp: Int32) -> cute.Pointer:
        """Return where the turns of a warp at its part of a tile of dQ are counted."""
        return self.turn_at(self.tile_number(batch, head, q_tile), warp)

    def turn_at(self, number: Int64 | Int32, taker: Int32 | int) -> cute.Pointer:
        """Return where turns at a part of a tile of dQ are counted, by the tile's number.

        Args:
            number: of the tile.
            taker: which of the warps of a block that have turns at it, see `GradientPlan.takers`.
        """
        place = Int64(number) * self.plan.takers + taker
        return cute.recast_ptr(self["turns"], dtype=Int32) + place

    def dq_of(self, batch: Int32, head: Int32, q_tile: Int32) -> cute.Pointer:
        """Return where the sums of a tile of dQ lie."""
        return self.dq_at(self.tile_number(batch, head, q_tile))

    def dq_at(self, number: Int64 | Int32) -> cute.Pointer:
        """Return where the sums of a tile of dQ lie, by the tile's number."""
        order = self.plan.dq_order
        start = cute.recast_ptr(self["dq"], dtype=Float32)
        return start + Int64(number) * (order.part * order.parts)

    def arrivals_at(self, number: Int32) -> cute.Pointer:
        """Return where arrivals at the parts of a tile of dQ are counted, by the tile's number."""
        start = cute.recast_ptr(self["arrivals"], dtype=Int64)
        return start + number * self.plan.dq_order.parts

    def place_of(self, number: Int32) -> tuple[Int32, Int32, Int32]:
        """Return batch, head and number among the head's of a tile of queries."""
        row, q_tile = _divided(number, self._tiles)
        batch, head = _divided(row, self["heads"])
        return batch, head, q_tile

    def grad_q_at(self, batch: Int32, head: Int32, query: Int32, column: Int32) -> Int64:
        """Return the address of an element of the gradient of q."""
        axes = ((batch, "batch"), (head, "head"), (query, "row"))
        place = sum((Int64(n) * self[f"grad_q_{axis}_stride"] for n, axis in axes), Int64(column))
        return Int64(self["grad_q"].toint()) + ELEMENT * place

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
        fragment = self.plan.fragment
        return Columns(fragment.offsets, fragment.multiple, fragment.ahead)

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


def _divided(number: Int32, by: Int32) -> tuple[Int32, Int32]:
    """Return quotient and remainder of numbers that are not negative."""
    quotient = Int32(Uint32(number) // Uint32(by))
    return quotient, number - quotient * by


def anew(number: Int32) -> Int32:
    """Return a number from which the compiler computes again what it has computed before.

    What is known of an item, or of a tile, is few instructions, but many registers.
    """
    return cute.arch.inline_ptx(
        "mov.b32 {$w0}, {$r0};", write_only_types=[Int32], read_only_args=[number]
    )
