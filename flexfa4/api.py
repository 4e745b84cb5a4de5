"""`attention`: check the arguments, resolve the mods, hand over to a backend."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final, Literal, overload

import torch

from flexfa4.autocast import cast_operand, operand_dtype
from flexfa4.block_mask import BlockMask
from flexfa4.checks import (
    check_backend,
    check_flag,
    check_mod,
    check_tensors,
    checked_scale,
    options_error,
)
from flexfa4.counters import count
from flexfa4.errors import ArgumentError, DeviceError, OutOfRangeError, describe
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.ir import F32, Buffer
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.backends import attend
from flexfa4.kernels.forms import Form, Layout, Recent, form_of, layout_of
from flexfa4.kernels.request import MOST_TAU, TAU, Choices, Inputs, Request, Tile
from flexfa4.masks.cache import blocks_for
from flexfa4.out_of_range import explained
from flexfa4.torch_op.arguments import captured
from flexfa4.torch_op.context import may_need_op, needs_op, refuse_forward_mode


@dataclass(frozen=True)
class Options:
    """Choices that change how a call runs, not what it computes.

    Attributes:
        scores_at_once: how many scores the CPU backend holds at a time, at least 4096: 4 bytes each
            (8 for fp64), and in a backward pass two to four times that. Fewer take less memory and
            more time; None is about a million. A mask's tiles stay at least one block.
        tile: queries and keys of a tile of the GPU kernels; None takes those of a table. On
            Blackwell a tile of 512 queries is one of two blocks that compute each product together,
            for calls without a block mask.
        stages: tiles of keys that a GPU kernel loads ahead; None likewise.
        tau: GPU kernels rescale a row's sums when its maximum has grown by more than this, in
            powers of 2: from 0, always, to 15; None is 8. Results differ in rounding only.
        emulated_exponentials: share of the exponentials that GPU kernels compute by multiplications
            rather than on the unit for them, from 0 to 1; None takes that of a table. An emulated
            one is off by at most 9e-5 of itself, where bf16 rounds by up to 2e-3.
    """

    scores_at_once: int | None = None
    tile: tuple[int, int] | None = None
    stages: int | None = None
    tau: float | None = None
    emulated_exponentials: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is no number of scores, tile, number of stages, threshold or share."""
        n, stages, tau = self.scores_at_once, self.stages, self.tau
        share = self.emulated_exponentials
        tile: Any = self.tile
        if n is not None and not (_is_count(n) and n >= 4096):
            raise ArgumentError(
                name="scores_at_once",
                found_value=describe(n),
                expected="an int, at least 4096, or None",
                rewrite="flexfa4.Options(scores_at_once=1 << 18)",
            )
        if tile is not None and not (
            isinstance(tile, tuple) and len(tile) == 2 and all(map(_is_count, tile))
        ):
            raise ArgumentError(
                name="tile",
                found_value=f"({', '.join(map(describe, tile))})"
                if isinstance(tile, tuple)
                else describe(tile),
                expected="a tuple of queries and keys, or None",
                rewrite="flexfa4.Options(tile=(128, 128))",
            )
        if stages is not None and not _is_count(stages):
            raise ArgumentError(
                name="stages",
                found_value=describe(stages),
                expected="an int, at least 1, or None",
                rewrite="flexfa4.Options(stages=2)",
            )
        if tau is not None and not (_is_number(tau) and 0 <= tau <= MOST_TAU):
            raise ArgumentError(
                name="tau",
                found_value=describe(tau),
                expected=f"a number from 0 to {MOST_TAU}, or None",
                rewrite="flexfa4.Options(tau=0) to rescale always",
            )
        if share is not None and not (_is_number(share) and 0 <= share <= 1):
            raise ArgumentError(
                name="emulated_exponentials",
                found_value=describe(share),
                expected="a share from 0 to 1, or None",
                rewrite="flexfa4.Options(emulated_exponentials=0.25)",
            )

    def for_op(
        self, backend: str
    ) -> tuple[int | None, str, tuple[int, ...], float | None, float | None]:
        """Return what an op is told of a backend and these choices."""
        at_once, tile, tau = self.scores_at_once, self.whole_tile, self.tau
        return at_once, backend, tile, tau, self.emulated_exponentials

    @property
    def whole_tile(self) -> tuple[int, ...]:
        """Queries, keys and stages of a tile, 0 where none is chosen; empty where no one is."""
        if self.tile is None and self.stages is None:
            return ()
        return (*(self.tile or (0, 0)), self.stages or 0)


def _is_count(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n >= 1


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool)


@overload
def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    sink: torch.Tensor | None = None,
    return_lse: Literal[False] = False,
    deterministic: bool = False,
    backend: str = "auto",
    options: Options | None = None,
) -> torch.Tensor: ...


@overload
def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    sink: torch.Tensor | None = None,
    return_lse: Literal[True],
    deterministic: bool = False,
    backend: str = "auto",
    options: Options | None = None,
) -> tuple[torch.Tensor, torch.Tensor]: ...


@overload
def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    sink: torch.Tensor | None = None,
    return_lse: bool,
    deterministic: bool = False,
    backend: str = "auto",
    options: Options | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]: ...


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    sink: torch.Tensor | None = None,
    return_lse: bool = False,
    deterministic: bool = False,
    backend: str = "auto",
    options: Options | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Compute ``softmax(score_mod(scale * query @ key^T), masked) @ value``.

    Args:
        query: ``(B, Hq, Lq, D)``, fp32, fp64, fp16 or bf16, any strides; under autocast query, key
            and value are cast as for a matrix product.
        key: ``(B or 1, Hkv, Lk, D)``, with ``Hq % Hkv == 0`` (grouped-query attention).
        value: ``(B or 1, Hkv, Lk, Dv)``, its batch that of `key`.
        score_mod: ``score_mod(score, b, h, q_idx, kv_idx) -> score``, its text form or a `Mod`.
        block_mask: a `BlockMask`, or ``mask_mod(b, h, q_idx, kv_idx) -> bool`` (True = attend).
        scale: factor of the scores before `score_mod`; None is ``1/sqrt(D)``.
        sink: ``(Hq,)``: a logit for each query head that joins the softmax's denominator (attention
            sink), unscaled, after `score_mod`; part of the log-sum-exp; learnable.
        return_lse: also return the log-sum-exp of each row's scores.
        deterministic: the same bits on every run; always so, but for gradients off the CPU, which
            it makes slower.
        backend: "sm90" (kernels for H100, H200), "sm100" (for B200, B300; not launched yet),
            "flex" (torch's compiled FlexAttention), "cpu" (torch code for any device), "emulator"
            (runs GPU kernels on CPUs), or "auto": the first that serves the call; off GPUs "cpu".
        options: see `Options`.

    Returns:
        out ``(B, Hq, Lq, Dv)`` in query's dtype, its axes in memory in query's order. With
        `return_lse`, also lse ``(B, Hq, Lq)``, natural logarithm, fp32 (fp64 for fp64 inputs),
        differentiable. A row that sees nothing has ``out = 0`` and ``lse = -inf`` (with a sink
        ``lse = sink``), and zero gradients.

    Raises:
        FlexFA4Error: a class of `flexfa4.errors`, before any arithmetic, for arguments that do not
            go together, mods that cannot be traced, and masks for other sizes.
        UnservedCallError, KernelLimitError: the backend that was named does not serve the call.
        OutOfRangeError: a captured tensor is read outside its bounds on a visible score; kernels
            for GPUs do not look, and read another element, if there is one.
        SecondDerivativeError: on differentiating a gradient.
    """
    if torch.compiler.is_dynamo_compiling():
        from flexfa4.torch_op import compiled

        unchecked = compiled.UncheckedChoices(scale, return_lse, deterministic, backend, options)
        return compiled.attention(query, key, value, sink, score_mod, block_mask, unchecked)
    count("calls")
    inputs = Inputs(query, key, value, sink)
    chosen = _checked_choices(backend, options, deterministic)
    form = None if sink is not None else _RECENT.get((query, key, value), chosen)
    if form is None:
        inputs = _cast(inputs)
        query, key, value, _ = inputs
        form = _checked_form(inputs, chosen)
    if return_lse is not False and return_lse is not True:
        check_flag("return_lse", return_lse)
    factor = form.scale if scale is None and form else checked_scale(scale, query.shape[3])
    score, layout, needs_grad = _resolved(score_mod, query, form)
    if form is None and needs_op(query, key, value, sink):
        from flexfa4.torch_op import calls

        given = calls.mask_of(_mask_for_op(block_mask, query, key))
        how = (options or _NO_OPTIONS).for_op(backend)
        told = calls.Choices(scale, return_lse, *how, deterministic=deterministic)
        return calls.run(calls.Tensors(*inputs), captured(score), given, told)
    form = form or form_of(inputs, chosen)
    blocks = None if block_mask is None else _blocks(block_mask, inputs, form)
    request = Request(score, blocks, factor, needs_grad, return_lse, chosen, form, layout)
    try:
        out, lse = attend(request, inputs)
    except OutOfRangeError as error:
        raise explained(error, score, form.sizes, OutOfRangeError) from None
    return out if lse is None else (out, lse)


def _cast(inputs: Inputs) -> Inputs:
    """Return the tensors of a call as autocast has them."""
    cast = operand_dtype(inputs.q)
    if cast is None:
        return inputs
    q, k, v = (cast_operand(tensor, cast) for tensor in inputs[:3])
    return Inputs(q, k, v, inputs.sink)


def _checked_form(inputs: Inputs, choices: Choices) -> Form | None:
    """Check the tensors of a call, once for all of a form; None where torch may have to see it."""
    if may_need_op(*inputs):
        check_tensors(*inputs)
        return None
    try:
        form = form_of(inputs, choices)
    except (RuntimeError, ValueError):  # not strided, or of other axes
        check_tensors(*inputs)
        raise
    if not form.checked:
        check_tensors(*inputs)
        form.checked = True
    elif inputs.sink is None:
        _RECENT.note(inputs[:3], choices, form, form)
    return form


def _resolved(
    score_mod: Any, query: torch.Tensor, form: Form | None
) -> tuple[BoundGraph | None, Layout | None, frozenset[Buffer]]:
    """Return a score mod with its captures, their layout, and the buffers that need gradients."""
    if score_mod is None:
        return None, None, _NO_BUFFERS
    check_mod("score_mod", score_mod, "score")
    score = resolve(score_mod, "score")
    graph, tensors = score.graph, score.tensors
    if form is None or not tensors:
        return score, None, _check_captures(score, query) if tensors else _NO_BUFFERS
    known = form.captures.get(tensors, graph)
    if known is None:
        known = (layout_of(score), _check_captures(score, query))
        form.captures.note(tensors, graph, known, known[0])
    return score, *known


_NO_OPTIONS: Final = Options()
_RECENT: Final[Recent[Form]] = Recent()
_NO_BUFFERS: Final[frozenset[Buffer]] = frozenset()


def _checked_choices(backend: Any, options: Any, deterministic: Any) -> Choices:
    """Check arguments that say how a call runs; return them as backends are told them."""
    try:
        return choices_of(backend, options, deterministic)
    except TypeError:  # not hashable
        return choices_of.__wrapped__(backend, options, deterministic)


@functools.lru_cache(maxsize=64, typed=True)
def choices_of(backend: str, options: Options | None, deterministic: bool = False) -> Choices:
    """Return how a call runs, as backends are told it.

    Raises:
        FlexFA4Error: a class of `flexfa4.errors`: one of them is not what its type says.
    """
    check_backend(backend)
    check_flag("deterministic", deterministic)
    if options is not None and not isinstance(options, Options):
        raise options_error(describe(options))
    options = options or _NO_OPTIONS
    rows, keys = options.tile or (None, None)
    tau = TAU if options.tau is None else float(options.tau)
    tile = Tile(rows, keys, options.stages)
    emulated = options.emulated_exponentials
    return Choices(backend, options.scores_at_once, tile, tau, emulated, deterministic)


def _mask_for_op(
    block_mask: Any, query: torch.Tensor, key: torch.Tensor
) -> BlockMask | BoundGraph | None:
    """Return the mask of a call that becomes an op: a block mask that fits, or a resolved mod."""
    if block_mask is None:
        return None
    if isinstance(block_mask, BlockMask):
        block_mask.check_fits(query, key)
        if not torch._C._len_torch_dispatch_stack():  # fake tensors have no content to compare
            block_mask.check_current()
        return block_mask
    check_mod("block_mask", block_mask, "mask")
    return resolve(block_mask, "mask")


def _blocks(block_mask: Any, inputs: Inputs, form: Form) -> MaskBlocks:
    """Return what kernels iterate, of a block mask that fits and is current, or of a mask."""
    if isinstance(block_mask, BlockMask):
        return block_mask.blocks_for(inputs.q, inputs.k, form)
    check_mod("block_mask", block_mask, "mask")
    return blocks_for(block_mask, inputs.q, inputs.k, form)


def _check_captures(score: BoundGraph, query: torch.Tensor) -> frozenset[Buffer]:
    """Check the captured tensors of a score mod; return those that need gradients."""
    refuse_forward_mode(*score.tensors)
    needs, device = _NO_BUFFERS, query.device
    for buffer, tensor in zip(score.graph.buffers, score.tensors, strict=True):
        if tensor.device != device:
            raise DeviceError(
                name=f"captured tensor `{buffer.name}`",
                device=tensor.device,
                other="query",
                other_device=device,
                rewrite=f"{buffer.name} = {buffer.name}.to(query.device)",
            )
        if tensor.requires_grad and buffer.dtype is F32:
            needs |= {buffer}
    return needs
