"""Packed sequences on kernels that find the lengths themselves: the host reads none.

`attend` serves a call of `attention_varlen` if it can.  Where it cannot, for the gradients, the
mask, the backend, or because torch watches the call, `varlen` reads the lengths and goes on.
"""

from __future__ import annotations

from typing import Any

import torch

from flexfa4.api import Options, choices_of
from flexfa4.autocast import cast_operand, operand_dtype
from flexfa4.block_mask import BlockMask
from flexfa4.checks import check_flag, check_mod, check_tensors, checked_scale
from flexfa4.counters import count
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.backends import attend_varlen, finds_lengths
from flexfa4.kernels.request import Inputs, Request
from flexfa4.kernels.varlen.call import Ends
from flexfa4.sequences import checked_ends
from flexfa4.torch_op.context import needs_op, refuse_forward_mode


def attend(
    rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    cu_seqlens: tuple[Any, Any],
    score_mod: Any,
    block_mask: Any,
    choices: dict[str, Any],
) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """Return out ``(1, Hq, total_q, Dv)`` and lse; None where lengths have to be read.

    Args:
        rows: query, key and value as one row, ``(1, H, total, D)``.
        cu_seqlens: of queries and of keys.
        score_mod: of one sequence, or None.
        block_mask: likewise.
        choices: the other arguments of `attention`.

    Raises:
        FlexFA4Error: as `attention`.
    """
    backend, options, sink = choices["backend"], choices["options"], choices["sink"]
    if not finds_lengths(backend, rows[0].device) or isinstance(block_mask, BlockMask):
        return None
    if not (options is None or isinstance(options, Options)):
        return None
    cast = operand_dtype(rows[0])
    query, key, value = (t if cast is None else cast_operand(t, cast) for t in rows)
    check_tensors(query, key, value, sink)
    check_flag("return_lse", choices["return_lse"])
    check_flag("deterministic", choices["deterministic"])
    ends = checked_ends(*cu_seqlens, query.device)
    if ends[0].shape != ends[-1].shape or needs_op(query, key, value, sink):
        return None
    score, mask = _resolved(score_mod, "score"), _resolved(block_mask, "mask")
    captured = [t for bound in (score, mask) if bound is not None for t in bound.tensors]
    refuse_forward_mode(*captured)
    if any([t.requires_grad or t.device != query.device for t in captured]):
        return None
    count("calls")
    request = Request(
        score,
        None,
        checked_scale(choices["scale"], query.shape[3]),
        frozenset(),
        choices["return_lse"],
        choices_of(backend, options),
    )
    given = Ends(ends[0].contiguous(), ends[-1].contiguous())
    return attend_varlen(request, mask, Inputs(query, key, value, sink), given)


def _resolved(mod: Any, kind: Any) -> BoundGraph | None:
    if mod is None:
        return None
    check_mod({"score": "score_mod", "mask": "block_mask"}[kind], mod, kind)
    return resolve(mod, kind)
