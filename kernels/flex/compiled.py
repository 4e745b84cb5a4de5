"""One function for a form of calls, which torch.compile makes kernels of.

`FlexPlan` is the whole key.  Lengths, batches and strides are not in it: torch compiles for the
first ones it sees, and for any when they change.  All that follows the kernel is in the function as
well: to autograd it is one operation, in the eager call and inside an op alike.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.kernels.flex.blocks import BLOCK
from flexfa4.kernels.flex.source import ModPlan, ModSource, arguments_of, mod_source

_RECOMPILED: Final = 64
"""How often torch may compile one function anew; its own limit is 8."""

_SMALL_TILES: Final = {
    **dict.fromkeys(("BLOCK_M", "BLOCK_N", "BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2"), 32),
    "num_stages": 1,
}
"""What torch is told where its own choice of tiles takes more shared memory than there is."""


@dataclass(frozen=True)
class FlexPlan:
    """What a function rests on.

    Attributes:
        score: the score mod, or None.
        mask: the mask, or None.
        scale: factor of ``q . k``.
        lse: the log-sum-exp is returned.
        sink: there is one.
        fixed: shapes of q, k and v that it is compiled for alone; None: for any.
        compiler: a backend of torch.compile.
        small: its tiles are small, for mods that read much for each score.
    """

    score: ModPlan | None
    mask: ModPlan | None
    scale: float
    lse: bool
    sink: bool
    fixed: tuple[torch.Size, ...] | None
    compiler: str
    small: bool = False


@dataclass(frozen=True, eq=False)
class Compiled:
    """What serves the calls of a plan.

    Attributes:
        function: of q, k, v, sink, the lists of blocks, and what the score mod and the mask read;
            returns out and lse.
        text: its source.
        score: of the score mod.
        mask: likewise.
    """

    function: Callable[..., tuple[torch.Tensor, torch.Tensor | None]]
    text: str
    score: ModSource | None
    mask: ModSource | None


_COMPILER: Final[ContextVar[str | None]] = ContextVar("flexfa4_flex_compiler", default=None)


@contextmanager
def compiling_with(compiler: str) -> Iterator[None]:
    """Use another backend of torch.compile in this thread: ``"aot_eager"`` runs anywhere.

    Every device then is taken for one that torch compiles FlexAttention for in full.
    """
    token = _COMPILER.set(compiler)
    try:
        yield
    finally:
        _COMPILER.reset(token)


def chosen_compiler() -> str | None:
    """Return the backend of torch.compile that `compiling_with` asks for."""
    return _COMPILER.get()


@functools.lru_cache(maxsize=256)
def compiled(plan: FlexPlan) -> Compiled:
    """Return what serves the calls of a plan; torch compiles on the first one.

    Raises:
        KernelLimitError: a mod has something that torch does not compile into a kernel.
    """
    from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

    score = None if plan.score is None else mod_source(plan.score)
    mask = None if plan.mask is None else mod_source(plan.mask)
    text = _text(plan, score, mask)
    scope: dict[str, Any] = {
        "torch": torch,
        "AuxRequest": AuxRequest,
        "BlockMask": BlockMask,
        "flex_attention": flex_attention,
    }
    # code of its own for each plan: torch counts by code how often it compiles
    exec(compile(text, "<a call of FlexAttention>", "exec"), scope)
    function = often_compiled(
        scope["attention"],
        fullgraph=True,
        dynamic=None if plan.fixed is None else False,
        backend=plan.compiler,
    )
    return Compiled(function, text, score, mask)


def often_compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return what `torch.compile` makes of a function, with more kinds of calls than usual."""
    if "recompile_limit" in inspect.signature(torch.compile).parameters:
        return torch.compile(function, recompile_limit=_RECOMPILED, **options)  # type: ignore[call-overload, no-any-return]
    compiled = torch.compile(function, **options)  # before 2.13 the limit is one for all functions

    @functools.wraps(function)
    def limited(*arguments: Any) -> Any:
        with torch._dynamo.config.patch(recompile_limit=_RECOMPILED):
            return compiled(*arguments)

    return limited


_SINK: Final = """\
    empty = torch.isneginf(lse)
    found = torch.where(empty, 0.0, lse)
    logit = sink.to(torch.float32)[:, None]
    weight = torch.sigmoid(found - logit)
    out = (out.to(torch.float32) * weight[..., None]).to(out.dtype)
    lse = torch.where(empty, logit, torch.logaddexp(found, logit))
"""


def _text(plan: FlexPlan, score: ModSource | None, mask: ModSource | None) -> str:
    """Return the source of the function."""
    lines = ["def attention(q, k, v, sink, lists, score_values, mask_values):\n"]
    if score is not None:
        lines += _mod(score, "score", "score, b, h, q_idx, kv_idx")
    if mask is not None:
        lines += _mod(mask, "mask", "b, h, q_idx, kv_idx")
        lines.append(
            "    block_mask = BlockMask((q.shape[2], k.shape[2]), *lists,"
            f" BLOCK_SIZE={BLOCK}, mask_mod=mask_mod)\n"
        )
    lines.append("    k, v = (x.expand(q.shape[0], -1, -1, -1) for x in (k, v))\n")
    lines.append(
        "    out, aux = flex_attention(q, k, v,"
        f" score_mod={'None' if score is None else 'score_mod'},"
        f" block_mask={'None' if mask is None else 'block_mask'},"
        f" scale={plan.scale!r}, enable_gqa=True, return_aux=AuxRequest(lse={plan.lse}),"
        f" kernel_options={_SMALL_TILES if plan.small else None})\n"
    )
    lines.append(f"    lse = {'aux.lse' if plan.lse else None}\n")
    if plan.sink:
        lines.append(_SINK)
    lines.append("    return out, lse\n")
    return "".join(lines)


def _mod(source: ModSource, kind: str, parameters: str) -> list[str]:
    names = arguments_of(source, kind)
    unpacked = [f"    {', '.join(names)}, = {kind}_values\n"] if names else []
    return [*unpacked, f"    def {kind}_mod({parameters}):\n", source.text]
