"""What a kernel's plan rests on about captured numbers: so little that each call may change them.

Numbers are parameters of a kernel.  Its code depends on them in four ways only: how wide an integer
is, whether one that divides is positive, whether the factor of a score mod's core is moderate
(`program.score_promises`), and which reads are proved to be in range (`captures.capture_plan`).
`number_facts` answers these, for most mods without a proof.  Calls that differ in numbers and have
equal facts have equal plans, so that none has to be made.

Does not make plans, and says nothing of tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import NamedTuple

from flexfa4.frontend.analysis.bounds import Premises, bound, premises
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.ir import I32, Graph, Node, topological
from flexfa4.frontend.sizes import Sizes
from flexfa4.kernels.emit.captures import SMALL, divisors, load_plan, loads_of
from flexfa4.kernels.emit.program import is_moderate, is_proved_moderate, outer_factor


def number_facts(given: BoundGraph, sizes: Sizes) -> Hashable:
    """Return what a plan rests on about the numbers of a score mod.

    Args:
        given: the score mod with its captures.
        sizes: of the call.

    Returns:
        A value that is equal for two calls, of the same graph, sizes and shapes of captured
        tensors, only if no fact of their plans differs.
    """
    uses, numbers = _uses(given.graph), given.scalars
    small = [abs(numbers[i]) < SMALL for i in uses.integers]
    small += [numbers[i] > 0 for i in uses.divisors]
    if uses.factor is not None:
        small.append(is_moderate(numbers[uses.factor]))
    if uses.needs_proof:
        return tuple(small), _proved(premises(given, sizes))
    return tuple(small)


class _Uses(NamedTuple):
    """What of a graph a plan asks about that depends on numbers.

    Attributes:
        integers: places of the integers among the numbers.
        divisors: likewise of those that something is divided by.
        factor: the place of the number that is the factor of the mod's core.
        computed: the factor, where it is computed from numbers.
        loads: with a number in an index.
    """

    integers: tuple[int, ...]
    divisors: tuple[int, ...]
    factor: int | None
    computed: Node | None
    loads: tuple[Node, ...]

    @property
    def needs_proof(self) -> bool:
        """Whether there is more to look at than numbers by themselves."""
        return self.computed is not None or bool(self.loads)


@functools.lru_cache(maxsize=1024)
def _uses(graph: Graph) -> _Uses:
    factor = outer_factor(graph)
    plain = factor.op == "scalar"
    return _Uses(
        tuple(i for i, scalar in enumerate(graph.scalars) if scalar.dtype is I32),
        divisors(graph),
        graph.scalars.index(factor.attr) if plain else None,
        factor if _reads_number(factor) and not plain else None,
        tuple(load for load in loads_of(graph) if any(map(_reads_number, load.args))),
    )


def _reads_number(root: Node) -> bool:
    return any(node.op == "scalar" for node in topological(root))


@functools.lru_cache(maxsize=1024)
def _proved(given: Premises) -> Hashable:
    uses, domain = _uses(given.graph), given.domain()
    moderate = uses.computed is not None and is_proved_moderate(uses.computed, domain.leaf)
    loads = [
        load_plan([bound(i, domain.leaf) for i in load.args], domain.shapes[load.attr])
        for load in uses.loads
    ]
    return moderate, tuple(loads)
