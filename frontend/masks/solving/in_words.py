"""Closed forms as text for people: the intervals, what they rest on, and why there are none.

Finds out nothing itself.  What is printed is in the language of mods, beside searches:
``first(doc[:] == x)`` is the place of the first element of `doc` that equals x, ``end(...)`` one
past the place of the last, and ``count(doc[:] < x)`` how many elements are less.
"""

from __future__ import annotations

import functools
import math

from flexfa4.frontend.ir import Node, const, symbol
from flexfa4.frontend.masks.solving.linear_forms import form_of
from flexfa4.frontend.masks.solving.premises import Ascending, Bounded, Grouped, Premise
from flexfa4.frontend.masks.solving.solve import ClosedForm
from flexfa4.frontend.masks.solving.spans import Span
from flexfa4.frontend.ops import apply
from flexfa4.frontend.rewriting.rules import simplify
from flexfa4.frontend.text.printing import expression


def describe(form: ClosedForm) -> str:
    """Return the intervals of a closed form as inequalities, ``q - w < kv <= q``, joined by "or".

    That positions begin at 0 and end before the length is not said.
    """
    spans = [_interval(span, form) for span in form.spans]
    return " or ".join(spans) or f"no {form.index}"


def describe_premises(form: ClosedForm) -> list[str]:
    """Return what a closed form rests on, a line for each premise."""
    return [premise_in_words(premise) for premise in form.premises]


def _interval(span: Span, form: ClosedForm) -> str:
    index, start, stop = form.index, span.start, span.stop
    parts = []
    if stop.op == "where" and const(0) in stop.args[1:]:  # the interval is empty where it is 0
        condition, stop, other = stop.args
        if other is not const(0):
            condition, stop = simplify(apply("not", condition)), other
        parts.append(expression(condition))
    first = "" if start is const(0) else expression(start)
    if stop is symbol(f"{index}_len"):
        parts += [f"{index} >= {first}"] if first else []
    else:
        last = _last(stop)
        end = f"< {expression(stop)}" if last is None else f"<= {expression(last)}"
        parts.append(f"{first} <= {index} {end}" if first else f"{index} {end}")
    return " and ".join(parts) or f"every {index}"


def _last(stop: Node) -> Node | None:
    """Return the last position before `stop`, where it is simpler to write."""
    if stop.op in ("min", "max"):
        parts = [_last(part) for part in stop.args]
        known = [part for part in parts if part is not None]
        whole = len(known) == len(parts)
        return functools.reduce(functools.partial(apply, stop.op), known) if whole else None
    form = form_of(stop)
    return form.shifted(-1).node if form.constant == 1 and form.terms else None


def premise_in_words(premise: Premise) -> str:
    """Return what a premise says."""
    match premise:
        case Bounded(node, lo, hi):
            text = expression(node)
            if lo == -math.inf and hi == math.inf:
                return f"`{text}` is not NaN"
            if hi == math.inf:
                return f"`{text}` is at least {lo}"
            return f"`{text}` is from {lo} to {hi}"
        case Ascending(buffer, axis):
            return f"`{buffer.name}` ascends{_along(buffer.shape, axis)}"
        case Grouped(buffer, axis, value):
            which = "equal elements" if value is None else f"the elements {value}"
            return f"{which} of `{buffer.name}` stand together{_along(buffer.shape, axis)}"


def _along(shape: tuple[int | None, ...], axis: int) -> str:
    return f" along axis {axis}" if len(shape) > 1 else ""


def failed(premise: Premise) -> str:
    """Return why there is no closed form for values for which a premise does not hold."""
    return f"for these values it does not hold that {premise_in_words(premise)}"


def overflow(node: Node) -> str:
    """Return why there is no closed form for values for which a node may leave 64 bits."""
    return f"for these values `{expression(node)}` may not fit 64 bits"


def out_of_range(load: Node) -> str:
    """Return why there is no closed form for values for which an end may read out of range."""
    return f"for these values `{expression(load)}` may be out of range"
