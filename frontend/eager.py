"""A graph's meaning on tensors of any shapes that go together, for mods called as functions.

A mod given as text is called like the Python function that it stands for: with the score and with
indices, as ``torch.vmap`` or a dense reference does it.  What it computes there is the meaning of
the ops table, one op after the other: nothing is reused or written in place, so autograd and vmap
see plain torch.  `evaluate` computes the same over the rectangles that attention works on.

Sizes that only a call of attention knows (`flexfa4.q_len` ...) have no value here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from flexfa4.errors import OutsideModError, Where
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.ir import BOOL, F32, I32, DType, Node, topological
from flexfa4.frontend.ops import OPS


def result_on(
    bound: BoundGraph, inputs: Mapping[str, Any], where: Callable[[], Where | None]
) -> torch.Tensor:
    """Return what a mod gives on tensors.

    Args:
        bound: the mod.
        inputs: ``score`` (of a score mod), ``b``, ``h``, ``q`` and ``kv``: tensors of shapes that
            broadcast, or numbers.
        where: finds the place of the call, for messages.

    Returns:
        A tensor of the shape that the inputs read broadcast to: bool for a mask; for a score mod
        of score's dtype, but float32 where that is narrower.

    Raises:
        OutsideModError: the mod reads a size that only a call of attention knows.
    """
    score = inputs.get("score")
    wide = isinstance(score, torch.Tensor) and score.dtype is torch.float64
    dtypes = {F32: torch.float64 if wide else torch.float32, I32: torch.int64, BOOL: torch.bool}
    known: dict[Any, Any] = {
        **dict(zip(bound.graph.buffers, bound.tensors, strict=True)),
        **dict(zip(bound.graph.scalars, bound.scalars, strict=True)),
        **inputs,
    }
    device = next((t.device for t in known.values() if isinstance(t, torch.Tensor)), None)
    values: dict[Node, torch.Tensor] = {}
    for node in topological(bound.graph.root):
        operands = [values[arg] for arg in node.args]
        if node.length is not None or (node.op in OPS and OPS[node.op].reduces):
            operands = [
                value.unsqueeze(-1) if arg.length is None else value
                for arg, value in zip(node.args, operands, strict=True)
            ]
        if node.op == "load":
            made = known[node.attr][tuple(operands)].to(dtypes[node.dtype])
        elif node.op == "iota":
            made = torch.arange(node.attr, device=device)
        elif node.op.startswith("to_"):
            made = OPS[node.op].eager(operands[0], dtypes[F32])
        elif node.op in OPS:
            made = OPS[node.op].eager(*operands)
        else:
            made = _tensor(_leaf(node, known, where), node.dtype, dtypes, device)
        values[node] = made
    return values[bound.graph.root]


def _leaf(node: Node, known: Mapping[Any, Any], where: Callable[[], Where | None]) -> Any:
    match node.op:
        case "const":
            return node.attr
        case "size":
            buffer, axis = node.attr
            return known[buffer].shape[axis]
        case "symbol":
            raise OutsideModError(where=where(), name=f"`{node.attr}`")
    return known[node.attr]


def _tensor(
    value: Any, dtype: DType, dtypes: Mapping[DType, torch.dtype], device: torch.device | None
) -> torch.Tensor:
    """Return a leaf as a tensor: ops between tensors alone have torch's dtypes."""
    if isinstance(value, torch.Tensor):
        return value.to(dtypes[dtype])
    return torch.scalar_tensor(value, dtype=dtypes[dtype], device=device)
