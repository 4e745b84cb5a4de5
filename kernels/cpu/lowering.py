"""Functions that this backend computes otherwise than torch does, because it is faster on a CPU.

`LOWERINGS` are functions by the name of their op: each takes a tensor and where to put the result,
and states its accuracy.  Small tensors, other dtypes and other devices go to torch.

`CORES` are whole cores of score mods (`score_form`) that save passes by taking the factors on both
sides of them along.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch

from flexfa4.frontend.ir import F32, Node, input_, substitute, with_args
from flexfa4.frontend.ops import apply

# Worth the extra passes from here on; and the piece worked on at once, so that its temporary stays
# small (measured: pieces of 64K are 1.5 times slower, one piece for all no faster).
_SMALL: Final = 1 << 14
_PIECE: Final = 1 << 18


def tanh(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return tanh(x) = e / (e + 2) with e = exp(2x) - 1; within 3 ulp in fp32 (torch: 1 ulp).

    Measured on 2 cores: 0.9 ns for an element, torch.tanh 1.27 ns.  The quotient keeps its digits
    near zero, where ``1 - 2 / (exp(2x) + 1)`` would lose them.
    """
    slow = x.dtype is not torch.float32 or x.device.type != "cpu" or x.numel() < _SMALL
    if slow or not x.is_contiguous() or (out is not None and not out.is_contiguous()):
        return torch.tanh(x, out=out) if out is not None else torch.tanh(x)
    result = torch.empty_like(x) if out is None else out
    source, target = x.view(-1), result.view(-1)
    for start in range(0, source.numel(), _PIECE):
        e = target[start : start + _PIECE]
        torch.mul(source[start : start + _PIECE], 2.0, out=e)
        e.clamp_max_(60.0).expm1_()  # past 2x = 17 the quotient is 1; inf / inf would be NaN
        torch.div(e, e + 2.0, out=e)
    return result


def maximum(
    a: torch.Tensor, b: torch.Tensor | float, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the larger of `a` and `b`, which may be a number, in place where that is asked for."""
    if isinstance(b, torch.Tensor):
        return torch.maximum(a, b, out=out)
    return torch.clamp_min(a, b, out=out)


LOWERINGS: Final[Mapping[str, Callable[..., torch.Tensor]]] = {"tanh": tanh, "max": maximum}


def lowered(root: Node) -> Node:
    """Return an equal node in which choices that are extremes are written as such.

    ``where(x <= 0, 0, x)`` --> ``max(x, 0)``, which is how `relu` is traced: one pass in place of
    three.  Equal for NaN too; only the derivatives at zero differ, which are taken before.
    """
    return substitute(root, lambda node, args: _as_maximum(with_args(node, args)))


def _as_maximum(node: Node) -> Node:
    if node.op != "where" or node.dtype is not F32 or node.args[0].op not in ("le", "lt"):
        return node
    condition, low, x = node.args
    if low.op == "const" and condition.args == (x, low) and low.attr == low.attr:
        return apply("max", x, low)
    return node


@dataclass(frozen=True)
class Core:
    """``factor * core(x)`` in few passes, where `x` and `factor` are known to be moderate.

    Attributes:
        prescale: the factor with which `x` arrives; it joins that of q and costs nothing.
        reach: largest ``|x|``, without `prescale`, for which it is right.
        run: ``run(prescale * x, factor)`` replaces its contiguous fp32 operand by the result.
    """

    prescale: float
    reach: float
    run: Callable[[torch.Tensor, float], None]

    def takes(self, factor: object) -> bool:
        """Whether `factor` is one number by which everything in between can be divided."""
        return isinstance(factor, float) and 1e-15 < abs(factor) < 1e30


def _scaled_tanh(x2: torch.Tensor, factor: float) -> None:
    """Replace 2x by ``factor * tanh(x) = e / (e / factor + 2 / factor)``, ``e = exp(2x) - 1``.

    Within 4 ulp: `tanh` without the passes for the factors, and without that for the overflow of e.
    """
    constant = torch.tensor(2.0 / factor)
    flat = x2.view(-1)
    for start in range(0, flat.numel(), _PIECE):
        e = flat[start : start + _PIECE].expm1_()
        torch.div(e, torch.add(constant, e, alpha=1.0 / factor), out=e)


def _tanh_fraction(levels: tuple[float, ...], x: torch.Tensor, factor: float) -> None:
    """Replace x by ``factor * tanh(x)``, a continued fraction (Lambert, 1768).

    With ``t = x^2`` and levels ``c1, ..., cn, a``::

        tanh(x) = x / (1 + t / (c1 + t / (c2 + ... t / (cn + a t))))

    Within 4 ulp: rounding within a level shrinks on its way out.  `factor` joins the first level,
    and each other level is one pass of a fused quotient and sum.

    Args:
        levels: the constants.
        x: contiguous, fp32.
        factor: as in `Core`.
    """
    *middle, last, slope = levels
    constants = [torch.tensor(c) for c in reversed(middle)]
    first, last_constant = torch.tensor(1.0 / factor), torch.tensor(last)
    flat = x.view(-1)
    temporaries = flat.new_empty(2, min(_PIECE, flat.numel()))
    for start in range(0, flat.numel(), _PIECE):
        piece = flat[start : start + _PIECE]
        t, below = temporaries[:, : piece.numel()]
        torch.mul(piece, piece, out=t)
        torch.add(last_constant, t, alpha=slope, out=below)
        for constant in constants:
            torch.addcdiv(constant, t, below, out=below)
        torch.addcdiv(first, t, below, value=1.0 / factor, out=below)
        torch.div(piece, below, out=piece)


# Reach, and levels with the least largest relative error within it (2^-26, 2^-27 and 2^-31), found
# by Lawson's iteration from 3, 5, 7, ... of the endless fraction. Measured on one core, for each
# element: 0.63, 0.85 and 1.09 ns; by exponentials 1.46.
_TANH_LEVELS: Final[tuple[tuple[float, tuple[float, ...]], ...]] = (
    (0.8, (3.00000387, 5.00096493, 0.140181506)),
    (2.5, (3.00000054, 5.00004175, 7.00188906, 9.05821171, 0.0814687601)),
    (4.5, (3.00000004, 5.00000204, 7.00006908, 9.00166379, 11.0295715, 13.3838688, 0.0528631758)),
)

CORES: Final[Mapping[Node, tuple[Core, ...]]] = {
    apply("tanh", input_("score")): (
        *(Core(1.0, reach, functools.partial(_tanh_fraction, c)) for reach, c in _TANH_LEVELS),
        Core(2.0, 20.0, _scaled_tanh),
    )
}
"""The cores of a function in the order of reach; those of less reach cost less."""
