"""Integer operations that have no result in 64 bits: which they are, and what to write instead.

Only operands whose values are known are judged: constants, and captured numbers as they are now.
What happens to values that differ for each score is the business of the ops themselves.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from flexfa4.frontend.ir import I32, Node

LOWEST, HIGHEST = -(2**63), 2**63 - 1
DIVISIONS: Final = ("floordiv", "mod")


@dataclass(frozen=True)
class Problem:
    """Why an operation has no result; the fields of an `OperandError`."""

    operands: str
    expected: str
    rewrite: str


Known = Callable[[Node], "int | None"]
"""The value of an integer node where it is known."""


def constant(node: Node) -> int | None:
    """Return the value of a constant."""
    return int(node.attr) if node.op == "const" else None


def fits(value: int) -> bool:
    """Return whether a value is an integer of 64 bits."""
    return LOWEST <= value <= HIGHEST


def problem(op: str, args: tuple[Node, ...], known: Known = constant) -> Problem | None:
    """Return why an op has no result on these operands, None where it has one or may have one."""
    if (op not in _BEYOND and op not in DIVISIONS) or any(a.dtype is not I32 for a in args):
        return None
    a, b = map(known, args)
    if op in DIVISIONS:
        return _BY_ZERO if b == 0 else None
    if op == "pow" and b is not None and b < 0:
        return _NEGATIVE_POWER
    if a is None or b is None or not _BEYOND[op](a, b):
        return None
    return Problem("integers with a result beyond 64 bits", "results within 64 bits",
                   "a float operand, such as 10.0 ** 20")  # fmt: skip


def result(node: Node, known: Known = constant) -> int | None:
    """Return the value of an integer node whose operands are known and that has no `problem`."""
    operands = [known(a) if a.dtype is I32 else None for a in node.args]
    if node.op not in _RESULTS or None in operands:
        return constant(node)
    return int(_RESULTS[node.op](*operands))


_RESULTS: Final[dict[str, Callable[..., int]]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "pow": operator.pow,
    "neg": operator.neg, "shl": operator.lshift, "floordiv": operator.floordiv,
    "mod": operator.mod,
}  # fmt: skip
_BY_ZERO: Final = Problem(
    "an integer and 0",
    "a divisor other than 0",
    "another divisor, such as max(n, 1)",
)
_NEGATIVE_POWER: Final = Problem(
    "an integer and a negative integer",
    "a float base, or an exponent of 0 or more",
    "a float base, such as 2.0 ** exponent",
)


def _power_is_beyond(a: int, b: int) -> bool:
    return abs(a) > 1 and (b > 64 or not fits(a**b))  # never computes a huge power


_BEYOND: Final[dict[str, Callable[[int, int], bool]]] = {
    "add": lambda a, b: not fits(a + b),
    "sub": lambda a, b: not fits(a - b),
    "mul": lambda a, b: not fits(a * b),
    "pow": _power_is_beyond,
    "shl": lambda a, b: b < 0 or b > 63,
}
