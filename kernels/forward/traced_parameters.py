"""What parameters of launches have in common in kernels that are being traced, forward or backward.

Values come in the order of a plan's ``scalars``, and behind them those of its ``graphs``' captures.
Which parameters there are, and where tensors lie, is left to the kernels' own `Parameters`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from cutlass import Float32, Int32

from flexfa4.frontend.ir import Graph
from flexfa4.kernels.blocks.emitted import EmittedEnds
from flexfa4.kernels.blocks.walk import WalkPlan
from flexfa4.kernels.compile.signature import Parameter
from flexfa4.kernels.emit.captures import CapturePlan, captures_signature
from flexfa4.kernels.emit.evaluator import Leaves, TraceTime
from flexfa4.primitives.device_arithmetic import DEVICE
from flexfa4.primitives.tile_walk import Lengths, RowLimits, TileSource


class TracedPlan(Protocol):
    """What is asked of a plan; see `flexfa4.kernels.forward.plan.VariantPlan`."""

    @property
    def walk(self) -> WalkPlan:
        """How tiles are found."""

    @property
    def limit_captures(self) -> CapturePlan:
        """What is known of the captures of the walk's limits."""

    @property
    def scalars(self) -> tuple[Parameter, ...]:
        """The parameters behind the tensor maps, but for captures."""

    @property
    def fetched(self) -> bool:
        """Whether blocks stay and fetch items."""

    @property
    def graphs(self) -> tuple[tuple[str, Graph, CapturePlan], ...]:
        """The graphs that are evaluated, by name, with what is known of their captures."""


P = TypeVar("P", bound=TracedPlan)


class TracedParameters(TraceTime, Generic[P]):
    """The parameters of a launch, but for its tensor maps.

    Attributes:
        plan: what the kernel is traced for.
    """

    def __init__(self, plan: P, values: Sequence[Any]) -> None:
        self.plan = plan
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
    def items(self) -> Any:
        """How many items there are."""
        return self["items"]

    @property
    def scale(self) -> Float32:
        """The softmax scale."""
        return Float32(self["scale"])

    @property
    def limits(self) -> RowLimits:
        """What each row of the walk sees, where that is one interval; otherwise everything."""
        lengths = Lengths(self["q_len"], self["kv_len"])
        interval, ends = self.plan.walk.interval, None
        if interval is not None:
            leaves = self._leaves("limit", None, None)
            ends = EmittedEnds(interval, self.plan.limit_captures, leaves)
        return self.plan.walk.limits_of(DEVICE, lengths, ends)

    @property
    def source(self) -> TileSource:
        """What gives the tiles that a tile of the walk's rows visits."""
        walk = self.plan.walk
        return walk.source_of([self[p.name] for p in walk.parameters], self.limits)

    @abstractmethod
    def _leaves(self, what: str, batch: Int32 | None, head: Int32 | None) -> Leaves:
        """Return what a graph depends on; no batch and head where it depends on neither."""
