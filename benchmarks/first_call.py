"""Where the time of a first call goes: in fresh processes, with an empty cache and from the disk.

    python benchmarks/first_call.py --keep               # a table, and results/first_call.json
    python benchmarks/first_call.py --variants causal,alibi --cpu-time

Needs CuTe-DSL and no GPU: what is launched on a Hopper GPU is launched on nothing where there is
none.  The clock starts when torch is imported and the inputs are there; what users wait for is the
sum of a row.  `benchmarks/h200.py --cases first-call` has the same beside peers, on the card.

Columns: importing flexfa4; tracing the mods, mask analysis and planning; importing CuTe-DSL and the
kernel's own modules; tracing the kernel; CuTe-DSL's passes, PTX and machine code; the rest: checks,
and writing the file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final

import torch
from hopper.first_calls import FIRST_MOST_S, FROM_DISK_MOST_S
from hopper.variants import VARIANTS, Shape
from record import circumstances, write  # the module beside this one
from rich.console import Console
from rich.table import Table

SHAPE: Final = Shape(1, 16, 16, 8192, 128, 128)
CHOSEN: Final = (
    "full", "causal", "window-1024", "alibi", "softcap-30", "t5-table", "documents", "prefix-2048",
)  # fmt: skip
STAGES: Final = ("import", "plan", "CuTe-DSL", "trace", "lower", "rest")


class Nowhere:
    """An executor that launches nothing."""

    def load(self, kernel: Any) -> None:
        """Do nothing."""

    def launch(self, *arguments: Any, **more: Any) -> None:
        """Do nothing."""


class Clock:
    """When the stages of a compilation began."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.at: dict[str, float] = {}

    def watched(self, name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that notes when it begins and ends."""

        def watched(*arguments: Any, **more: Any) -> Any:
            self.at.setdefault(f"{name} begins", self.now())
            found = run(*arguments, **more)
            self.at[f"{name} ends"] = self.now()
            return found

        return watched


def timed(variant: str, now: Callable[[], float]) -> dict[str, float]:
    """Return the seconds of the stages of a first call, in this process."""
    on_card = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    device = torch.device("cuda" if on_card else "cpu")
    dims = (SHAPE.batch, SHAPE.heads, SHAPE.length, SHAPE.dim)
    q = torch.zeros(dims, dtype=torch.bfloat16, device=device)
    mods = VARIANTS[variant].make(SHAPE, device)
    clock = Clock(now)
    begun = now()
    import flexfa4  # which is part of what is measured

    attention = flexfa4.attention
    imported = now()
    _watch(clock)
    with _target(on_card):
        called = now()
        attention(q, q, q, score_mod=mods.score, block_mask=mods.mask, backend="sm90")
        if on_card:
            torch.cuda.synchronize()
    end, at = now(), clock.at
    found = {"import": imported - begun, "total": imported - begun + end - called}
    if "load begins" in at:
        found |= {
            "plan": at["load begins"] - called,
            "CuTe-DSL": at["compile begins"] - at["load begins"],
            "trace": at["note begins"] - at["compile begins"],
            "lower": at["compile ends"] - at["note begins"],
            "rest": end - at["compile ends"],
        }
    return found


def _target(on_card: bool) -> Any:
    from flexfa4.kernels.launch.target import Target, standing_in

    return nullcontext() if on_card else standing_in(Target(Nowhere(), (9, 0), 132))


def _watch(clock: Clock) -> None:
    """Have the clock note what a compilation goes through; imports what that is written in."""
    from flexfa4.kernels.compile import compiler, traced

    compiler.require_cute = clock.watched("load", compiler.require_cute)
    compiler._compiled = clock.watched("compile", compiler._compiled)
    traced.Trace.note = clock.watched("note", traced.Trace.note)  # type: ignore[method-assign]


def measured(variant: str, options: list[str]) -> dict[str, Any]:
    """Return the stages of a first call in a fresh process, and the time of a second process."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "FLEXFA4_CACHE_DIR": folder}
        command = [sys.executable, __file__, "--in-this-process", variant, *options]
        first, disk = (
            json.loads(
                subprocess.run(
                    command, env=environment, check=True, capture_output=True, text=True
                ).stdout
            )
            for _ in range(2)
        )
    return {"variant": variant, "first": first, "disk_s": disk["total"]}


def show(rows: list[dict[str, Any]]) -> None:
    """Print a table."""
    table = Table("variant", *STAGES, f"first (most {FIRST_MOST_S})", f"disk ({FROM_DISK_MOST_S})")
    for row in rows:
        stages = [f"{row['first'].get(stage, 0.0):.3f}" for stage in STAGES]
        total, disk = row["first"]["total"], row["disk_s"]
        table.add_row(row["variant"], *stages, f"{total:.2f}", f"{disk:.3f}")
    Console().print(table)


def main() -> None:
    """Measure, show and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--variants", default=",".join(CHOSEN), help="names, with commas between")
    parser.add_argument("--in-this-process", metavar="VARIANT", help="print one first call as JSON")
    parser.add_argument("--cpu-time", action="store_true", help="of this process alone")
    parser.add_argument("--keep", action="store_true", help="write results/first_call.json")
    arguments = parser.parse_args()
    if arguments.in_this_process:
        now = time.process_time if arguments.cpu_time else time.perf_counter
        print(json.dumps(timed(arguments.in_this_process, now)))
        return
    options = ["--cpu-time"] if arguments.cpu_time else []
    rows = [measured(variant, options) for variant in arguments.variants.split(",")]
    show(rows)
    if arguments.keep:
        write("first_call", {**circumstances(), "shape": vars(SHAPE), "rows": rows})


if __name__ == "__main__":
    main()
