"""Facts and rewrites as rows of text for people: what `flexfa4.explain` prints of them.

Finds out nothing itself.  docs/mods.md explains the words; a test compares it with the tables here.
"""

from __future__ import annotations

from typing import Final

from flexfa4.frontend.analysis.facts import (
    Instructions,
    LoadFact,
    MaskFacts,
    Rewrite,
    ScoreFacts,
    Shape,
    State,
)
from flexfa4.frontend.ir import Node, make_graph

Row = tuple[str, str]

SHAPES: Final[dict[Shape, str]] = {
    "uniform": "one element for all keys of a query",
    "contiguous": "neighbouring elements for neighbouring keys",
    "strided": "elements a fixed step apart for neighbouring keys",
    "gather": "any elements",
}
"""How a captured tensor is read while the key moves along a row of scores."""

STATES: Final[dict[State, str]] = {
    "proved": "proved{needs}: {reason}",
    "guarded": "decided on each call{needs}: {reason}",
    "refused": "not done{needs}: {reason}",
}

PIPES: Final = {"mufu": "special functions", "fma": "multiply-adds", "alu": "other"}
"""The units of a GPU that instructions are counted for."""


def describe(facts: ScoreFacts) -> list[Row]:
    """Return the facts of a score mod."""
    rows = [("score", "not read" if facts.score_independent else "read")]
    named = {
        "scale": facts.scale,
        "bias": facts.bias,
        "slope along kv": facts.kv_slope,
        "constant along a row": facts.row_constant,
        "inner scale": None if facts.inner_scale is None else facts.inner_scale.scale,
        "d/d score": facts.derivatives.score,
    }
    rows += [(label, expression(node)) for label, node in named.items() if node is not None]
    rows += map(_load, facts.loads)
    pipes = {"score": facts.pipes.element, "query": facts.pipes.row, "head": facts.pipes.head}
    for label, count in pipes.items():
        rows.append((f"GPU instructions per {label}", _instructions(count)))
    return rows


def describe_mask(facts: MaskFacts) -> list[Row]:
    """Return the facts of a mask."""
    reads = [name for name in ("b", "h", "q", "kv") if name in facts.reads]
    rows = [("reads", ", ".join(reads) or "nothing")]
    rows.append(("along the diagonal", "the same" if facts.shift_invariant else "may differ"))
    rows += map(_load, facts.loads)
    rows.append(("GPU instructions per score", _instructions(facts.pipes.element)))
    return rows


def describe_rewrite(rewrite: Rewrite) -> str:
    """Return whether a backend may use a rewrite, and why."""
    needs = f" (it needs {rewrite.obligation})" if rewrite.obligation else ""
    return STATES[rewrite.state].format(needs=needs, reason=rewrite.reason)


def expression(node: Node) -> str:
    """Return an expression as text, without declarations."""
    graph = make_graph("score", node)
    return "; ".join(str(graph).split("\n")[len(graph.buffers) + len(graph.scalars) :])


def _load(fact: LoadFact) -> Row:
    moves = f" (axis {fact.axis}, step {fact.step})" if fact.shape == "strided" else ""
    return f"reads {fact.load.attr.name}", SHAPES[fact.shape] + moves


def _instructions(count: Instructions) -> str:
    counts = ((getattr(count, pipe), words) for pipe, words in PIPES.items())
    return ", ".join(f"{n} {words}" for n, words in counts if n) or "none"
