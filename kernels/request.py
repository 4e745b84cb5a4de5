"""What every backend is handed: a call whose arguments have been checked, and its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.ir import Buffer
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.frontend.sizes import Sizes

if TYPE_CHECKING:
    from flexfa4.kernels.forms import Form, Layout


class Tile(NamedTuple):
    """How a user wants a GPU kernel to cut its work; None is the backend's own choice.

    Attributes:
        rows: queries of a tile.
        keys: keys of a tile.
        stages: tiles of keys that are loaded ahead.
    """

    rows: int | None = None
    keys: int | None = None
    stages: int | None = None


ANY_TILE: Final = Tile()

TAU: Final = 8.0
"""The usual threshold of rescaling: FlashAttention-4's (arXiv 2603.05451, section 3.1)."""

MOST_TAU: Final = 15
"""Probabilities are at most 2 to the power of this, where fp16 ends at 65504."""


@dataclass(frozen=True)
class Choices:
    """What changes how a call runs, not what it computes.

    Attributes:
        backend: a name of `flexfa4.kernels.backends`.
        scores_at_once: see `flexfa4.kernels.cpu.schedule.SCORES_AT_ONCE`; None is the default.
        tile: of a GPU kernel.
        tau: growth of a row's maximum, in powers of 2, up to which a GPU kernel rescales nothing.
        emulated: share of the exponentials that a GPU kernel emulates; None is the backend's own.
        deterministic: gradients have the same bits on every run.
    """

    backend: str = "auto"
    scores_at_once: int | None = None
    tile: Tile = ANY_TILE
    tau: float = TAU
    emulated: float | None = None
    deterministic: bool = False

    def __hash__(self) -> int:
        return hash(self.backend)  # which says nearly all, and is asked for on each call


DEFAULT: Final = Choices()


@dataclass(eq=False, slots=True)  # made on each call: `frozen` would take three times as long
class Request:
    """A call, but for the tensors that belong to no mod; nobody changes one.

    Attributes:
        score: the score mod with its captures, or None.
        blocks: the mask with its blocks, or None.
        scale: factor of ``q . k``.
        needs_grad: buffers of the score mod that need gradients.
        return_lse: the log-sum-exp is wanted.
        choices: how it runs.
        form: of its tensors and choices, where it is known already.
        layout: of what the score mod captures, likewise.
    """

    score: BoundGraph | None
    blocks: MaskBlocks | None
    scale: float
    needs_grad: frozenset[Buffer]
    return_lse: bool
    choices: Choices = DEFAULT
    form: Form | None = None
    layout: Layout | None = None

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """What the score mod captures."""
        return () if self.score is None else self.score.tensors

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> Request:
        """Return the request with other captured tensors of the score mod."""
        score = self.score
        if score is None:
            return self
        own = score.tensors
        if len(own) == len(tensors) and all(map(is_, own, tensors)):
            return self
        return replace(self, score=replace(score, tensors=tuple(tensors)))


class Inputs(NamedTuple):
    """The tensors of a call.

    Attributes:
        q: ``(B, Hq, Lq, D)``.
        k: ``(B or 1, Hkv, Lk, D)``.
        v: ``(B or 1, Hkv, Lk, Dv)``.
        sink: ``(Hq,)`` or None.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    sink: torch.Tensor | None

    @property
    def sizes(self) -> Sizes:
        """The sizes of the call."""
        (batch, heads, q_len, _), (_, kv_heads, kv_len, _) = self.q.shape, self.k.shape
        return Sizes(batch, heads, kv_heads, q_len, kv_len)


@dataclass(eq=False, slots=True)  # as Request
class Results:
    """What a forward pass gave, and the gradients of it that come in, each of which may be None.

    Attributes:
        out, grad_out: ``(B, Hq, Lq, Dv)``.
        lse: ``(B, Hq, Lq)``, as the backend's forward pass returned it.
        grad_lse: the gradient of the natural one.
    """

    out: torch.Tensor
    lse: torch.Tensor
    grad_out: torch.Tensor | None
    grad_lse: torch.Tensor | None
