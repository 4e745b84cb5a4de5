"""`flex_attention` with torch's parameters, over `flexfa4.attention`.

Checks what is torch's own (the flag for grouped heads, kernel options, requests for further
results), turns block masks of any kind into FlexFA4's, and hands over.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, overload

import torch

from flexfa4.api import attention
from flexfa4.errors import ArgumentError, BlockMaskLengthsError, FlexFA4Error, describe
from flexfa4.flex.block_mask import BlockMask
from flexfa4.flex.errors import GroupedHeadsError
from flexfa4.flex.kernel_options import FlexKernelOptions, check_kernel_options
from flexfa4.flex.native_mask import in_graph, native_of
from flexfa4.flex.row_maxima import Scores, row_maxima
from flexfa4.flex.torch_masks import converted, is_torch_mask, torch_in_graph
from flexfa4.torch_op.context import untraced


class AuxRequest(NamedTuple):
    """Which results `flex_attention` gives besides the output.

    Attributes:
        lse: the log-sum-exp of each row's scores.
        max_scores: the largest score of each row, in a second pass over the scores.
    """

    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    """The results asked for by an `AuxRequest`, None for the others.

    Attributes:
        lse: ``(B, Hq, L)``, natural logarithm, fp32 (fp64 for fp64 inputs), differentiable.
        max_scores: ``(B, Hq, L)``, likewise, without gradient; minus infinity for an empty row.
    """

    lse: torch.Tensor | None = None
    max_scores: torch.Tensor | None = None


@overload
def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any = ...,
    block_mask: Any = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    return_lse: Literal[False] = ...,
    kernel_options: FlexKernelOptions | None = ...,
    *,
    return_aux: None = ...,
) -> torch.Tensor: ...


@overload
def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any = ...,
    block_mask: Any = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    *,
    return_lse: Literal[True],
    kernel_options: FlexKernelOptions | None = ...,
    return_aux: None = ...,
) -> tuple[torch.Tensor, torch.Tensor]: ...


@overload
def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any = ...,
    block_mask: Any = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    return_lse: Literal[False] = ...,
    kernel_options: FlexKernelOptions | None = ...,
    *,
    return_aux: AuxRequest,
) -> tuple[torch.Tensor, AuxOutput]: ...


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: FlexKernelOptions | None = None,
    *,
    return_aux: AuxRequest | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor] | tuple[torch.Tensor, AuxOutput]:
    """Compute attention with a score mod and a block mask, as torch's function of this name.

    Args:
        query: ``(B, Hq, L, E)``, fp32, fp64, fp16 or bf16.
        key: ``(B or 1, Hkv, S, E)``.
        value: ``(B or 1, Hkv, S, Ev)``.
        score_mod: ``score_mod(score, b, h, q_idx, kv_idx) -> score``, its text, a `flexfa4.Mod`, or
            None.
        block_mask: a `BlockMask` of this module, of torch or of FlexFA4, or None.
        scale: factor of the scores before `score_mod`; None is ``1/sqrt(E)``.
        enable_gqa: allow fewer key heads than query heads, of which these are a multiple.
        return_lse: also return the log-sum-exp; `return_aux` is what torch wants instead.
        kernel_options: torch's options for its kernels; without effect, see
            `explain_kernel_options`.
        return_aux: which further results to return; torch's `AuxRequest` serves too.

    Returns:
        out ``(B, Hq, L, Ev)``; with `return_lse` out and lse ``(B, Hq, L)``; with `return_aux` out
        and an `AuxOutput`.

    Raises:
        ShapeMismatchError: fewer key heads than query heads without `enable_gqa`.
        KernelOptionError: a kernel option that torch does not have.
        ArgumentError: both `return_lse` and `return_aux`, or an argument that is wrong by itself.
        FlexFA4Error: see `flexfa4.attention`.
    """
    _check_heads(query, key, enable_gqa)
    if kernel_options is not None:
        _check_options(kernel_options)
    wants_lse, wants_max = _wanted(return_lse, return_aux)
    mask = _mask_for(block_mask, query, key)
    result = attention(
        query,
        key,
        value,
        score_mod=score_mod,
        block_mask=mask,
        scale=scale,
        return_lse=wants_lse,
    )
    out, lse = result if isinstance(result, tuple) else (result, None)
    if return_aux is None:
        return out if lse is None else (out, lse)
    if not wants_max:
        return out, AuxOutput(lse, None)
    return out, AuxOutput(lse, _maxima(Scores(score_mod, mask, scale), query, key))


def _maxima(scores: Scores, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    if torch.compiler.is_dynamo_compiling():
        from flexfa4.flex import compiled

        return compiled.row_maxima(scores, query, key)
    return row_maxima(scores, query, key)


def _check_options(kernel_options: Any) -> None:
    if torch.compiler.is_dynamo_compiling():
        from flexfa4.flex import compiled

        compiled.check_kernel_options(kernel_options)
    else:
        check_kernel_options(kernel_options)


def _refuse(error: type[FlexFA4Error], **fields: str) -> None:
    """Raise an error of the catalogue, also where Dynamo traces."""
    if torch.compiler.is_dynamo_compiling():
        from flexfa4.flex import compiled

        compiled.refuse(error, **fields)
    raise error(**fields)


@untraced
def _check_heads(query: Any, key: Any, enable_gqa: bool) -> None:
    """Refuse grouped heads without the flag; what else is wrong, `attention` says."""
    if enable_gqa or not all(isinstance(t, torch.Tensor) and t.dim() == 4 for t in (query, key)):
        return
    if query.shape[1] != key.shape[1]:
        _refuse(GroupedHeadsError, q_heads=f"{query.shape[1]}", kv_heads=f"{key.shape[1]}")


def _wanted(return_lse: Any, return_aux: Any) -> tuple[bool, bool]:
    """Return whether lse and max_scores are wanted."""
    if return_aux is None:
        return bool(return_lse), False
    if return_lse:
        _refuse_request("return_lse", "True beside return_aux", "one of the two")
    if not isinstance(return_aux, tuple) or len(return_aux) != len(AuxRequest._fields):
        _refuse_request("return_aux", describe(return_aux), "an AuxRequest, or None")
    lse, max_scores = return_aux
    return bool(lse), bool(max_scores)


def _refuse_request(name: str, found: str, expected: str) -> None:
    rewrite = "return_aux=AuxRequest(lse=True)"
    _refuse(ArgumentError, name=name, found_value=found, expected=expected, rewrite=rewrite)


def _mask_for(block_mask: Any, query: Any, key: Any) -> Any:
    """Return a block mask as `attention` takes it, or what it takes or refuses itself."""
    traced = torch.compiler.is_dynamo_compiling()
    if is_torch_mask(block_mask):
        block_mask = torch_in_graph(block_mask) if traced else converted(block_mask)
    if not isinstance(block_mask, BlockMask) or not isinstance(query, torch.Tensor):
        return block_mask
    q_len, kv_len = block_mask.seq_lengths
    lengths = (query.shape[2], key.shape[2])
    if q_len != lengths[0] or kv_len != lengths[1]:
        _refuse(
            BlockMaskLengthsError,
            made_q_len=f"{q_len}",
            made_kv_len=f"{kv_len}",
            q_len=f"{lengths[0]}",
            kv_len=f"{lengths[1]}",
            rewrite=f"create_block_mask(mask_mod, B, H, {lengths[0]}, {lengths[1]}), with the"
            " position of the first query added to q_idx to decode;\n"
            f"block_mask._adjust{lengths} for its upper left part",
        )
    if traced:
        return in_graph(block_mask)
    return native_of(block_mask, query.shape[0], query.shape[1])


__all__ = ["AuxOutput", "AuxRequest", "flex_attention"]
