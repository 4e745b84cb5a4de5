"""Sums of a tile's gradients land on the elements that were read, whatever the index looks like."""

from __future__ import annotations

import pytest
import torch

from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import F32, Buffer, Node, const, iota, load
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.ops import apply
from flexfa4.kernels.load_gradients import accumulate
from tests.leaves import KV, B, H, Q

LANES = Lanes((1, 3), (2, 5), (4, 9), (3, 10))


def found_and_right(shape: tuple[int, ...], *args: Node) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum that `accumulate` makes and the one that autograd makes of the same load."""
    node = load(Buffer("t", F32, (None,) * len(shape)), args)
    values = Values()
    indices = Program(args).run(values, LANES)
    rank = LANES.shape if node.length is None else (*LANES.shape, node.length)
    g = torch.Generator().manual_seed(0)
    gradient = torch.randn(rank, generator=g, dtype=torch.float64)
    target = torch.zeros(shape, dtype=torch.float64)
    accumulate(target, node, indices, gradient, LANES, values)
    tensor = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    eager = [
        i.unsqueeze(-1) if node.length is not None and a.length is None and i.dim() else i
        for a, i in zip(args, map(torch.as_tensor, indices), strict=True)
    ]
    (right,) = torch.autograd.grad((tensor[tuple(eager)].expand(rank) * gradient).sum(), tensor)
    return target, right


DIFFERENCE = apply("sub", Q, KV)
CASES: dict[str, tuple[tuple[int, ...], tuple[Node, ...]]] = {
    "head": ((5,), (H,)),
    "query": ((9,), (Q,)),
    "head and key": ((5, 10), (H, KV)),
    "key and query, turned": ((10, 9), (KV, Q)),
    "all four": ((3, 5, 9, 10), (B, H, Q, KV)),
    "all four, turned": ((10, 3, 9, 5), (KV, B, Q, H)),
    "diagonal": ((9, 9), (Q, Q)),
    "distance, wrapping": ((20,), (DIFFERENCE,)),
    "head and distance": ((5, 20), (H, DIFFERENCE)),
    "constant": ((4,), (const(2),)),
    "constant from the end": ((4,), (const(-1),)),
    "constant and key": ((4, 10), (const(3), KV)),
    "class of the key": ((3,), (apply("mod", KV, const(3)),)),
    "vector of the head": ((5, 6), (H, iota(6))),
    "vector of query and batch": ((3, 9, 6), (B, Q, iota(6))),
    "vector of the distance": ((20, 6), (DIFFERENCE, iota(6))),
    "column of vectors": ((6, 10), (iota(6), KV)),
    "shifted vector": ((9, 10), (apply("add", iota(6), const(3)), KV)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_sum_is_that_of_autograd(name: str) -> None:
    shape, args = CASES[name]
    found, right = found_and_right(shape, *args)
    torch.testing.assert_close(found, right)


def test_sums_of_several_tiles_add_up() -> None:
    node = load(Buffer("t", F32, (None,)), (KV,))
    target = torch.zeros(10)
    for _ in range(3):
        indices = Program(node.args).run(Values(), LANES)
        accumulate(target, node, indices, torch.ones(LANES.shape), LANES, Values())
    assert target.tolist() == [0.0] * 3 + [3.0 * 2 * 3 * 5] * 7


def test_a_load_that_is_not_proved_in_range_adds_by_clamped_index() -> None:
    node = load(Buffer("t", F32, (None,)), (KV,))
    values = Values(unproved=frozenset((node,)))
    target = torch.zeros(6)
    gradient = torch.ones(LANES.shape)
    gradient[..., 3:] = 0  # keys 6 to 9 are masked
    accumulate(target, node, Program(node.args).run(values, LANES), gradient, LANES, values)
    assert target.tolist() == [0.0] * 3 + [30.0] * 3
