"""`attention` and `create_block_mask` where Dynamo traces: ``torch.compile``, strict export.

Dynamo runs this module symbolically, so it holds plain steps only; what needs Python itself
(reading text, raising errors of the catalogue with their messages) is a function whose result
Dynamo takes as a constant.  Shapes, dtypes and devices are checked by the ops, when Dynamo asks for
the shapes of their results.
"""

from __future__ import annotations

import inspect
import types
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters
from torch.fx.experimental.symbolic_shapes import has_static_value

from flexfa4.api import Options
from flexfa4.autocast import cast_operand, operand_dtype
from flexfa4.block_mask import BlockMask
from flexfa4.checks import check_backend, check_flag, checked_scale, options_error
from flexfa4.errors import (
    ArgumentError,
    ArityError,
    BlockMaskCountError,
    BlockMaskLengthsError,
    DeviceError,
    ResultError,
    TransformError,
)
from flexfa4.frontend.tracing import contract, tape
from flexfa4.frontend.tracing.contract import Kind
from flexfa4.frontend.tracing.dynamo import constant, outside, refuse
from flexfa4.frontend.tracing.trace import FunctionMod, Mod, TextMod, resolve
from flexfa4.masks.spec import BLOCK_SIZE, READS, GivenSizes, Spec, reads
from flexfa4.torch_op import calls
from flexfa4.torch_op.arguments import Captured, graph_of, text_of
from flexfa4.torch_op.context import forward_mode_error
from flexfa4.torch_op.deferred import DeferredBlockMask

_SYMBOLIC: Final = "symbolic"  # stands for a size that is not known
_MASK_OF_TENSOR: Final = "block_mask=lambda b, h, q_idx, kv_idx: tensor[q_idx, kv_idx]"


@dataclass(frozen=True)
class UncheckedChoices:
    """The arguments of `attention` that are neither tensors nor mods, as users gave them."""

    scale: Any
    return_lse: Any
    deterministic: Any
    backend: Any
    options: Any


def attention(
    query: Any,
    key: Any,
    value: Any,
    sink: Any,
    score_mod: Any,
    block_mask: Any,
    choices: UncheckedChoices,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Return what `flexfa4.attention` does, as ops of Dynamo's graph."""
    _refuse_transforms()
    cast = operand_dtype(query)
    if cast is not None:
        query, key, value = [cast_operand(t, cast) for t in (query, key, value)]
    scale = choices.scale
    if isinstance(scale, int) and not has_static_value(scale):
        scale = float(scale)  # stays symbolic
    elif type(scale).__module__ == "numpy":
        refuse(
            ArgumentError,
            name="scale",
            found_value="a number of numpy's, which torch.compile takes for a tensor",
            expected="a Python number in a compiled function",
            rewrite="scale = float(scale), outside the compiled function",
        )
    is_symbolic = isinstance(scale, float) and not has_static_value(scale)
    checked = _check(
        choices.backend,
        choices.return_lse,
        choices.deterministic,
        None if is_symbolic else _plain(scale),
        type(choices.options),
    )
    if not is_symbolic:
        scale = checked
    at_once, tile, tau, emulated = None, (), None, None
    if choices.options is not None:
        options = choices.options
        at_once, tile, tau = options.scores_at_once, options.whole_tile, options.tau
        emulated = options.emulated_exponentials
    score = Captured() if score_mod is None else _recorded("score_mod", score_mod, "score")
    mask = _mask(block_mask, query, key)
    return calls.run(
        calls.Tensors(query, key, value, sink),
        score,
        mask,
        calls.Choices(
            scale,
            choices.return_lse,
            at_once,
            choices.backend,
            tile,
            tau,
            emulated,
            bool(choices.deterministic),
            is_symbolic,
        ),
    )


def create_block_mask(
    mask: Any, sizes: tuple[Any, Any, Any, Any], device: Any, block_size: Any
) -> BlockMask:
    """Return what `flexfa4.create_block_mask` does; `sizes` are batch, heads, q_len and kv_len."""
    known = tuple([n if n is None or has_static_value(n) else _SYMBOLIC for n in sizes])
    block_q, block_kv = _check_sizes(known, _constant_sizes(block_size))
    captured = _recorded("mask", mask, "mask")
    counts_heads = _check_known(captured.text, known)
    where = torch.empty(0, device=device).device if device is not None else None
    for tensor in captured.tensors:
        if where is None:
            where = tensor.device
        elif where != tensor.device:
            refuse(
                DeviceError,
                name="a captured tensor",
                device=f"{tensor.device}",
                other="the mask",
                other_device=f"{where}",
                rewrite=f"tensor = tensor.to('{where}')",
            )
    if where is None:
        where = torch.device("cpu")
    batch, heads, q_len, kv_len = sizes
    spec = Spec(GivenSizes(batch, heads, q_len, kv_len), (block_q, block_kv))
    return DeferredBlockMask(mask, captured, spec, where, counts_heads)


def _constant_sizes(block_size: Any) -> Any:
    """Return block sizes that Dynamo holds constant: another one compiles the function anew."""
    if isinstance(block_size, tuple):
        return tuple([_constant_sizes(n) for n in block_size])
    is_number = isinstance(block_size, int) and not isinstance(block_size, bool)
    return tape.fixed(block_size) if is_number else block_size


def _mask(block_mask: Any, query: torch.Tensor, key: torch.Tensor) -> calls.Mask:
    if isinstance(block_mask, BlockMask):
        _check_fits(block_mask, query, key)
        return calls.mask_of(block_mask)
    if block_mask is None:
        return calls.Mask()
    return calls.Mask(_recorded("block_mask", block_mask, "mask"))


def _check_fits(mask: BlockMask, query: torch.Tensor, key: torch.Tensor) -> None:
    """Check what `BlockMask.check_fits` does; the op checks devices."""
    batch, heads, q_len, _ = query.shape
    lengths, made_lengths = (q_len, key.shape[2]), (mask.q_len, mask.kv_len)
    if lengths[0] != made_lengths[0] or lengths[1] != made_lengths[1]:
        shown = [_shown(n) for n in (*made_lengths, *lengths)]
        refuse(
            BlockMaskLengthsError,
            made_q_len=shown[0],
            made_kv_len=shown[1],
            q_len=shown[2],
            kv_len=shown[3],
            rewrite=f"create_block_mask(mask, q_len={shown[2]}, kv_len={shown[3]})",
        )
    for name, made, found, may_be_one in (
        ("batch", mask.batch, batch, True),
        ("heads", mask.heads, heads, not mask.counts_heads),
    ):
        if made is not None and made != found and not (may_be_one and made == 1):
            refuse(
                BlockMaskCountError,
                name=name,
                made=_shown(made),
                count=_shown(found),
                reads=READS[name],
                rewrite=f"create_block_mask(mask, ..., {name}={_shown(found)})",
            )


def _shown(number: int) -> str:
    return f"{number}" if has_static_value(number) else "?"


def _recorded(name: str, mod: Any, kind: Kind) -> Captured:
    """Return a mod as text with its captures."""
    if isinstance(mod, str):
        return Captured(_text(mod, kind))
    if isinstance(mod, Mod):
        if mod.kind != kind:
            refuse(ResultError, **contract.other_kind(mod.kind, kind))
        if isinstance(mod, TextMod):
            scalars = mod.bound.scalars
            ints = [n for n in scalars if isinstance(n, int)]
            floats = [n for n in scalars if isinstance(n, float)]
            return Captured(mod.text, mod.bound.tensors, ints, floats)
        assert isinstance(mod, FunctionMod)
        mod = mod.function
    elif not callable(mod) or isinstance(mod, type):
        found = f"of type {type(mod).__name__}"
        if isinstance(mod, type):
            found = f"the class {mod.__name__}"
        is_tensor = kind == "mask" and isinstance(mod, torch.Tensor)
        refuse(
            ArgumentError,
            name=name,
            found_value=found,
            expected="a function, its text form, or a flexfa4.Mod",
            rewrite=_MASK_OF_TENSOR if is_tensor else contract.SIGNATURES[kind],
        )
    _check_arity(mod, kind)
    recorded = tape.record(mod, kind)
    return Captured(recorded.text, recorded.tensors, recorded.ints, recorded.floats)


def _check_arity(mod: Any, kind: Kind) -> None:
    """Refuse a plain function of too few or too many parameters; others Dynamo refuses itself."""
    if isinstance(mod, types.FunctionType):
        code, needed = mod.__code__, len(tape.INPUTS[kind])
        has_any_number = code.co_flags & inspect.CO_VARARGS
        try:
            required = code.co_argcount - len(mod.__defaults__ or ())
        except AttributeError:  # of lru_cache or torch.compile: plain functions to Dynamo
            return
        if (code.co_argcount < needed and not has_any_number) or required > needed:
            rewrite = contract.SIGNATURES[kind]
            refuse(ArityError, name=f"`{mod.__name__}`", count=required, rewrite=rewrite)


def _plain(value: Any) -> Any:
    """Return a value that can be a constant: itself, or the name of its type in brackets."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return f"<{type(value).__name__}>"


part_outside: Final = outside(BlockMask._picked, "block_mask[...]")

# ---- what Python runs ----------------------------------------------------------------------------


@constant
def _check(
    backend: Any, return_lse: Any, deterministic: Any, scale: Any, options: type[Any]
) -> float | None:
    """Check what is constant; return the scale as a float, or None for the default.

    Of the options it is the type, for they may hold a symbolic number.
    """
    check_backend(backend)
    check_flag("return_lse", return_lse)
    check_flag("deterministic", deterministic)
    if options not in (type(None), Options):
        raise options_error(f"a {options.__name__}")
    return None if scale is None else checked_scale(scale, 1)


@constant
def _refuse_transforms() -> None:
    """Refuse transforms that a registered op does not go with; torch's own error names no remedy.

    Unlike it, forward mode would give zeros.
    """
    kinds = [transform.key() for transform in retrieve_all_functorch_interpreters()]
    if TransformType.Jvp in kinds:
        raise forward_mode_error()
    if TransformType.Grad in kinds:
        raise TransformError(
            transform="torch.func.grad, vjp or jacrev in a function that torch.compile traces",
            expected="torch.func.vmap there, and derivatives of what the function returns",
            rewrite="backward() or torch.autograd.grad, or torch.func.grad without torch.compile",
        )


@constant
def _check_sizes(sizes: Any, block_size: Any) -> Any:
    numbers = [1 if n == _SYMBOLIC else n for n in sizes]
    return Spec.checked(GivenSizes(*numbers), block_size).block_size


@constant
def _check_known(text: str, sizes: Any) -> bool:
    """Check that what the mask reads was given; return whether it reads the number of heads."""
    graph = graph_of(text)
    Spec(GivenSizes(*sizes), BLOCK_SIZE).check_known(graph)
    return "num_heads" in reads(graph)


@constant
def _text(text: str, kind: Kind) -> str:
    return text_of(resolve(text, kind).graph)
