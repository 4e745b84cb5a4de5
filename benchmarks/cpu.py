"""The CPU backend beside torch's own attention, on one machine, in one run.

    python benchmarks/cpu.py                    # all parts, tables, and results/cpu.json
    python benchmarks/cpu.py --only speed --repeats 5

Parts: *speed* (forward, and forward with backward, against ``scaled_dot_product_attention`` with a
boolean mask and compiled ``flex_attention``), *memory* (peak beyond inputs, outputs and gradients,
each case in a fresh process), *latency* (a new variant, a repeated small call, the import).

Peers and ours alternate within a repeat and the least time of each counts, so that a noisy machine
disturbs both alike; only the ratios mean something.  The ratios of `TARGETS` and the limits
are the project's aims, not promises: a row that is not met says where work is left.  *bound* says
how much could be left: what the two products, the exponentials and the row sums of the visible
scores take by themselves, with torch's fastest kernels at the shape of our tiles.

A compiled kernel of flex_attention has its number of threads written into it, and inductor's cache
on disk does not tell numbers apart: a kernel that a process with one thread compiled stays at one
thread, in half the speed here, for every later process.  So that cache is off.

Any first call may hold a full collection of Python's garbage, tens of milliseconds with torch
loaded, whatever is called: so the new variant's clock starts right after one.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from record import circumstances, write  # the module beside this one
from rich.console import Console
from rich.table import Table

import flexfa4
from flexfa4.variants import Alibi, SlidingWindow, Softcap, causal

B, H, S, D = 1, 8, 8192, 64


@dataclass(frozen=True)
class Setup:
    """One case: our arguments, and the same for the peers."""

    name: str
    score_mod: Any = None
    mask: Any = None


SETUPS = {
    s.name: s
    for s in (
        Setup("no mask"),
        Setup("causal", None, causal),
        Setup("window 256", None, SlidingWindow(256)),
        Setup("ALiBi causal", Alibi(H), causal),
        Setup("softcap causal", Softcap(50.0), causal),
    )
}


@dataclass(frozen=True)
class Target:
    """A comparison: case, what is timed, the peer, and the ratio of times that is aimed for."""

    setup: str
    what: str
    peer: str
    ratio: float


TARGETS = (
    Target("causal", "forward", "sdpa", 1.6),
    Target("window 256", "forward", "sdpa", 14.0),
    Target("window 256", "forward+backward", "sdpa", 8.0),
    Target("no mask", "forward", "sdpa", 1.1),
    Target("causal", "forward", "flex", 1.7),
    Target("window 256", "forward", "flex", 1.2),
    Target("ALiBi causal", "forward", "flex", 1.1),
    Target("softcap causal", "forward", "flex", 1.1),
)


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return q, k, v that require gradients, and the gradient of out."""
    g = torch.Generator().manual_seed(0)
    q, k, v, do = (torch.randn(B, H, S, D, generator=g) for _ in range(4))
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), do


def block_mask(setup: Setup, length: int) -> flexfa4.BlockMask | None:
    """Return the case's mask for as many queries and keys."""
    if setup.mask is None:
        return None
    return flexfa4.create_block_mask(setup.mask, q_len=length, kv_len=length)


def ours(setup: Setup, backward: bool) -> Callable[[], Any]:
    """Return a call of flexfa4."""
    q, k, v, do = inputs()
    mask = block_mask(setup, S)

    def call() -> Any:
        return flexfa4.attention(q, k, v, score_mod=setup.score_mod, block_mask=mask)

    return _timed(call, (q, k, v), do, backward)


def sdpa(setup: Setup, backward: bool) -> Callable[[], Any]:
    """Return a call of scaled_dot_product_attention with a boolean mask."""
    q, k, v, do = inputs()
    index = torch.arange(S)
    if setup.mask is None:
        mask = torch.ones(S, S, dtype=torch.bool)
    else:
        mask = setup.mask(0, 0, index[:, None], index)

    def call() -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return _timed(call, (q, k, v), do, backward)


def flex(setup: Setup, backward: bool) -> Callable[[], Any]:
    """Return a call of compiled flex_attention."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    assert not backward, "flex_attention has no backward on the CPU"
    q, k, v, do = (t.detach() for t in inputs())  # it refuses inputs that require gradients
    mask, score_mod = None, None
    if setup.mask is not None:
        mask = create_block_mask(
            lambda b, h, i, j: setup.mask(b, h, i, j), None, None, S, S, device="cpu"
        )
    if setup.score_mod is not None:
        score_mod = lambda s, b, h, i, j: setup.score_mod(s, b, h, i, j)  # noqa: E731
    torch.compiler.config.force_disable_caches = True
    compiled = torch.compile(flex_attention)

    def call() -> Any:
        return compiled(q, k, v, score_mod=score_mod, block_mask=mask)

    return _timed(call, (q, k, v), do, backward)


def _timed(
    call: Callable[[], Any], leaves: tuple[torch.Tensor, ...], do: torch.Tensor, backward: bool
) -> Callable[[], Any]:
    def forward() -> Any:
        with torch.no_grad():
            return call()

    def both() -> Any:
        return torch.autograd.grad(call(), leaves, do)

    return both if backward else forward


PEERS = {"sdpa": sdpa, "flex": flex}


# ---- speed ---------------------------------------------------------------------------------------


def speed(repeats: int) -> list[dict[str, Any]]:
    """Time every target."""
    rows = []
    for target in TARGETS:
        setup, backward = SETUPS[target.setup], "backward" in target.what
        a, b = ours(setup, backward), PEERS[target.peer](setup, backward)
        a(), b()
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(repeats):
            for call, record in zip((a, b), times, strict=True):
                start = time.perf_counter()
                call()
                record.append(time.perf_counter() - start)
        mine, peer = min(times[0]), min(times[1])
        rows.append({**asdict(target), "ours_s": mine, "peer_s": peer, "measured": peer / mine})
    return rows


def bound(speeds: list[dict[str, Any]], repeats: int) -> list[dict[str, Any]]:
    """Measure the least time of a causal forward pass made of torch's kernels.

    Args:
        speeds: rows of `speed`, for the peers' times.
        repeats: rounds of 20 of which the fastest counts.
    """
    rows, keys = 256, 512
    q, k, v = (torch.randn(H, n, D) for n in (rows, keys, keys))
    scores, out, sums = torch.empty(H, rows, keys), torch.zeros(H, rows, D), torch.empty(H, rows)
    seconds = 0.0
    for part in (
        lambda: torch.bmm(q, k.mT, out=scores),
        lambda: torch.exp2(scores, out=scores),
        lambda: torch.sum(scores, -1, out=sums),
        lambda: out.baddbmm_(scores, v),
    ):
        best = math.inf
        for _ in range(20 * repeats):
            scores.fill_(0.5)
            start = time.perf_counter()
            part()
            best = min(best, time.perf_counter() - start)
        seconds += best
    least = seconds / scores.numel() * B * H * S * (S + 1) / 2
    return [
        {"setup": s["setup"], "peer": s["peer"], "least_s": least, "peer_s": s["peer_s"],
         "best_ratio": s["peer_s"] / least}
        for s in speeds if (s["setup"], s["what"]) == ("causal", "forward")
    ]  # fmt: skip


# ---- memory --------------------------------------------------------------------------------------

_MEMORY_LIMIT_MIB = 64.0


def memory() -> list[dict[str, Any]]:
    """Measure the peak of every case in a process of its own."""
    rows = []
    for name in SETUPS:
        for what in ("forward", "forward+backward"):
            done = subprocess.run(
                [sys.executable, __file__, "--measure-memory", name, what],
                capture_output=True,
                text=True,
                check=True,
            )
            extra = float(done.stdout.split()[-1])
            rows.append(
                {"setup": name, "what": what, "extra_mib": extra, "limit_mib": _MEMORY_LIMIT_MIB}
            )
    return rows


def _status_mib(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return float(line.split()[1]) / 1024
    raise SystemExit(f"no {field} in /proc/self/status: memory is measured on Linux only")


def measure_memory(name: str, what: str) -> None:
    """Print the peak resident memory beyond inputs, out and gradients, in MiB (child process).

    A small call first loads the libraries; the peak counter of Linux is then reset.
    """
    setup, backward = SETUPS[name], "backward" in what
    small = torch.randn(1, 2, 300, D, requires_grad=True)
    mask = block_mask(setup, 300)
    torch.autograd.grad(
        flexfa4.attention(small, small, small, score_mod=setup.score_mod, block_mask=mask).sum(),
        small,
    )
    run = ours(setup, backward)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # pages freed by the small call would hide what is used anew
    Path("/proc/self/clear_refs").write_text("5")
    before = _status_mib("VmRSS")
    results = run()
    kept = results if isinstance(results, tuple) else (results,)
    # with a backward pass out is alive too, and is as large as one gradient
    counted = sum(t.nbytes for t in kept) + (kept[0].nbytes if backward else 0)
    print(_status_mib("VmHWM") - before - counted / 2**20)


# ---- latency -------------------------------------------------------------------------------------

_NEW_VARIANT = """
import gc, time, torch, flexfa4
from flexfa4 import api, block_mask, kernels
import flexfa4.frontend.tracing.trace, flexfa4.frontend.analysis.facts, flexfa4.frontend.pipeline
q = torch.randn(1, 2, 64, 16)
flexfa4.attention(q, q, q)
slope = torch.rand(2)
cap, w = 20.0, 30
def score_mod(score, b, h, q_idx, kv_idx):
    return cap * torch.tanh((score + slope[h] * (kv_idx - q_idx)) / cap)
def mask(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & (q_idx - kv_idx < w)
gc.collect()
start = time.perf_counter()
flexfa4.attention(q, q, q, score_mod=score_mod, block_mask=mask)
first = time.perf_counter() - start
start = time.perf_counter()
flexfa4.attention(q, q, q, score_mod=score_mod, block_mask=mask)
print((first - (time.perf_counter() - start)) * 1e3)
"""

_IMPORT = """
import time, torch
start = time.perf_counter()
import flexfa4
print((time.perf_counter() - start) * 1e3)
"""


def latency() -> list[dict[str, Any]]:
    """Measure what a call costs beside its arithmetic."""
    new = [float(_python(_NEW_VARIANT)) for _ in range(5)]
    imports = [float(_python(_IMPORT)) for _ in range(5)]
    return [
        {"what": "trace, facts and plan of a new variant", "unit": "ms", "limit": 50.0,
         "measured": min(new)},
        {"what": "repeated call, B=1 H=1 S=16, causal, inputs requiring grad", "unit": "us",
         "limit": 150.0, "measured": repeated_call_us()},
        {"what": "import flexfa4 beyond import torch", "unit": "ms", "limit": 200.0,
         "measured": statistics.median(imports)},
    ]  # fmt: skip


def _python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def repeated_call_us() -> float:
    """Return microseconds of a small call with a cached mask (best of rounds of 200)."""
    q, k, v = (torch.randn(1, 1, 16, D, requires_grad=True) for _ in range(3))
    mask = flexfa4.create_block_mask(causal, q_len=16, kv_len=16)
    best = math.inf
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(200):
            flexfa4.attention(q, k, v, block_mask=mask)
        best = min(best, (time.perf_counter() - start) / 200)
    return best * 1e6


# ---- report --------------------------------------------------------------------------------------


def show(results: dict[str, Any]) -> None:
    """Print the tables."""
    console = Console()
    if "speed" in results:
        table = Table("case", "what", "peer", "ours s", "peer s", "ratio", "target", "met")
        for r in results["speed"]:
            table.add_row(
                r["setup"], r["what"], r["peer"], f"{r['ours_s']:.3f}", f"{r['peer_s']:.3f}",
                f"{r['measured']:.2f}x", f"{r['ratio']:.1f}x", _met(r["measured"] >= r["ratio"]),
            )  # fmt: skip
        console.print(table)
    if "bound" in results:
        table = Table("case", "peer", "least s", "peer s", "largest possible ratio")
        for r in results["bound"]:
            table.add_row(
                r["setup"], r["peer"], f"{r['least_s']:.3f}", f"{r['peer_s']:.3f}",
                f"{r['best_ratio']:.2f}x",
            )  # fmt: skip
        console.print(table)
    if "memory" in results:
        table = Table("case", "what", "extra MiB", "limit", "met")
        for r in results["memory"]:
            met = _met(r["extra_mib"] <= r["limit_mib"])
            table.add_row(
                r["setup"], r["what"], f"{r['extra_mib']:.1f}", f"{r['limit_mib']:.0f}", met
            )
        console.print(table)
    if "latency" in results:
        table = Table("what", "measured", "limit", "met")
        for r in results["latency"]:
            unit = r["unit"]
            table.add_row(
                r["what"], f"{r['measured']:.1f} {unit}", f"{r['limit']:.0f} {unit}",
                _met(r["measured"] <= r["limit"]),
            )  # fmt: skip
        console.print(table)


def _met(yes: bool) -> str:
    return "yes" if yes else "no"


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=("speed", "memory", "latency"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--measure-memory", nargs=2, metavar=("CASE", "WHAT"), help=argparse.SUPPRESS
    )
    args = parser.parse_args()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    if args.measure_memory:
        measure_memory(*args.measure_memory)
        return
    parts = [args.only] if args.only else ["speed", "memory", "latency"]
    results = circumstances(B=B, H=H, S=S, D=D)
    if "latency" in parts:
        results["latency"] = latency()
    if "memory" in parts:
        results["memory"] = memory()
    if "speed" in parts:
        results["speed"] = speed(args.repeats)
        results["bound"] = bound(results["speed"], args.repeats)
    show(results)
    if not args.only:
        write("cpu", results)


if __name__ == "__main__":
    main()
