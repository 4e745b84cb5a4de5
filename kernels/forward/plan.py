"""`VariantPlan`: what a forward kernel's code depends on, on any architecture.

A plan says nothing that a call may change without new code: lengths, strides, heads, batch, values
of captures and the scale are parameters of the kernel, and `signature` is their order.  An
architecture's plan adds how work is cut.  Needs no CuTe-DSL: a warm process makes plans, finds
their kernels on disk and launches them.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

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

_PLAIN: Final = ScoreProgram(defers=True)
_NOTHING: Final = CapturePlan()


@dataclass(frozen=True, kw_only=True)
class VariantPlan(ABC):
    """See the module.

    Attributes:
        tiling: how work is cut, as the architecture says it.
        element: of q, k, v and out: a key of `flexfa4.kernels.compile.signature.ELEMENTS`.
        head_dims: of q and k, and of v and out.
        walk: how tiles of keys are found; its shape is that of the work that a block takes on.
        score: the score mod.
        score_captures: what is known of its captures.
        mask: evaluated for each score of a partial tile; None where `walk` has limits for each row.
        mask_captures: what is known of its captures.
        limit_captures: what is known of the captures of the limits.
        sink: a logit of each head joins the denominator.
        lse: it is written.
        tau: growth of a row's maximum, base 2, up to which nothing is rescaled; 0: always.
        fast: approximate functions may be used in the score mod.
        fetched: blocks stay, and fetch the next item when they are free; otherwise one block for
            each item.
        varlen: sequences lie one behind the other, and items are those of a table
            (`flexfa4.kernels.varlen`).
    """

    tiling: Any
    element: str
    head_dims: tuple[int, int]
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
    varlen: bool = False

    @property
    def group(self) -> int:
        """Query heads that are packed into the rows of a tile."""
        return self.walk.shape.group

    @functools.cached_property
    def graphs(self) -> tuple[tuple[str, Graph, CapturePlan], ...]:
        """The graphs that are evaluated, by name, with what is known of their captures."""
        captures = (self.score_captures, self.mask_captures, self.limit_captures)
        return evaluated_graphs(self.score.graph, self.mask, self.walk, captures)

    @property
    @abstractmethod
    def storage(self) -> Any:
        """The plan of shared memory; its `bytes` are those of a block."""

    @property
    @abstractmethod
    def maps(self) -> tuple[TensorMap, ...]:
        """The tensor maps of q, k, v and out."""

    @functools.cached_property
    def scalars(self) -> tuple[Parameter, ...]:
        """The parameters behind the tensor maps, but for captures."""
        pointers = (
            (self.lse, "lse"), (self.sink, "sink"), (self.fetched, "counter"),
            (self.varlen, "table"),
        )  # fmt: skip
        return (
            *(Pointer(name) for wanted, name in pointers if wanted),
            *(Int32(name) for name in ("q_len", "kv_len", "heads", "kv_heads", "kv_batch_step")),
            Float32("scale"),
            *ORDER_PARAMETERS,
            *self.walk.parameters,
        )

    @functools.cached_property
    def signature(self) -> Signature:
        """All parameters of the kernel, in order."""
        return (*self.maps, *self.scalars, *capture_parameters(self.graphs))


def evaluated_graphs(
    score: Graph | None,
    mask: MaskProgram | None,
    walk: WalkPlan,
    captures: tuple[CapturePlan, CapturePlan, CapturePlan],
) -> tuple[tuple[str, Graph, CapturePlan], ...]:
    """Return the graphs that a kernel evaluates, by name, with what is known of their captures.

    Args:
        score: the score mod, or what is computed of it; None if nothing is.
        mask: evaluated for each score of a partial tile, if one is.
        walk: has the limits of rows, if there are any.
        captures: of the three.
    """
    graphs = {
        "score": score,
        "mask": None if mask is None else mask.graph,
        "limit": None if walk.interval is None else walk.interval.graph,
    }
    named = zip(graphs.items(), captures, strict=True)
    return tuple((name, graph, known) for (name, graph), known in named if graph is not None)


def capture_parameters(graphs: Iterable[tuple[str, Graph, CapturePlan]]) -> Iterator[Parameter]:
    """Yield the parameters for what graphs capture, in order.

    Args:
        graphs: by name, with what is known of their captures.
    """
    kinds = {"pointer": Pointer, "i64": Int64, "i32": Int32, "f32": Float32}
    for what, graph, known in graphs:
        for parameter in captures_signature(graph, known):
            yield kinds[parameter.kind](f"{what}.{parameter.name}")
