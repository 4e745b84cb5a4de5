"""FlexAttention's ways to combine mask functions, under torch's names.

They are thin: combining is `flexfa4.mask`'s business, so a combined mask is traced, printed and
refused like any other.  Nothing is evaluated here.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from torch.nn.attention import flex_attention as torch_flex

from flexfa4.combine import mask
from flexfa4.frontend.tracing.trace import parse

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


def is_noop(mask_mod: Any) -> bool:
    """Return whether this is `noop_mask`, ours or torch's."""
    return mask_mod is None or mask_mod is noop_mask or mask_mod is torch_flex.noop_mask
