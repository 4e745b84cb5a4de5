"""`attention` and `create_block_mask` where Dynamo traces: ``torch.compile``, strict export.

Dynamo runs this module symbolically, so it holds plain steps only; what needs Python itself
(reading text, raising errors of the catalogue with their messages) is a function whose result
Dynamo takes as a constant.  Shapes, dtypes and devices are checked by the ops, when Dynamo asks for
the shapes of their results.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters
from torch.fx.experimental.symbolic_shapes import has_static_value

from flexfa4.autocast import cast_operand, operand_dtype
from flexfa4.block_mask import BlockMask
from flexfa4.checks import check_backend, check_flag, checked_scale
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
from flexfa4.frontend.tracing.trace import FunctionMod, Mod, TextMod, resolve
from flexfa4.mask_spec import BLOCK_SIZE, READS, GivenSizes, Spec, reads
from flexfa4.torch_op import calls
from flexfa4.torch_op.arguments import Captured, graph_of, text_of
from flexfa4.torch_op.context import forward_mode_error
from flexfa4.torch_op.deferred import DeferredBlockMask

_constant: Callable[..., Any] = torch.compiler.assume_constant_result


@dataclass(frozen=True)
class Choices:
    """The arguments of `attention` that are neither tensors nor mods."""

    scale: Any
    return_lse: Any
    deterministic: Any
    backend: Any
    options: Any


def attention(
    query: Any, key: Any, value: Any, sink: Any, score_mod: Any, block_mask: Any, choices: Choices
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Return what `flexfa4.attention` does, as ops of Dynamo's graph."""
    _refuse_transforms()
    cast = operand_dtype(query)
    if cast is not None:
        query, key, value = [cast_operand(t, cast) for t in (query, key, value)]
    scale = choices.scale
    is_symbolic = isinstance(scale, float) and not has_static_value(scale)
    checked = _check(
        choices.backend,
        choices.return_lse,
        choices.deterministic,
        None if is_symbolic else _plain(scale),
        _plain(choices.options) if choices.options is None else type(choices.options).__name__,
    )
    if not is_symbolic:
        scale = checked
    at_once = None if choices.options is None else choices.options.scores_at_once
    score = Captured() if score_mod is None else _recorded("score_mod", score_mod, "score")
    mask = _mask(block_mask, query, key)
    return calls.run(
        calls.Tensors(query, key, value, sink),
        score,
        mask,
        calls.Choices(scale, choices.return_lse, at_once, is_symbolic),
    )


def create_block_mask(
    mask: Any, sizes: tuple[Any, Any, Any, Any], device: Any, block_size: Any
) -> BlockMask:
    """Return what `flexfa4.create_block_mask` does; `sizes` are batch, heads, q_len and kv_len."""
    known = tuple([n if n is None or has_static_value(n) else _SYMBOLIC for n in sizes])
    block_q, block_kv = _check_sizes(known, block_size)
    captured = _recorded("mask", mask, "mask")
    counts_heads = _check_known(captured.text, known)
    where = torch.empty(0, device=device).device if device is not None else None
    for tensor in captured.tensors:
        if where is None:
            where = tensor.device
        elif where != tensor.device:
            _refuse_devices(str(tensor.device), str(where))
    if where is None:
        where = torch.device("cpu")
    batch, heads, q_len, kv_len = sizes
    spec = Spec(GivenSizes(batch, heads, q_len, kv_len), (block_q, block_kv))
    return DeferredBlockMask(mask, captured, spec, where, counts_heads)


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
        _refuse_lengths(shown[0], shown[1], shown[2], shown[3])
    for name, made, found, may_be_one in (
        ("batch", mask.batch, batch, True),
        ("heads", mask.heads, heads, not mask.counts_heads),
    ):
        if made is not None and made != found and not (may_be_one and made == 1):
            _refuse_count(name, _shown(made), _shown(found))


def _shown(number: int) -> Any:
    return number if has_static_value(number) else "?"


def _recorded(name: str, mod: Any, kind: Kind) -> Captured:
    """Return a mod as text with its captures."""
    if isinstance(mod, str):
        return Captured(_text(mod, kind))
    if isinstance(mod, Mod):
        if mod.kind != kind:
            _refuse_kind(mod.kind, kind)
        if isinstance(mod, TextMod):
            scalars = mod.bound.scalars
            ints = [n for n in scalars if isinstance(n, int)]
            floats = [n for n in scalars if isinstance(n, float)]
            return Captured(mod.text, mod.bound.tensors, ints, floats)
        assert isinstance(mod, FunctionMod)
        mod = mod.function
    elif not callable(mod) or isinstance(mod, type):
        is_class = isinstance(mod, type)
        kind_of_value = f"the class {mod.__name__}" if is_class else f"of type {type(mod).__name__}"
        _refuse_mod(name, kind_of_value, kind)
    _check_arity(mod, kind)
    found = tape.record(mod, kind)
    return Captured(found.text, found.tensors, found.ints, found.floats)


def _check_arity(mod: Any, kind: Kind) -> None:
    """Refuse a plain function of too few or too many parameters; others Dynamo refuses itself."""
    if isinstance(mod, types.FunctionType):
        code, needed = mod.__code__, len(tape.INPUTS[kind])
        has_any_number = code.co_flags & inspect.CO_VARARGS
        required = code.co_argcount - len(mod.__defaults__ or ())
        if (code.co_argcount < needed and not has_any_number) or required > needed:
            _refuse_arity(mod.__name__, required, kind)


def _plain(value: Any) -> Any:
    """Return a value that can be a constant: itself, or the name of its type in brackets."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return f"<{type(value).__name__}>"


# ---- what Python runs ----------------------------------------------------------------------------

_SYMBOLIC = "symbolic"  # stands for a size that is not known


@_constant
def _check(backend: Any, return_lse: Any, deterministic: Any, scale: Any, options: Any) -> Any:
    """Check what is constant; return the scale as a float, or None for the default."""
    check_backend(backend)
    check_flag("return_lse", return_lse)
    check_flag("deterministic", deterministic)
    if options not in (None, "Options"):
        raise ArgumentError(
            name="options",
            found_value=f"a {options}",
            expected="a flexfa4.Options, or None",
            rewrite="options=flexfa4.Options()",
        )
    return None if scale is None else checked_scale(scale, 1)


@_constant
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


@_constant
def _check_sizes(sizes: Any, block_size: Any) -> Any:
    numbers = [1 if n == _SYMBOLIC else n for n in sizes]
    return Spec.checked(GivenSizes(*numbers), block_size).block_size


@_constant
def _check_known(text: str, sizes: Any) -> bool:
    """Check that what the mask reads was given; return whether it reads the number of heads."""
    graph = graph_of(text)
    Spec(GivenSizes(*sizes), BLOCK_SIZE).check_known(graph)
    return "num_heads" in reads(graph)


@_constant
def _text(text: str, kind: Kind) -> str:
    return text_of(resolve(text, kind).graph)


@_constant
def _refuse_lengths(made_q_len: Any, made_kv_len: Any, q_len: Any, kv_len: Any) -> None:
    raise BlockMaskLengthsError(
        made_q_len=made_q_len,
        made_kv_len=made_kv_len,
        q_len=q_len,
        kv_len=kv_len,
        rewrite=f"create_block_mask(mask, q_len={q_len}, kv_len={kv_len})",
    )


@_constant
def _refuse_count(name: str, made: Any, count: Any) -> None:
    raise BlockMaskCountError(
        name=name,
        made=made,
        count=count,
        reads=READS[name],
        rewrite=f"create_block_mask(mask, ..., {name}={count})",
    )


@_constant
def _refuse_devices(found: str, wanted: str) -> None:
    raise DeviceError(
        name="a captured tensor",
        device=found,
        other="the mask",
        other_device=wanted,
        rewrite=f"tensor = tensor.to({wanted!r})",
    )


@_constant
def _refuse_kind(found: Kind, wanted: Kind) -> None:
    raise ResultError(
        name="the mod",
        result=f"a {contract.RESULTS[found]}: it is a {found} mod",
        expected=f"a {contract.RESULTS[wanted]} for a {wanted} mod",
        rewrite=contract.SIGNATURES[wanted],
    )


@_constant
def _refuse_mod(name: str, kind_of_value: str, kind: Kind) -> None:
    is_tensor = kind == "mask" and kind_of_value == "of type Tensor"
    raise ArgumentError(
        name=name,
        found_value=kind_of_value,
        expected="a function, its text form, or a flexfa4.Mod",
        rewrite="block_mask=lambda b, h, q_idx, kv_idx: tensor[q_idx, kv_idx]"
        if is_tensor
        else contract.SIGNATURES[kind],
    )


@_constant
def _refuse_arity(name: str, count: int, kind: Kind) -> None:
    raise ArityError(name=f"`{name}`", count=count, rewrite=contract.SIGNATURES[kind])
