"""Mods as values: ``&``, ``|`` and ``~`` between masks, `compose` for score mods.

    window = flexfa4.mask(lambda b, h, q_idx, kv_idx: q_idx - kv_idx < 128)
    both = window & flexfa4.mask("doc[q] == doc[kv]", doc=ids)
    capped_bias = flexfa4.compose(flexfa4.variants.alibi, flexfa4.variants.softcap)

A combination is an ordinary mod of its parts; tracing sees through it (`frontend.tracing.combining`
has the classes).  Nothing is evaluated here.
"""

from __future__ import annotations

from typing import Any

from flexfa4.errors import ArgumentError
from flexfa4.frontend.tracing.combining import MaskMod, ScoreMod, as_mask, in_sequence
from flexfa4.frontend.tracing.forms import MaskLike, ScoreLike
from flexfa4.frontend.tracing.trace import parse

__all__ = ["MaskMod", "ScoreMod", "compose", "mask"]


def mask(function: MaskLike, /, **bindings: Any) -> MaskMod:
    """Make a mask function combinable.

    Args:
        function: ``mask_mod(b, h, q_idx, kv_idx) -> bool``, its text form, or a `Mod`.
        bindings: values of the names in a text.

    Returns:
        A mask that is used like the function and also understands ``&``, ``|`` and ``~``.

    Raises:
        ArgumentError: `function` is neither a mask function nor text, or bindings were given to a
            function.
        TextError: the text cannot be read, or the bindings do not fit it.
    """
    if isinstance(function, str):
        return as_mask(parse(function, **bindings), "mask()")
    if bindings:
        raise ArgumentError(
            name="mask",
            found_value=f"a function with bindings {', '.join(bindings)}",
            expected="bindings with a text mask only",
            rewrite="let the function capture the values: lambda b, h, q_idx, kv_idx: ...",
        )
    return as_mask(function, "mask()")


def compose(*score_mods: ScoreLike) -> ScoreMod:
    """Apply score mods one after the other, the first one first.

    ``compose(alibi, softcap)`` caps the biased score; ``compose(softcap, alibi)`` adds the bias to
    the capped one.

    Args:
        score_mods: at least one ``score_mod(score, b, h, q_idx, kv_idx) -> score``, its text form
            or a `Mod`.

    Returns:
        The score mod that gives ``score = score_mod(score, b, h, q_idx, kv_idx)`` for each in turn.

    Raises:
        ArgumentError: there is none, or one of them is a mask, a class, or no function.
        ArityError: one of them takes the parameters of neither kind of mod.
        TextError: a text cannot be read.
    """
    return in_sequence(score_mods)
