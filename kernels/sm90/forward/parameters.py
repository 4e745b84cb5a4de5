"""The parameters of a launch as values of the kernel that is being traced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from cutlass import Float32, Int32, Int64, cute

from flexfa4.frontend.ir import input_, make_graph
from flexfa4.kernels.blocks.emitted import EmittedEnds
from flexfa4.kernels.emit.captures import captures_signature
from flexfa4.kernels.emit.evaluator import Fixed, Leaves, TraceTime
from flexfa4.kernels.emit.places import Columns
from flexfa4.kernels.emit.program import LOG2E
from flexfa4.kernels.emit.sites import MaskSite, ScoreSite
from flexfa4.kernels.sm90.forward.plan import ForwardPlan
from flexfa4.primitives import wgmma
from flexfa4.primitives.device_arithmetic import DEVICE
from flexfa4.primitives.scheduler import NUMBERS, Order, Sections
from flexfa4.primitives.tile_walk import Lengths, RowLimits, TileSource

_IDENTITY: Final = make_graph("score", input_("score"))


@dataclass(frozen=True)
class Maps:
    """Carriers of the tensor maps (`flexfa4.primitives.tma`)."""

    q: Any
    k: Any
    v: Any
    out: Any


class Parameters(TraceTime):
    """The parameters of a launch.

    Attributes:
        plan: what the kernel is traced for.
        maps: carriers of the tensor maps.
    """

    def __init__(self, plan: ForwardPlan, maps: Sequence[Any], values: Sequence[Any]) -> None:
        self.plan = plan
        self.maps = Maps(*maps)
        names = [parameter.name for parameter in plan.scalars]
        self._named = dict(zip(names, values, strict=False))
        self._captures: dict[str, Sequence[Any]] = {}
        rest = list(values[len(names) :])
        for what, graph, known in plan.graphs:
            declared = captures_signature(graph, known)
            own, rest = rest[: len(declared)], rest[len(declared) :]
            self._captures[what] = [
                value.toint() if parameter.kind == "pointer" else value
                for parameter, value in zip(declared, own, strict=True)
            ]
        assert not rest

    def __getitem__(self, name: str) -> Any:
        """Return the value of a parameter that is no capture."""
        return self._named[name]

    @property
    def group(self) -> Int32:
        """Query heads that share a key head."""
        return self["heads"] // self["kv_heads"]

    @property
    def scale(self) -> Float32:
        """The softmax scale."""
        return Float32(self["scale"])

    @property
    def limits(self) -> RowLimits:
        """The keys that each query sees, where they are one interval; otherwise all."""
        lengths = Lengths(self["q_len"], self["kv_len"])
        interval = self.plan.walk.interval
        if interval is None:
            return RowLimits(DEVICE, lengths)
        leaves = self._leaves("limit", None, None)
        return RowLimits(DEVICE, lengths, EmittedEnds(interval, self.plan.limit_captures, leaves))

    @property
    def source(self) -> TileSource:
        """What gives the tiles of keys of a tile of queries."""
        walk = self.plan.walk
        return walk.source_of([self[p.name] for p in walk.parameters], self.limits)

    @property
    def order(self) -> Order:
        """The order of work."""
        walk = self.plan.walk
        sections = Sections.from_numbers([self[name] for name in NUMBERS])
        return walk.order_of([self[p.name] for p in walk.parameters], sections, DEVICE)

    def lse_of(self, batch: Int32, head: Int32, query: Int32) -> cute.Pointer:
        """Return where the lse of a query lies: fp32 ``(B, H, Lq)``, contiguous."""
        row = (Int64(batch) * self["heads"] + head) * self["q_len"] + query
        return cute.recast_ptr(self["lse"], dtype=Float32) + row

    def sink_of(self, head: Int32) -> Float32:
        """Return the sink of a query head in base 2."""
        sinks = cute.recast_ptr(self["sink"], dtype=Float32)
        return Float32((sinks + head).load()) * LOG2E

    def score_site(self, batch: Int32, head: Int32 | None) -> ScoreSite:
        """Return the score mod for a tile; the head is None where rows have their own."""
        graph = self.plan.score.graph or _IDENTITY
        fixed = Fixed(
            graph,
            self.plan.score_captures,
            self._leaves("score", batch, head),
            self._columns,
            self._row_inputs,
            fast=self.plan.fast,
        )
        return ScoreSite(self.plan.score, fixed, self.scale)

    def mask_site(self, batch: Int32, head: Int32 | None) -> MaskSite:
        """Return the mask for a tile; the head as for `score_site`."""
        assert self.plan.mask is not None
        fixed = Fixed(
            self.plan.mask.graph,
            self.plan.mask_captures,
            self._leaves("mask", batch, head),
            self._columns,
            self._row_inputs,
            exact=True,
        )
        return MaskSite(self.plan.mask, fixed)

    @property
    def _row_inputs(self) -> frozenset[str]:
        return frozenset({"q", "h"} if self.plan.group > 1 else {"q"})

    @property
    def _columns(self) -> Columns:
        count = self.plan.tiling.keys // 4
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
