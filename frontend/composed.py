"""Functions composed of ops that text and traced functions share, so that both mean the same.

Values and derivatives are torch's, NaN and the kinks included: the derivative of ``clamp`` is 1 on
its bounds, that of ``relu`` is 0 at 0, where `max` and `min` would give half to each side.  What
only torch has lies with its table (`tracing.torch_table`, `tracing.activations`).
"""

from __future__ import annotations

from flexfa4.frontend.ir import Node, const
from flexfa4.frontend.ops import apply


def clamp(x: Node, low: Node | None, high: Node | None) -> Node:
    """Return `x` within bounds, of which each may be left out; `high` wins where they cross."""
    if low is not None:
        x = apply("where", apply("lt", x, low), low, x)
    return x if high is None else apply("where", apply("gt", x, high), high, x)


def relu(x: Node) -> Node:
    """Return `x` where it is positive or NaN, else 0."""
    return apply("where", apply("le", x, const(0)), const(0), x)


def square(x: Node) -> Node:
    """Return ``x * x``."""
    return apply("mul", x, x)


def isnan(x: Node) -> Node:
    """Return whether `x` is NaN."""
    return apply("ne", x, x)
