"""FlexAttention's ways to combine mask functions, under torch's names.

They are thin: combining is `flexfa4.mask`'s business, so a combined mask is traced, printed and
refused like any other.  Nothing is evaluated here.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import flex_attention as torch_flex

from flexfa4.checks import check_mod
from flexfa4.combine import mask
from flexfa4.errors import ResultError
from flexfa4.frontend.tracing.contract import check_arity, other_kind
from flexfa4.frontend.tracing.trace import Mod, parse

MaskFunction = Callable[..., Any]


def noop_mask(batch: Any, head: Any, token_q: Any, token_kv: Any) -> Any:
    """Return True for every query and key: the mask function that masks nothing."""
    return batch == batch  # a bool of the kind of the argument: traced, a tensor, or Python's


def _nothing(batch: Any, head: Any, token_q: Any, token_kv: Any) -> Any:
    return batch != batch


def and_masks(*mask_mods: MaskFunction | str) -> MaskFunction:
    """Return the mask function that is True where all of `mask_mods` are.

    Args:
        mask_mods: mask functions ``(b, h, q_idx, kv_idx) -> bool``; also texts and `flexfa4.Mod`.
            Without any, the result is True everywhere.

    Raises:
        ArgumentError: one of them is no mask.
    """
    if not mask_mods:
        return noop_mask
    return functools.reduce(operator.and_, map(mask, mask_mods))


def or_masks(*mask_mods: MaskFunction | str) -> MaskFunction:
    """Return the mask function that is True where any of `mask_mods` is.

    Args:
        mask_mods: as in `and_masks`.  Without any, the result is False everywhere.

    Raises:
        ArgumentError: one of them is no mask.
    """
    if not mask_mods:
        return _nothing
    return functools.reduce(operator.or_, map(mask, mask_mods))


def callable_mask(mod: Any) -> MaskFunction:
    """Return a mod as one that other mods can call: a text is read."""
    function: MaskFunction = parse(mod) if isinstance(mod, str) else mod
    return function


def checked_mask_mod(mod: Any) -> Any:
    """Return a mask function that users gave, `noop_mask` for None.

    Where Dynamo traces, functions are not looked at.

    Raises:
        ArgumentError: it is no function, text or `Mod`.
        ArityError: it does not take the parameters of a mask.
        ResultError: it is a `Mod` of a score mod.
        TextError: it is a text that cannot be read.
    """
    if is_noop(mod):
        return noop_mask if mod is None else mod
    if torch.compiler.is_dynamo_compiling():
        return mod
    check_mod("mask_mod", mod, "mask")
    function = callable_mask(mod)
    if isinstance(function, Mod):
        if function.kind != "mask":
            raise ResultError(**other_kind(function.kind, "mask"))
    else:
        check_arity(function, "mask", 4)
    return mod


def is_noop(mask_mod: Any) -> bool:
    """Return whether this is `noop_mask`, ours or torch's."""
    return mask_mod is None or mask_mod is noop_mask or mask_mod is torch_flex.noop_mask
