"""Score mods that sum over vectors: as matrix products, and beside it element by element.

    python benchmarks/vectors.py                # a table, and results/vectors.json
    python benchmarks/vectors.py --repeats 5

Both ways run in turns within a repeat, on one thread, and the least time of each counts.  *Element
by element* is the same backend without `products`: each sum forms the product of its two vectors
for each score, and each gradient of a captured vector is formed for each score before it is summed.
*plain* is how many times as long as attention without a mod the call takes.  The score matrix, its
mask (causal) and the tiles are the same in all.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from record import circumstances, write  # the module beside this one
from rich.console import Console
from rich.table import Table

import flexfa4
from flexfa4.frontend import contraction
from flexfa4.frontend.ir import Node
from flexfa4.kernels.cpu import plan
from flexfa4.kernels.cpu.products import Term
from flexfa4.variants import Fire, MlaRope, causal

B, H, S, D, R = 1, 8, 1024, 64, 64


@dataclass(frozen=True)
class Setup:
    """A score mod and the tensors that it reads, all of them learned."""

    name: str
    mod: Any
    tensors: tuple[torch.Tensor, ...] = ()


def setups() -> tuple[Setup, ...]:
    """Return the cases; the first has no mod."""
    g = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return (0.3 * torch.randn(shape, generator=g)).requires_grad_()

    of_q, of_k, gate = draw(B, H, S, R), draw(B, 1, S, R), draw(R)
    network = draw(32, 1), draw(32), draw(H, 32), draw(H)

    def within_a_core(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        product = (of_q[b, h, q_idx] * of_k[b, 0, kv_idx]).sum(-1)
        return 20.0 * torch.tanh((score + product) / 20.0)

    def of_three(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + (of_q[b, h, q_idx] * gate * of_k[b, 0, kv_idx]).sum(-1)

    return (
        Setup("no mod", None),
        Setup("MLA, one rotary key head", MlaRope(of_q, of_k, scale=0.1), (of_q, of_k)),
        Setup("the same within tanh", within_a_core, (of_q, of_k)),
        Setup("product of three", of_three, (of_q, gate, of_k)),
        Setup("FIRE, 32 hidden", Fire(*network), network),
    )


@contextlib.contextmanager
def element_by_element() -> Iterator[None]:
    """Run what is inside without matrix products for sums over vectors."""

    def as_written(root: Node) -> Node:
        return root

    def one_term(load: Node, derivative: Node) -> tuple[Term, ...]:
        return (Term(outer=derivative),)

    with (
        mock.patch.object(plan, "regroup", as_written),
        mock.patch.object(plan, "terms", one_term),
        mock.patch.multiple(contraction, _FEW_MATRICES=-1, _LARGE_MATRIX=math.inf),
    ):
        plan.plan_for.cache_clear()
        try:
            yield
        finally:
            plan.plan_for.cache_clear()


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """Time one call; return its result, too."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def measure(setup: Setup) -> tuple[float, float]:
    """Return seconds of a forward and of a backward pass."""
    g = torch.Generator().manual_seed(1)
    q, k, v, do = (torch.randn(B, H, S, D, generator=g).requires_grad_() for _ in range(4))
    mask = flexfa4.create_block_mask(causal, q_len=S, kv_len=S)

    def call() -> Any:
        return flexfa4.attention(q, k, v, score_mod=setup.mod, block_mask=mask)

    with torch.no_grad():
        call()  # trace, plan
        forward, _ = seconds(call)
    out = call()
    backward, _ = seconds(lambda: torch.autograd.grad(out, (q, k, v, *setup.tensors), do))
    return forward, backward


def speed(repeats: int) -> list[dict[str, Any]]:
    """Time every case both ways."""
    best: dict[tuple[str, bool], tuple[float, float]] = {}
    for _ in range(repeats):
        for setup in setups():
            for products in (True, False):
                with contextlib.nullcontext() if products else element_by_element():
                    found = measure(setup)
                before = best.get((setup.name, products), found)
                best[setup.name, products] = (min(found[0], before[0]), min(found[1], before[1]))
    plain = best["no mod", True]
    return [
        {
            "case": setup.name,
            "what": what,
            "products_s": best[setup.name, True][i],
            "elements_s": best[setup.name, False][i],
            "speedup": best[setup.name, False][i] / best[setup.name, True][i],
            "plain": best[setup.name, True][i] / plain[i],
        }
        for setup in setups()
        for i, what in enumerate(("forward", "backward"))
    ]


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table("case", "what", "products s", "elements s", "faster", "times plain")
    for r in rows:
        table.add_row(
            r["case"], r["what"], f"{r['products_s']:.3f}", f"{r['elements_s']:.3f}",
            f"{r['speedup']:.1f}x", f"{r['plain']:.1f}x",
        )  # fmt: skip
    Console().print(table)


def main() -> None:
    """Measure, show and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = speed(args.repeats)
    show(rows)
    write("vectors", {**circumstances(B=B, H=H, S=S, D=D, R=R), "speed": rows})


if __name__ == "__main__":
    main()
