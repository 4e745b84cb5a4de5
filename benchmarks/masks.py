"""Masks of many tokens: how long their analysis takes, and how much memory.

    python benchmarks/masks.py                    # a table, and results/masks.json
    python benchmarks/masks.py --device cuda      # the same on a GPU, and results/masks_cuda.json
    python benchmarks/masks.py --only 1,048,576 --no-torch

Each row is measured in a process of its own (two threads), and beside it torch's
``create_block_mask``, eager, in another one with at most `TORCH_MIB` of memory and `TORCH_SECONDS`.
*first* is the first call, which traces the mask; *ms* the fastest of the later ones, which make the
block mask anew each time, from the mask function with its captures.  What is timed after that
stands in the row: lists of blocks both ways, or an order to work in.

*MiB* is the peak of resident memory during a call, beyond that before it, result included: pages
freed before are handed back to the system first and Linux's mark of the peak is reset.  On a GPU
it is the peak of the device's memory that torch has handed out.

*checked* counts tiles in random places whose kind is compared with the mask function, called on
index tensors; a wrong one ends the benchmark.

The limits are the project's aims, not promises: a row that is not met says where work is left.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from mask_rows import MAKERS, Mask, Row, rows  # the modules beside this one
from record import circumstances, write
from rich.console import Console
from rich.table import Table

import flexfa4

TORCH_MIB: Final = 8192
TORCH_SECONDS: Final = 60
BLOCK: Final = 128
MIB: Final = 2**20
REPEATS: Final = 5
CHECKED: Final = 16  # rows of blocks, and as many blocks in each

# What follows the creation of a block mask.
STEPS: Final[dict[str, Callable[[flexfa4.BlockMask], Any]]] = {
    "": lambda made: None,
    "order": lambda made: made.order("lpt", by="rows"),
    "lists": lambda made: (made.lists(by="rows"), made.lists(by="columns")),
}


# ---- one row, in this process --------------------------------------------------------------------


@dataclass(frozen=True)
class Meter:
    """Measures calls on a device."""

    device: str

    def milliseconds(self, call: Callable[[], Any]) -> float:
        """Return how long a call takes, on a GPU until it is done there."""
        self._wait()
        start = time.perf_counter()
        call()
        self._wait()
        return (time.perf_counter() - start) * 1e3

    def mib(self, call: Callable[[], Any]) -> float:
        """Return the peak of memory during a call beyond that before it, its result included."""
        gc.collect()
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            call()
            return (torch.cuda.max_memory_allocated() - before) / MIB
        ctypes.CDLL(None).malloc_trim(0)  # freed pages would hide what is used anew
        Path("/proc/self/clear_refs").write_text("5")
        before_mib = status_mib("VmRSS")
        kept = call()
        peak = status_mib("VmHWM") - before_mib
        del kept
        return peak

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def status_mib(field: str) -> float:
    """Return a field of Linux's account of this process, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return float(line.split()[1]) / 1024
    raise SystemExit(f"no {field} in /proc/self/status: memory is measured on Linux only")


def measured(call: Callable[[], Any], device: str, repeats: int) -> dict[str, Any]:
    """Return time and memory of a call."""
    meter = Meter(device)
    first = meter.milliseconds(call)
    repeats = repeats if first < 2000 else 1
    later = min(meter.milliseconds(call) for _ in range(repeats))
    return {"first_ms": first, "ms": later, "mib": meter.mib(call)}


def ours(row: Row, repeats: int) -> dict[str, Any]:
    """Measure FlexFA4."""
    problem = row.problem
    load_everything(problem.device)
    mask = MAKERS[row.mask](problem)

    def create() -> flexfa4.BlockMask:
        made = flexfa4.create_block_mask(
            mask,
            batch=problem.batch,
            heads=problem.heads,
            q_len=problem.q_len,
            kv_len=problem.kv_len,
            device=problem.device,
            block_size=BLOCK,
        )
        STEPS[row.then](made)
        return made

    found = measured(create, problem.device, repeats)
    made = create()
    return {**found, "result_mib": made.nbytes / MIB, "checked": checked_tiles(made, mask)}


def load_everything(device: str) -> None:
    """Make small block masks, so that the first call loads no libraries."""
    table = torch.arange(300, device=device) // 7
    for mask in (
        lambda b, h, q_idx, kv_idx: table[q_idx] * table[kv_idx] % 3 == 0,
        lambda b, h, q_idx, kv_idx: q_idx > kv_idx + 1,
    ):
        made = flexfa4.create_block_mask(mask, q_len=300, kv_len=300, device=device)
        for step in STEPS.values():
            step(made)


def checked_tiles(made: flexfa4.BlockMask, mask: Mask) -> int:
    """Compare the kinds of blocks in random places with the mask function.

    Returns:
        How many were compared.
    """
    generator = torch.Generator().manual_seed(0)
    checked = 0
    for _ in range(CHECKED):
        batch, heads, q_len, kv_len = made.shape
        b, h, row = (
            int(torch.randint(n, (), generator=generator))
            for n in (batch, heads, -(-q_len // BLOCK))
        )
        first, last = row * BLOCK, min(q_len, (row + 1) * BLOCK)
        kinds = made[b, h, first:last].block_kinds()[0, 0, 0].cpu()
        seen = kinds.nonzero().flatten()
        near = seen[torch.randperm(len(seen), generator=generator)[: CHECKED // 2]]
        anywhere = torch.randint(len(kinds), (CHECKED // 2,), generator=generator)
        column = torch.cat([near, anywhere])
        right = tile_kinds(mask, (b, h), range(first, last), column.to(made.device), kv_len)
        if not torch.equal(kinds[column], right.cpu()):
            raise SystemExit(f"kinds of blocks {column} in row {row} of {b}, {h}: not {right}")
        checked += len(column)
    return checked


def tile_kinds(
    mask: Mask, at: tuple[int, int], queries: range, column: torch.Tensor, kv_len: int
) -> torch.Tensor:
    """Return the kinds of blocks of a row of blocks by the mask function, int8 ``(blocks,)``.

    Args:
        mask: the mask function.
        at: batch and head.
        queries: of the row.
        column: the blocks.
        kv_len: number of keys; behind the last one, that one is looked at again.
    """
    b, h = (torch.tensor(i, device=column.device) for i in at)
    q_idx = torch.arange(queries.start, queries.stop, device=column.device)[:, None]
    keys = column[:, None] * BLOCK + torch.arange(BLOCK, device=column.device)
    seen = mask(b, h, q_idx, keys.clamp(max=kv_len - 1)[:, None])
    seen = seen.expand(len(column), len(queries), BLOCK).flatten(1)
    return seen.any(1).to(torch.int8) + seen.all(1)


def torchs(row: Row, repeats: int) -> dict[str, Any]:
    """Measure torch's create_block_mask, or say why there is nothing to measure."""
    from torch.nn.attention.flex_attention import create_block_mask

    problem = row.problem
    mask = MAKERS[row.mask](problem)

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return mask(b, h, q_idx, kv_idx)

    if problem.device == "cpu":
        mib = status_mib("VmSize") + TORCH_MIB
        resource.setrlimit(resource.RLIMIT_AS, (int(mib * MIB), resource.RLIM_INFINITY))
    sizes = (problem.batch, problem.heads, problem.q_len, problem.kv_len)
    try:
        return measured(
            lambda: create_block_mask(mask_mod, *sizes, device=problem.device, BLOCK_SIZE=BLOCK),
            problem.device,
            repeats,
        )
    except (MemoryError, RuntimeError) as error:
        if "memory" not in str(error).lower() and not isinstance(error, MemoryError):
            raise
        return {"failed": "out of memory"}


SIDES: Final = {"ours": ours, "torch": torchs}


# ---- all rows ------------------------------------------------------------------------------------


def in_a_process(row: Row, number: int, side: str, threads: int) -> dict[str, Any]:
    """Measure one side of a row in a process of its own."""
    command = [sys.executable, __file__, "--measure", str(number), side]
    command += ["--device", row.problem.device, "--threads", str(threads)]
    timeout = TORCH_SECONDS if side == "torch" else None
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"failed": f"over {TORCH_SECONDS} s"}
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    if side == "torch" and done.returncode < 0:  # killed by the system
        return {"failed": "out of memory"}
    raise SystemExit(f"{row.mask} at {row.lengths} ended with exit code {done.returncode}")


def measure(row: Row, number: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the measurements of a row, with its limits."""
    problem = row.problem
    sides = {}
    for side in SIDES:
        if side == "torch" and arguments.no_torch:
            continue
        if arguments.quick:
            sides[side] = SIDES[side](row, 1)
        else:
            sides[side] = in_a_process(row, number, side, arguments.threads)
    return {
        "mask": row.mask,
        "lengths": row.lengths,
        "batch": problem.batch,
        "heads": problem.heads,
        "then": row.then,
        **sides,
        "limits": asdict(row.cuda if problem.device == "cuda" else row.limits),
    }


def met(result: dict[str, Any]) -> bool | None:
    """Return whether the limits of a row are kept; None where it has none."""
    mine, limits, peer = result["ours"], dict(result["limits"]), result.get("torch", {})
    if limits.pop("as_torch"):
        limits = {key: peer.get(key) for key in limits}
    kept = [mine[key] <= limit for key, limit in limits.items() if limit is not None]
    return all(kept) if kept else None


def show(results: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table("mask", "tokens", "then", "first ms", "ms", "MiB", "result MiB", "checked",
                  "torch ms", "torch MiB", "limits", "met")  # fmt: skip
    for result in results:
        mine, peer, limits = result["ours"], result.get("torch", {}), result["limits"]
        aims = [f"{limits[key]:,g} {key}" for key in ("ms", "mib") if limits[key] is not None]
        sizes = [f"{result[k]} {k}" for k in ("batch", "heads") if result[k] is not None]
        answer = {True: "yes", False: "no", None: ""}[met(result)]
        table.add_row(
            ", ".join([result["mask"], *sizes]), result["lengths"], result["then"],
            f"{mine['first_ms']:,.1f}", f"{mine['ms']:,.3f}", f"{mine['mib']:,.1f}",
            f"{mine['result_mib']:,.1f}", str(mine["checked"]),
            peer.get("failed") or (f"{peer['ms']:,.1f}" if peer else ""),
            f"{peer['mib']:,.1f}" if "mib" in peer else "",
            "torch's" if limits["as_torch"] else ", ".join(aims), answer,
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 170).print(table)


def main() -> None:
    """Measure, show and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", default="", help="rows whose mask or lengths contain this")
    parser.add_argument("--no-torch", action="store_true", help="without torch's side")
    parser.add_argument(
        "--quick", action="store_true", help="small lengths, in this process; nothing is kept"
    )
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--measure", nargs=2, metavar=("ROW", "SIDE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    table = [
        replace(row, problem=replace(row.problem, device=arguments.device))
        for row in rows(quick=arguments.quick)
    ]
    if arguments.measure:
        number, side = arguments.measure
        print(json.dumps(SIDES[side](table[int(number)], REPEATS)))
        return
    results = []
    for number, row in enumerate(table):
        if arguments.only in f"{row.mask} {row.lengths} {row.then}":
            results.append(measure(row, number, arguments))
            mine = results[-1]["ours"]
            print(f"{row.mask}, {row.lengths} {row.then}: {mine['ms']:,.3f} ms", file=sys.stderr)
    show(results)
    if not (arguments.only or arguments.quick):
        name = "masks" if arguments.device == "cpu" else f"masks_{arguments.device}"
        write(name, {**circumstances(block=BLOCK), "rows": results})


if __name__ == "__main__":
    main()
