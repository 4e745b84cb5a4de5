"""`attention_varlen`: attention of sequences of different lengths, packed one behind the other.

Where kernels find the lengths themselves, they do (`device_lengths`).  Otherwise it is `attention`
of one long row: mods are rewritten to say of packed positions what they say of one sequence
(`frontend.rewriting.packed`), and the mask keeps sequences apart; tiles with no score inside a
sequence are found empty like any other.
"""

from __future__ import annotations

import functools
from typing import Any, Final, Literal, overload

import torch

from flexfa4 import device_lengths
from flexfa4.api import Options, attention
from flexfa4.block_mask import BlockMask
from flexfa4.checks import check_mod
from flexfa4.errors import (
    ArgumentError,
    EmptyDimensionError,
    HeadsDoNotDivideError,
    SizesDifferError,
    describe,
)
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.ir import Graph
from flexfa4.frontend.rewriting.packed import Kind, bound_packed
from flexfa4.frontend.tracing.trace import TextMod, resolve
from flexfa4.sequences import Sequences, sequences_of
from flexfa4.torch_op.arguments import text_of
from flexfa4.torch_op.context import refuse_jit_trace


@overload
def attention_varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor | None = None,
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
def attention_varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor | None = None,
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
def attention_varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor | None = None,
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


def attention_varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor | None = None,
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
    """Compute `attention` of each of several sequences that lie one behind the other.

    The result is that of a loop over the sequences.  In mods, `b` is the number of the sequence,
    `q_idx` and `kv_idx` are places in it, from 0, and ``flexfa4.q_len`` and ``flexfa4.kv_len`` its
    lengths: a mod is written as for `attention` with a batch of sequences, and ``bias[b]`` picks
    what belongs to one.

    On H100 and H200, without gradients and with a mask that is one interval of keys for each query
    or None, the host reads no length: a CUDA graph may be replayed with others, and the content of
    `cu_seqlens` is not checked.  Otherwise it reads them once for each content, and a repeated call
    with the same tensors, unchanged, waits for no device.

    Args:
        query: ``(total_q, Hq, D)``, fp32, fp64, fp16 or bf16, any strides.
        key: ``(total_k, Hkv, D)``, with ``Hq % Hkv == 0`` (grouped-query attention).
        value: ``(total_k, Hkv, Dv)``.
        cu_seqlens_q: ``(S + 1,)``, int32 or int64, on query's device: 0, then where the queries of
            each sequence end; cumulative lengths, which may be 0.  The last is ``total_q``.
        cu_seqlens_k: likewise for the keys; None for those of the queries.
        score_mod: see `attention`.
        block_mask: ``mask_mod(b, h, q_idx, kv_idx) -> bool``, its text form, or a `Mod`, of one
            sequence; None attends to all of the sequence.  No `BlockMask`: that has one length.
        scale: see `attention`.
        sink: ``(Hq,)``, see `attention`.
        return_lse: also return the log-sum-exp of each row's scores.
        deterministic: see `attention`.
        backend: see `attention`.
        options: see `Options`.

    Returns:
        out ``(total_q, Hq, Dv)`` in query's dtype.  With `return_lse`, also lse ``(total_q, Hq)``,
        natural logarithm, fp32 (fp64 for fp64 inputs), differentiable.  A query of a sequence
        without keys has ``out = 0`` and ``lse = -inf`` (with a sink ``lse = sink``).

    Raises:
        FlexFA4Error: as `attention`; and for cumulative lengths that are none, do not end at the
            totals, or cannot be read, as on fake tensors.
    """
    choices: dict[str, Any] = {
        "scale": scale,
        "sink": sink,
        "return_lse": return_lse,
        "deterministic": deterministic,
        "backend": backend,
        "options": options,
    }
    run = attend
    if torch.compiler.is_dynamo_compiling():
        from flexfa4.torch_op import varlen_outside

        run = varlen_outside.attend
    return run((query, key, value), (cu_seqlens_q, cu_seqlens_k), score_mod, block_mask, choices)


def attend(
    tensors: tuple[Any, Any, Any],
    cu_seqlens: tuple[Any, Any],
    score_mod: Any,
    block_mask: Any,
    choices: dict[str, Any],
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Return what `attention_varlen` does, in Python.

    Args:
        tensors: query, key and value.
        cu_seqlens: of queries and of keys.
        score_mod: of one sequence, or None.
        block_mask: likewise.
        choices: the other arguments of `attention`.
    """
    refuse_jit_trace("attention_varlen", "torch.export, with flexfa4.attention and a mask")
    query, key, value = tensors
    _check_shapes(query, key, value)
    rows = (_row(query), _row(key), _row(value))
    found = device_lengths.attend(rows, cu_seqlens, score_mod, block_mask, choices)
    if found is not None:
        out, lse = (None if x is None else x[0].transpose(0, 1) for x in found)
        assert out is not None
        return out if lse is None else (out, lse)
    totals = (query.shape[0], key.shape[0])
    sequences = sequences_of(*cu_seqlens, totals, query.device)
    out = attention(
        *rows,
        score_mod=_packed("score", "score_mod", score_mod, sequences),
        block_mask=_packed("mask", "block_mask", block_mask, sequences),
        **choices,
    )
    if isinstance(out, torch.Tensor):
        return out[0].transpose(0, 1)
    return out[0][0].transpose(0, 1), out[1][0].transpose(0, 1)


def _row(tensor: torch.Tensor) -> torch.Tensor:
    """Return packed tokens ``(total, H, D)`` as one row, ``(1, H, total, D)``."""
    return tensor.transpose(0, 1).unsqueeze(0)


def _packed(kind: Kind, name: str, mod: Any, sequences: Sequences) -> TextMod | None:
    """Return a mod of one sequence as one of all; no mask is one that keeps sequences apart."""
    if mod is None:
        return None if kind == "score" else _without_captures(kind, None, sequences)
    if isinstance(mod, BlockMask):
        raise ArgumentError(
            name=name,
            found_value="a BlockMask, which has one length for all sequences",
            expected="the mask of one sequence: a function mask_mod(b, h, q_idx, kv_idx), its"
            " text form, or a flexfa4.Mod",
            rewrite=f"{name}={name}.mask",
        )
    check_mod(name, mod, kind)
    alone = resolve(mod, kind)
    if alone.tensors or alone.scalars:
        return _made(kind, alone, sequences)
    return _without_captures(kind, alone.graph, sequences)


def _made(kind: Kind, alone: BoundGraph | None, sequences: Sequences) -> TextMod:
    bound = bound_packed(kind, alone, sequences.shared, sequences.table)
    return TextMod(bound, text_of(bound.graph), kind)


def _without_captures(kind: Kind, graph: Graph | None, sequences: Sequences) -> TextMod:
    found = sequences.mods.get((kind, graph))
    if found is None:
        found = _made(kind, None if graph is None else BoundGraph(graph), sequences)
        sequences.mods[kind, graph] = found
    return found


# ---- checks --------------------------------------------------------------------------------------

_LAYOUT: Final = "(tokens, heads, head dimension)"


def _check_shapes(query: Any, key: Any, value: Any) -> None:
    """Check the shapes of the tensors; dtypes and devices are checked by `attention`.

    Raises:
        ArgumentError: one of them is no dense tensor.
        ShapeMismatchError: the shapes do not go together.
    """
    named = {"query": query, "key": key, "value": value}
    for name, tensor in named.items():
        is_dense = isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided
        if not is_dense or tensor.is_nested:
            raise ArgumentError(
                name=name,
                found_value=describe(tensor),
                expected=f"a dense tensor {_LAYOUT}",
                rewrite=f"torch.cat(sequences), {name} of each sequence {_LAYOUT}",
            )
        if tensor.dim() != 3:
            four = f"{name}.transpose(1, 2).flatten(0, 1), if it is (batch, heads, length, dim)"
            raise ArgumentError(
                name=name,
                found_value=describe(tensor),
                expected=f"of three dimensions, {_LAYOUT}, with the tokens of all sequences",
                rewrite=four if tensor.dim() == 4 else f"{name}.reshape(-1, heads, head_dim)",
            )
    _check_sizes(query.shape, key.shape, value.shape)


@functools.lru_cache(maxsize=1024)
def _check_sizes(q: torch.Size, k: torch.Size, v: torch.Size) -> None:
    """Check that shapes of three dimensions go together; what passed is remembered."""
    shapes = f"query {tuple(q)}, key {tuple(k)}, value {tuple(v)}"
    for first, second, what, one, other in (
        ("query", "key", "head dimension", q[2], k[2]),
        ("key", "value", "number of tokens", k[0], v[0]),
        ("key", "value", "number of heads", k[1], v[1]),
    ):
        if one != other:
            raise SizesDifferError(
                first=first,
                second=second,
                what=what,
                shapes=shapes,
                rewrite=f"give {first} and {second} the same {what}",
            )
    for name, size, dim in (
        ("the dimension of heads", min(q[1], k[1]), 1),
        ("a head dimension", min(q[2], v[2]), 2),
    ):
        if size == 0:
            raise EmptyDimensionError(name=name, dim=dim, shapes=shapes)
    if q[1] % k[1]:
        raise HeadsDoNotDivideError(
            q_heads=q[1],
            kv_heads=k[1],
            shapes=shapes,
            rewrite=f"query = query[:, :{q[1] - q[1] % k[1]}]"
            if q[1] > k[1]
            else f"key, value = key[:, :{q[1]}], value[:, :{q[1]}]",
        )
