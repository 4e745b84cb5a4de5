"""`attention`: check the arguments, resolve the mods, hand over to a backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, overload

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
from flexfa4.frontend.sizes import Sizes
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.cpu.function import Request, attend
from flexfa4.masks.cache import block_mask_for
from flexfa4.masks.spec import GivenSizes
from flexfa4.out_of_range import explained
from flexfa4.torch_op.arguments import captured
from flexfa4.torch_op.context import needs_op, refuse_forward_mode


@dataclass(frozen=True)
class Options:
    """Choices that change how a call runs, not what it computes.

    Attributes:
        scores_at_once: how many scores the CPU backend holds at a time, at least 4096: 4 bytes each
            (8 for fp64), and in a backward pass two to four times that. Fewer take less memory and
            more time; None is about a million. A mask's tiles stay at least one block.
    """

    scores_at_once: int | None = None

    def __post_init__(self) -> None:
        """Refuse a number that is no number of scores."""
        n: Any = self.scores_at_once
        if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 4096):
            raise ArgumentError(
                name="scores_at_once",
                found_value=describe(n),
                expected="an int, at least 4096, or None",
                rewrite="flexfa4.Options(scores_at_once=1 << 18)",
            )


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
        score_mod: ``score_mod(score, b, h, q_idx, kv_idx) -> score``, its text form or a `Mod`;
            None leaves the scaled scores as they are.
        block_mask: a `BlockMask`, or ``mask_mod(b, h, q_idx, kv_idx) -> bool`` (True = attend), its
            text form or a `Mod`; None attends everywhere.
        scale: factor of the scores before `score_mod`; None is ``1/sqrt(D)``.
        sink: ``(Hq,)``: a logit for each query head that joins the softmax's denominator (attention
            sink), unscaled, after `score_mod`; part of the log-sum-exp; learnable.
        return_lse: also return the log-sum-exp of each row's scores.
        deterministic: the same bits on every run, gradients included. The CPU backend always is.
        backend: "auto" or "cpu" (runs on any torch device).
        options: see `Options`.

    Returns:
        out ``(B, Hq, Lq, Dv)`` in query's dtype, its axes in memory in query's order. With
        `return_lse`, also lse ``(B, Hq, Lq)``, natural logarithm, fp32 (fp64 for fp64 inputs),
        differentiable. A row that sees nothing has ``out = 0`` and ``lse = -inf`` (with a sink
        ``lse = sink``), and zero gradients.

    Raises:
        FlexFA4Error: a class of `flexfa4.errors`, before any arithmetic, for arguments that do not
            go together, mods that cannot be traced, and masks for other sizes.
        OutOfRangeError: a captured tensor is read outside its bounds on a visible score.
        SecondDerivativeError: on differentiating a gradient.
    """
    if torch.compiler.is_dynamo_compiling():
        from flexfa4.torch_op import compiled

        unchecked = compiled.UncheckedChoices(scale, return_lse, deterministic, backend, options)
        return compiled.attention(query, key, value, sink, score_mod, block_mask, unchecked)
    count("calls")
    cast = operand_dtype(query)
    if cast is not None:
        query, key, value = (cast_operand(t, cast) for t in (query, key, value))
    check_tensors(query, key, value, sink)
    check_backend(backend)
    for name, flag in (("return_lse", return_lse), ("deterministic", deterministic)):
        check_flag(name, flag)
    at_once = _scores_at_once(options)
    factor = checked_scale(scale, query.shape[3])
    score, needs_grad = None, frozenset[Buffer]()
    if score_mod is not None:
        check_mod("score_mod", score_mod, "score")
        score = resolve(score_mod, "score")
        if score.tensors:
            needs_grad = _check_captures(score, query)
    if needs_op(query, key, value, sink):
        from flexfa4.torch_op import calls

        tensors = calls.Tensors(query, key, value, sink)
        given = calls.mask_of(_mask_for_op(block_mask, query, key))
        choices = calls.Choices(scale, return_lse, at_once)
        return calls.run(tensors, captured(score), given, choices)
    mask = None if block_mask is None else _block_mask(block_mask, query, key)
    blocks = None if mask is None else mask.blocks_on(query.device)
    request = Request(score, blocks, factor, needs_grad, return_lse, at_once)
    out, lse = _attended(request, query, key, value, sink)
    return out if lse is None else (out, lse)


def _attended(
    request: Request,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sink: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    try:
        return attend(request, query, key, value, sink)
    except OutOfRangeError as error:
        (batch, heads, q_len, _), (_, kv_heads, kv_len, _) = query.shape, key.shape
        sizes = Sizes(batch, heads, kv_heads, q_len, kv_len)
        raise explained(error, request.score, sizes, OutOfRangeError) from None


def _scores_at_once(options: Any) -> int | None:
    if options is None:
        return None
    if not isinstance(options, Options):
        raise options_error(describe(options))
    return options.scores_at_once


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


def _block_mask(block_mask: Any, query: torch.Tensor, key: torch.Tensor) -> BlockMask:
    if isinstance(block_mask, BlockMask):
        block_mask.check_fits(query, key)
        block_mask.check_current()
        return block_mask
    check_mod("block_mask", block_mask, "mask")
    sizes = GivenSizes(query.shape[0], query.shape[1], query.shape[2], key.shape[2], key.shape[1])
    return block_mask_for(block_mask, sizes, query.device)


def _check_captures(score: BoundGraph, query: torch.Tensor) -> frozenset[Buffer]:
    """Check the captured tensors of a score mod; return those that need gradients."""
    refuse_forward_mode(*score.tensors)
    needs: list[Buffer] = []
    for buffer, tensor in zip(score.graph.buffers, score.tensors, strict=True):
        if tensor.device != query.device:
            raise DeviceError(
                name=f"captured tensor `{buffer.name}`",
                device=tensor.device,
                other="query",
                other_device=query.device,
                rewrite=f"{buffer.name} = {buffer.name}.to(query.device)",
            )
        if tensor.requires_grad and buffer.dtype is F32:
            needs.append(buffer)
    return frozenset(needs)
