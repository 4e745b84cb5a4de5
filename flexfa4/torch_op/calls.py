"""A call of attention, or the search for a mask's blocks, as one registered op.

Two ways lead here.  Where Python itself runs (``torch.func``, fake tensors, non-strict export), the
public functions checked their arguments and resolved the mods as in any call.  Where Dynamo traces,
`compiled` did.  This module is the same for both, so it holds plain steps that Dynamo can follow,
and checks nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flexfa4.block_mask import BlockMask
from flexfa4.frontend.binding import BoundGraph
from flexfa4.masks.spec import BLOCK_SIZE, Spec
from flexfa4.torch_op import ops, transforms
from flexfa4.torch_op.arguments import NOTHING, Arguments, Captured, captured, float_tensor
from flexfa4.torch_op.context import differentiates


@dataclass(frozen=True)
class Tensors:
    """The tensor arguments of `attention`."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    sink: torch.Tensor | None


@dataclass(frozen=True)
class Mask:
    """A mask as the op takes it, see `arguments.Arguments`."""

    mod: Captured = NOTHING
    kinds: torch.Tensor | None = None
    block_size: tuple[int, int] = BLOCK_SIZE
    made_for: tuple[int, ...] = ()


@dataclass(frozen=True)
class Choices:
    """What is neither tensor nor mod.

    Attributes:
        scale: None for the default.
        return_lse: also return the log-sum-exp.
        scores_at_once: see `flexfa4.Options`.
        backend: see `flexfa4.attention`.
        tile: see `arguments.Arguments`.
        tau: see `flexfa4.Options`.
        emulated: see `flexfa4.Options.emulated_exponentials`.
        deterministic: see `flexfa4.attention`.
        scale_varies: `scale` is a symbolic number, whose changes must not compile anew.
    """

    scale: float | None
    return_lse: bool
    scores_at_once: int | None
    backend: str = "auto"
    tile: tuple[int, ...] = ()
    tau: float | None = None
    emulated: float | None = None
    deterministic: bool = False
    scale_varies: bool = False


def run(
    tensors: Tensors, score: Captured, mask: Mask, choices: Choices
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Call the op."""
    scale, floats = choices.scale, [*score.floats, *mask.mod.floats]
    if scale is not None and choices.scale_varies:
        floats, scale = [scale, *floats], None
    arguments = Arguments(
        query=tensors.query,
        key=tensors.key,
        value=tensors.value,
        sink=tensors.sink,
        kinds=mask.kinds,
        tensors=[*score.tensors, *mask.mod.tensors],
        ints=[*score.ints, *mask.mod.ints],
        floats=float_tensor(floats),
        score=score.text,
        mask=mask.mod.text,
        scale=scale,
        block_size=list(mask.block_size),
        made_for=list(mask.made_for),
        scores_at_once=choices.scores_at_once,
        backend=choices.backend,
        tile=list(choices.tile),
        tau=choices.tau,
        emulated=choices.emulated,
        deterministic=choices.deterministic,
    )
    if not torch.compiler.is_dynamo_compiling() and differentiates():
        out, lse = transforms.attention(*arguments)
    else:
        out, lse = ops.attention(*arguments)
    return (out, lse) if choices.return_lse else out


def block_kinds(mask: Captured, spec: Spec, device: torch.device) -> torch.Tensor:
    """Call the op that finds the kinds of a mask's blocks.

    Args:
        mask: what it is.
        spec: sizes, which have been checked, and a block size of any two numbers.
        device: where to evaluate.

    Returns:
        See `tables`.
    """
    sizes = spec.sizes
    made_for = _made_for(sizes.batch, sizes.heads, sizes.q_len, sizes.kv_len)
    kinds: torch.Tensor = ops.block_kinds(
        mask.text,
        list(mask.tensors),
        list(mask.ints),
        float_tensor(mask.floats),
        list(made_for),
        list(spec.block_size),
        device,
    )
    return kinds


def mask_of(mask: BlockMask | BoundGraph | None) -> Mask:
    """Return a mask, resolved or with its blocks, as the op takes it."""
    if mask is None:
        return Mask()
    if isinstance(mask, BlockMask):
        made_for = _made_for(mask.batch, mask.heads, mask.q_len, mask.kv_len)
        return Mask(mask.captured, mask.table, mask.block_size, made_for)
    return Mask(captured(mask))


def _made_for(batch: int | None, heads: int | None, q_len: int, kv_len: int) -> tuple[int, ...]:
    """Return sizes with 1 for counts that do not matter."""
    return (1 if batch is None else batch, 1 if heads is None else heads, q_len, kv_len)
