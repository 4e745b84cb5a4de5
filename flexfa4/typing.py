"""Types of the arguments that are mods, for annotations in users' code.

    def build(mask: flexfa4.typing.MaskLike) -> flexfa4.BlockMask: ...

`ScoreFunction` and `MaskFunction` are functions (or any callable) of the five and the four
arguments of a mod; `ScoreLike` and `MaskLike` add the other forms, `flexfa4.Mod` and text.  They
are defined in `frontend.tracing.forms`, where the compiler's own annotations can use them.
"""

from __future__ import annotations

from flexfa4.frontend.tracing.forms import MaskFunction, MaskLike, ScoreFunction, ScoreLike

__all__ = ["MaskFunction", "MaskLike", "ScoreFunction", "ScoreLike"]
