"""How long blocks wait for their turns, where sums are made in an order that is always the same.

A simulation of a launch: blocks take up items in the order of work, and add to tiles of dQ in turns
(`primitives.turn_order`).  Beside it stands the same work without turns (`primitives.makespan`), in
the order in which it is then done, and with turns in that order.  Times are in visits of a tile of
queries; of what a visit costs it is only known whether the mask is applied and whether there are
turns (`TurnCosts`), and nothing of caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.kernels.backward.architecture import TurnCosts
from flexfa4.kernels.backward.call import PlannedBackward, order_numbers
from flexfa4.kernels.blocks.walk import Walk, visits_in_lists
from flexfa4.kernels.request import Inputs
from flexfa4.primitives.arithmetic import PLAIN
from flexfa4.primitives.makespan import makespan
from flexfa4.primitives.scheduler import Item, Sections
from flexfa4.primitives.tile_walk import Lengths, RowLimits, Visits
from flexfa4.primitives.turn_order import ordered_makespan


@dataclass(frozen=True)
class Launches:
    """How long a launch takes, in visits.

    Attributes:
        free: without turns.
        in_turns: with turns, in the order of work that goes with them.
        naive: with turns in the orders, of items and of their visits, that there are without.
        masked: with turns, all visits are made as if they needed the mask.
        costs: of turns.
    """

    free: float
    in_turns: float
    naive: float
    masked: bool
    costs: TurnCosts

    @property
    def stall(self) -> float:
        """What turns add, as a part of the time without them."""
        return self.in_turns / self.free - 1

    @property
    def naive_stall(self) -> float:
        """What they would add in the orders without them."""
        return self.naive / self.free - 1

    @property
    def ratio(self) -> float:
        """The speed with turns, as a part of that without."""
        more = self.costs.visit * (self.costs.masked if self.masked else 1)
        return self.free / self.in_turns / more


def simulated(
    in_turns: PlannedBackward,
    free: PlannedBackward,
    inputs: Inputs,
    multiprocessors: int,
    blocks: MaskBlocks | None,
) -> Launches:
    """Return how long a call takes on a GPU with so many multiprocessors.

    Args:
        in_turns: what serves the call with the same bits on every run.
        free: what serves it otherwise, by tiles of the same shape.
        inputs: of the call.
        multiprocessors: of the GPU.
        blocks: the mask.
    """
    kernels, tiling = in_turns.kernels, in_turns.main.tiling
    assert tiling.queries == free.main.tiling.queries and tiling.keys == free.main.tiling.keys
    workers = multiprocessors // kernels.together(tiling)
    ahead, costs = kernels.visits_ahead(in_turns.main), kernels.turn_costs
    walk = in_turns.walk
    chosen = list(_lines(walk, in_turns, inputs))
    if walk.plan.source == "listed":
        assert blocks is not None
        lists = visits_in_lists(blocks, walk.plan.shape, inputs.q.device, "columns")
        walk = replace(walk, values=(lists.begins, lists.tiles, *walk.values[2:]))
    other = list(_lines(walk, free, inputs))
    return Launches(
        makespan(map(len, other), workers),
        ordered_makespan(chosen, workers, costs.latency, ahead=ahead),
        ordered_makespan(other, workers, costs.latency, ahead=ahead),
        _all_masked(in_turns.walk),
        costs,
    )


def _all_masked(walk: Walk) -> bool:
    if walk.plan.source != "listed":
        return False
    begins = walk.values[0]
    assert isinstance(begins, torch.Tensor)
    return torch.equal(begins[1::2], begins[2::2])


def _lines(walk: Walk, ordered: PlannedBackward, inputs: Inputs) -> Iterator[list[int]]:
    """Yield which tiles of queries each item visits, numbered across heads and batches.

    Args:
        walk: has the visits: all of them, or lists.
        ordered: whose order of work is taken.
        inputs: of the call.
    """
    sizes = inputs.sizes
    length, heads = Lengths(sizes.kv_len, sizes.q_len), sizes.heads
    values = [_host(value) for value in walk.values]
    limits = RowLimits(PLAIN, length, None, ragged=True)
    source = walk.plan.source_of(values, limits)
    given = [
        v.flatten().tolist() if isinstance(v, torch.Tensor) else v for v in ordered.walk.values
    ]
    sections = Sections.from_numbers(order_numbers(ordered, inputs))
    order = ordered.walk.plan.order_of(given, sections, PLAIN)
    group, batches = heads // sizes.kv_heads, sizes.batch // inputs.k.shape[0]
    tiles = -(-sizes.q_len // walk.plan.shape.queries)
    for number in range(sections.items):
        item: Item = order.item(number)
        line: list[int] = []
        for batch in range(item.batch * batches, (item.batch + 1) * batches):
            for head in range(item.head * group, (item.head + 1) * group):
                visits: Visits = source.row(batch, head, item.q_tile)
                first = (batch * heads + head) * tiles
                line += [first + visits.partial(i) for i in range(visits.partial_count)]
                line += [first + visits.full(i) for i in range(visits.full_count)]
        yield line


def _host(value: torch.Tensor | int) -> list[int] | int:
    return value.flatten().tolist() if isinstance(value, torch.Tensor) else value
