"""The parameters of a launch as values of the kernel that is being traced."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cutlass import Float32, Int32, Int64, cute

from flexfa4.frontend.ir import input_, make_graph
from flexfa4.kernels.emit.evaluator import Fixed, Leaves
from flexfa4.kernels.emit.places import Columns
from flexfa4.kernels.emit.program import LOG2E
from flexfa4.kernels.emit.sites import MaskSite, ScoreSite
from flexfa4.kernels.forward.plan import VariantPlan
from flexfa4.kernels.forward.traced_parameters import TracedParameters
from flexfa4.kernels.varlen.table import ENTRY, HEADER, ITEMS, SECTION
from flexfa4.primitives import ragged
from flexfa4.primitives.device_arithmetic import DEVICE
from flexfa4.primitives.fast_division import Divisor
from flexfa4.primitives.scheduler import NUMBERS, Item, Order, Sections

_IDENTITY: Final = make_graph("score", input_("score"))
_OF_SEQUENCE: Final = ("q_begin", "q_len", "kv_begin", "kv_len")


@dataclass(frozen=True)
class Maps:
    """Carriers of the tensor maps (`flexfa4.primitives.tma`)."""

    q: Any
    k: Any
    v: Any
    out: Any


class Parameters(TracedParameters[VariantPlan]):
    """The parameters of a launch.

    Attributes:
        plan: what the kernel is traced for.
        maps: carriers of the tensor maps.
    """

    def __init__(
        self,
        plan: VariantPlan,
        maps: Sequence[Any],
        values: Sequence[Any],
        columns: Columns,
        *,
        pairs: bool = False,
    ) -> None:
        """Take the parameters of a kernel.

        Args:
            plan: what the kernel is traced for.
            maps: carriers of ``plan.maps``.
            values: of the parameters behind them.
            columns: of a tile of scores that a thread holds.
            pairs: two neighbouring scores are computed at once.
        """
        self.maps = Maps(*maps)
        self._columns = columns
        self._pairs = pairs
        super().__init__(plan, values)

    def at(self, number: Int32) -> tuple[Parameters, Item]:
        """Return the item of a number, and the parameters for its sequence."""
        item = self.order.item(number)
        if not self.plan.varlen:
            return self, item
        entry = self._entry(item)
        tile, sequence, *own = ((entry + i).load() for i in range(2 + len(_OF_SEQUENCE)))
        made = copy.copy(self)
        made._named = {**self._named, **dict(zip(_OF_SEQUENCE, own, strict=True))}
        made._named["all_queries"] = self["q_len"]
        return made, Item(tile, item.head, sequence)

    def prefetch(self, number: Int32) -> None:
        """Bring what `at` reads for a number into L1; behind the last item nothing new."""
        entry = self._entry(self.order.item(DEVICE.minimum(number, self.items - 1)))
        cute.arch.inline_ptx("prefetch.global.L1 [{$r0}];", read_only_args=[entry.toint()])

    def _entry(self, item: Item) -> cute.Pointer:
        return self._table + (ENTRY * item.q_tile + HEADER)

    @property
    def items(self) -> Int32:
        """How many items there are."""
        return (self._table + ITEMS).load() if self.plan.varlen else self["items"]

    @property
    def _table(self) -> cute.Pointer:
        return cute.recast_ptr(self["table"], dtype=Int32)

    def place(self, of: str, first: Int32, box: int, batch: Int32) -> tuple[Int32, Int32]:
        """Return the coordinates of a box along positions and along the last axis.

        Args:
            of: "q" or "kv": whose positions they are.
            first: the first position of the box, in its sequence.
            box: positions of the box.
            batch: where batches lie behind each other.
        """
        if not self.plan.varlen:
            return first, batch
        return ragged.coordinates(self[f"{of}_begin"], self[f"{of}_len"], first, box, DEVICE)

    @property
    def group(self) -> Int32:
        """Query heads that share a key head."""
        return self["heads"] // self["kv_heads"]

    @property
    def order(self) -> Order:
        """The order of work."""
        walk = self.plan.walk
        sections = Sections.from_numbers([self[name] for name in NUMBERS])
        if self.plan.varlen:
            divisor = Divisor(*((self._table + (SECTION + i)).load() for i in range(3)))
            sections = replace(sections, section=divisor)
        return walk.order_of([self[p.name] for p in walk.parameters], sections, DEVICE)

    def lse_of(self, batch: Int32, head: Int32, query: Int32) -> cute.Pointer:
        """Return where the lse of a query lies: fp32 ``(B, H, Lq)``, contiguous."""
        if self.plan.varlen:
            row = Int64(head) * self["all_queries"] + self["q_begin"] + query
        else:
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
            pairs=self._pairs,
        )
        return ScoreSite(self.plan.score, fixed, self.scale)

    def mask_site(
        self, batch: Int32, head: Int32 | None, columns: Columns | None = None
    ) -> MaskSite:
        """Return the mask for a tile; the head as for `score_site`.

        Args:
            batch: of the tile.
            head: likewise.
            columns: that are asked for; None for those of the scores.
        """
        assert self.plan.mask is not None
        fixed = Fixed(
            self.plan.mask.graph,
            self.plan.mask_captures,
            self._leaves("mask", batch, head),
            columns or self._columns,
            self._row_inputs,
            exact=True,
        )
        return MaskSite(self.plan.mask, fixed)

    @property
    def _row_inputs(self) -> frozenset[str]:
        return frozenset({"h"} if self.plan.group > 1 else ())

    def _leaves(self, what: str, batch: Int32 | None, head: Int32 | None) -> Leaves:
        q_len, kv_len = self["q_len"], self["kv_len"]
        if self.plan.varlen:  # a sequence without keys is asked about one, which nobody sees
            kv_len = DEVICE.maximum(kv_len, 1)
        return Leaves(
            batch,
            head,
            q_len,
            kv_len,
            self["heads"],
            self["kv_heads"],
            self._captures.get(what, ()),
        )
