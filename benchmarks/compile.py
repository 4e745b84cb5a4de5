"""attention inside ``torch.compile(fullgraph=True)`` beside the eager call, in one run.

    python benchmarks/compile.py                # a table, and results/compile.json

Each row is a block whose compiled form has one ``flexfa4::attention`` op in its graph.  Both forms
alternate and the least time of each counts; only the ratios mean something.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from record import circumstances, write  # the module beside this one
from rich.console import Console
from rich.table import Table
from torch._dynamo.testing import CompileCounterWithBackend

import flexfa4
from flexfa4.variants import Alibi, causal

B, H, S, D = 2, 8, 1024, 64
LIMIT = 1.10


def blocks() -> dict[str, Callable[..., torch.Tensor]]:
    """Return what is compiled, by name."""
    mask = flexfa4.create_block_mask(causal, q_len=S, kv_len=S)
    alibi = Alibi(H)

    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flexfa4.attention(q, k, v)

    def biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flexfa4.attention(q, k, v, score_mod=alibi, block_mask=mask)

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flexfa4.attention(q, k, v, block_mask=lambda b, h, i, j: (i >= j) & (i - j < 256))

    return {"no mask": plain, "ALiBi, causal block mask": biased, "window as a function": function}


def measured(name: str, block: Callable[..., Any], backward: bool, repeats: int) -> dict[str, Any]:
    """Time a block, eager and compiled."""
    g = torch.Generator().manual_seed(0)
    q, k, v, do = (torch.randn(B, H, S, D, generator=g) for _ in range(4))
    leaves = [t.requires_grad_(backward) for t in (q, k, v)]
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(block, fullgraph=True, backend=counter)

    def run(call: Callable[..., Any]) -> None:
        out = call(*leaves)
        if backward:
            torch.autograd.grad(out, leaves, do)

    forms = (block, compiled)
    times: tuple[list[float], list[float]] = ([], [])
    for call in forms:
        run(call)
    for _ in range(repeats):
        for call, record in zip(forms, times, strict=True):
            start = time.perf_counter()
            run(call)
            record.append(time.perf_counter() - start)
    eager, graph = min(times[0]), min(times[1])
    return {
        "block": name,
        "what": "forward+backward" if backward else "forward",
        "eager_s": eager,
        "compiled_s": graph,
        "ratio": graph / eager,
        "limit": LIMIT,
        "compilations": counter.frame_count,
    }


def main() -> None:
    """Measure, show and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    rows = [
        measured(name, block, backward, args.repeats)
        for name, block in blocks().items()
        for backward in (False, True)
    ]
    table = Table("block", "what", "eager ms", "compiled ms", "ratio", "limit", "met")
    for r in rows:
        met = "yes" if r["ratio"] <= r["limit"] else "no"
        table.add_row(
            r["block"], r["what"], f"{r['eager_s'] * 1e3:.2f}", f"{r['compiled_s'] * 1e3:.2f}",
            f"{r['ratio']:.3f}", f"{r['limit']:.2f}", met,
        )  # fmt: skip
    Console().print(table)
    write("compile", {**circumstances(B=B, H=H, S=S, D=D), "rows": rows})


if __name__ == "__main__":
    main()
