"""Plans of the three kernels of a backward pass: all that their code depends on.

As in the forward pass, a plan says nothing that a call may change without new code, and its
`signature` is the order of the kernel's parameters.  Needs no CuTe-DSL.

What the kernels hand each other lies in two workspaces of fp32, for ``tiles`` of `queries`, the
last one of which may reach beyond the last query:

``statistics``  ``(B, H, tiles, 2, queries)``: lse in base 2, and ``delta = rowsum(dO * O) - dlse``.
                Of queries that see nothing or do not exist, lse is infinity, so that their
                probabilities are 0, and delta is 0.
``dq``          ``(B, H, tiles, queries * D)``: the sum of ``dS K``, without the softmax scale; a
                tile lies as the accumulators of the product hold it (`DqOrder`).

The main kernel may finish dQ itself (`GradientPlan.finishes_dq`).  Then nothing clears these sums
before, no kernel follows, and there is a third one:

``arrivals``    ``(B, H, tiles, parts)`` words of 64 bits, for each part of a tile, in which who
                adds to it is counted (`flexfa4.primitives.arrivals`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Final

from flexfa4.frontend.ir import Graph
from flexfa4.kernels.backward.fragment import Fragment
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
from flexfa4.kernels.emit.captures import CapturePlan
from flexfa4.kernels.emit.gradient import GradientProgram
from flexfa4.kernels.emit.program import MaskProgram
from flexfa4.kernels.forward.plan import capture_parameters, evaluated_graphs
from flexfa4.kernels.forward.tiles import swizzle_bytes

STATISTICS: Final = 2
"""Numbers of a query that are loaded with it: its lse in base 2, and delta; fp32."""

GRAD_Q: Final[Signature] = (
    Pointer("grad_q"),
    *(Int64(f"grad_q_{axis}_stride") for axis in ("batch", "head", "row")),
)
"""The parameters of the gradient of q; strides in elements."""

VISITOR_STRIDES: Final[Signature] = (Int64("visitors_batch_stride"), Int64("visitors_head_stride"))

_PLAIN: Final = GradientProgram()
_NOTHING: Final = CapturePlan(along="q")


@dataclass(frozen=True)
class DqOrder:
    """How a tile of dQ lies in its workspace.

    Its parts, one for each warpgroup that computes one, follow each other.  A part is
    ``(vectors, 128, 4)``: of each of a warpgroup's threads its accumulator, four numbers at a time.

    Attributes:
        queries: of the tile.
        head_dim: columns of the tile.
        columns: of a part.
        rows: of a part.
    """

    queries: int
    head_dim: int
    columns: int
    rows: int

    @property
    def parts(self) -> int:
        """Parts of a tile: those of the first rows come first."""
        return self.queries // self.rows * (self.head_dim // self.columns)

    @property
    def part(self) -> int:
        """Numbers of a part."""
        return self.rows * self.columns


@dataclass(frozen=True, kw_only=True)
class GradientPlan(ABC):
    """The main kernel: dK, dV, and sums of dQ in their workspace.

    A block has a tile of keys of one key head, and meets the tiles of queries, of all query heads
    of the group, that see some of them.

    Attributes:
        element: of q, k, v, dO and of dk and dv: a key of `compile.signature.ELEMENTS`.
        head_dims: of q and k, and of v and dO.
        tiling: how work is cut, as the architecture says it: `queries` and `keys` of a tile.
        walk: how tiles of queries are found, for a tile of keys.
        score: the score mod and its derivatives.
        score_captures: what is known of its captures.
        mask: evaluated for each score of a partial tile; None where `walk` has limits for each key.
        mask_captures: what is known of its captures.
        limit_captures: what is known of the captures of the limits.
        fast: approximate functions may be used in the score mod.
        fetched: blocks stay, and fetch the next item when they are free; otherwise one block for
            each item.
    """

    element: str
    head_dims: tuple[int, int]
    tiling: Any
    walk: WalkPlan
    score: GradientProgram = _PLAIN
    score_captures: CapturePlan = _NOTHING
    mask: MaskProgram | None = None
    mask_captures: CapturePlan = _NOTHING
    limit_captures: CapturePlan = _NOTHING
    fast: bool = True
    fetched: bool = True

    @property
    def ordered(self) -> bool:
        """Whether blocks add to dQ one after the other, in an order that is always the same."""
        return self.walk.ranked

    @property
    def finishes_dq(self) -> bool:
        """Whether it writes dQ as it is wanted; otherwise its sums, for a kernel behind it."""
        return False

    @property
    @abstractmethod
    def storage(self) -> Any:
        """The plan of shared memory; its `bytes` are those of a block."""

    @property
    @abstractmethod
    def maps(self) -> tuple[TensorMap, ...]:
        """The tensor maps: axes are ``(slab, S, slabs, H, B)``.

        Of q, k, v, dO, dk and dv, and perhaps further ones of some of these (`tensor_of`).
        """

    @property
    @abstractmethod
    def fragment(self) -> Fragment:
        """How a thread holds a tile of scores."""

    @property
    @abstractmethod
    def dq_order(self) -> DqOrder:
        """How tiles of dQ lie in their workspace."""

    @property
    @abstractmethod
    def parts(self) -> int:
        """Warpgroups that have the same keys, with other queries each."""

    @property
    def computes_anew(self) -> bool:
        """Whether what gradients need of a mod is computed once more behind the exponentials.

        Rather than kept in registers from there on.
        """
        return False

    @property
    @abstractmethod
    def takers(self) -> int:
        """Warps of a block that take turns at a tile of dQ, each at its own part."""

    @property
    def graphs(self) -> tuple[tuple[str, Graph, CapturePlan], ...]:
        """The graphs that are evaluated, by name, with what is known of their captures."""
        captures = (self.score_captures, self.mask_captures, self.limit_captures)
        return evaluated_graphs(self.score.graph, self.mask, self.walk, captures)

    @property
    def scalars(self) -> tuple[Parameter, ...]:
        """The parameters behind the tensor maps, but for captures.

        Where dQ is finished, ``grad_q`` is the gradient of q, with its strides in elements.
        ``turns`` has Int32 counters of `primitives.semaphores`, ``(B, H, tiles, takers)``, all 0;
        ``counter`` is there if items are fetched; ``share0`` and so on get the sums for captured
        tensors, see `captures`.  ``group`` is how many query heads share a key head, and
        ``shared_batches`` how many batches of queries share one of keys: 1 or all.
        """
        return (
            Pointer("statistics"),
            Pointer("dq"),
            *((Pointer("arrivals"), *GRAD_Q) if self.finishes_dq else ()),
            *((Pointer("turns"),) if self.ordered else ()),
            *((Pointer("counter"),) if self.fetched else ()),
            *(Pointer(f"share{i}") for i in range(len(self.score.shares))),
            *(Int32(name) for name in ("q_len", "kv_len", "heads", "kv_heads")),
            *(Int32(name) for name in ("group", "shared_batches")),
            Float32("scale"),
            *ORDER_PARAMETERS,
            *self.walk.parameters,
        )

    @property
    def signature(self) -> Signature:
        """All parameters of the kernel, in order."""
        return (*self.maps, *self.scalars, *capture_parameters(self.graphs))


def tensor_of(tensor_map: TensorMap) -> str:
    """Return the name of the tensor that a map is of: that of the map, but for ``_of_`` a product.

    So ``q_of_dk`` is of q.
    """
    return tensor_map.name.partition("_of_")[0]


@dataclass(frozen=True)
class PreprocessPlan:
    """The kernel before the main one: fills the statistics, and makes ready for dQ.

    It clears the sums of dQ, or, where the main kernel finishes dQ, counts on who will add to each
    tile, and writes the zeros of tiles that nobody adds to.

    A block has a tile of queries: the grid is ``(tiles, H, B)``.

    Attributes:
        element: of out and dO.
        head_dim_v: their columns.
        order: of a tile of dQ.
        grad_lse: there is a gradient of the lse.
        sink: the sum over a tile's queries of ``exp(sink - lse) * -delta`` is written, for each of
            ``(H, B, tiles)``, to ``grad_sink``.
        finishes_dq: as the main kernel has it.
    """

    element: str
    head_dim_v: int
    order: DqOrder
    grad_lse: bool = False
    sink: bool = False
    finishes_dq: bool = False

    @property
    def signature(self) -> Signature:
        """The parameters.

        Where the main kernel finishes dQ: ``visitors``, how many tiles of keys add to each tile of
        queries, is int32 ``(.., .., tiles)``, with strides for batches and heads.

        Strides are of out and dO, in elements; lse is natural and, like grad_lse, fp32 ``(B, H,
        q_len)`` and contiguous; sink is fp32 ``(H,)``.
        """
        pointers = ["out", "do", "lse", "statistics"]
        pointers += ["arrivals", "visitors"] if self.finishes_dq else ["dq"]
        pointers += ["grad_lse"] * self.grad_lse + ["sink", "grad_sink"] * self.sink
        strides = [f"{x}_{axis}_stride" for x in ("out", "do") for axis in ("batch", "head", "row")]
        return (
            *(Pointer(name) for name in pointers),
            *(Int64(name) for name in strides),
            Int32("q_len"),
            *(VISITOR_STRIDES + GRAD_Q if self.finishes_dq else ()),
        )


@dataclass(frozen=True)
class PostprocessPlan:
    """The kernel behind the main one: from the workspace of dQ to dq.

    A block has a tile of queries: the grid is ``(tiles, H, B)``.

    Attributes:
        element: of dq.
        order: of a tile of dQ.
    """

    element: str
    order: DqOrder

    @property
    def slab(self) -> int:
        """Columns of a slab of shared memory."""
        return self.swizzle // 2

    @property
    def swizzle(self) -> int:
        """Width of a slab in bytes."""
        return swizzle_bytes(2 * self.order.columns)

    @property
    def maps(self) -> tuple[TensorMap, ...]:
        """The tensor map of dq, axes ``(slab, S, slabs, H, B)``: a slab of a part at once."""
        box = (self.slab, self.order.rows, 1, 1, 1)
        return (TensorMap("dq", self.element, box, self.swizzle),)

    @property
    def signature(self) -> Signature:
        """The parameters: dq, its workspace, and the softmax scale."""
        return (*self.maps, Pointer("sums"), Float32("scale"))
