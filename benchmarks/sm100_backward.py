"""The Blackwell backward kernel as machine code, beside flash-attn-4's: what a warp executes.

    python benchmarks/sm100_backward.py                       # -> results/sm100_backward.json
    python benchmarks/sm100_backward.py --variants causal     # some

Needs no GPU, but what `sm100_static.py` needs.  Each case is compiled in a process of its own.  The
number that counts is of instructions that a warp executes for a tile of queries, of those that
compute probabilities and their gradients (`blackwell.backward`).

Beside it stands what ``deterministic=True`` costs by the simulation of turns (`hopper.turns`): how
much longer the main kernel takes in the order of work that is chosen, and in that without turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from blackwell.backward import VARIANTS, measured
from blackwell.measure import OURS, PEER, Case
from hopper.turns import launches
from hopper.variants import Shape
from record import circumstances, write

from flexfa4.kernels.sm100.backward.architecture import BLACKWELL_BACKWARD

NAME: Final = "sm100_backward"
SIZES: Final = (4, 16, 16, 8192)
"""Batch, heads, key heads and length."""

HEAD_DIMS: Final = (128, 64)
PLAIN: Final = ("full", "causal")
"""Of other head dims than the first only these are compiled."""
IN_TURNS: Final = tuple(
    (variant, Shape(batch, 16, 16, length, 128, 128))
    for variant in ("full", "causal", "documents", "window-1024")
    for batch, length in ((4, 8192), (2, 16384), (1, 32768))
)


def main() -> None:
    """Compile the cases and keep what was found."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    made.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    made.add_argument("--one", help=argparse.SUPPRESS)
    arguments = made.parse_args()
    if arguments.one:
        given = json.loads(arguments.one)
        print(json.dumps(measured(Case(**{**given, "sizes": tuple(given["sizes"])}))))
        return
    rows = []
    for variant in arguments.variants:
        for dim in HEAD_DIMS if variant in PLAIN else HEAD_DIMS[:1]:
            for provider in (OURS, PEER):
                row = in_process(Case(provider, variant, "sm_100a", (*SIZES, dim, dim)))
                rows.append(row)
                shown = ", ".join(str(loop["instructions"]) for loop in row["loops"])
                spilled = f"{row['spills']} bytes spilled, {row['seconds']} s"
                print(f"{provider:13} {variant:12} {dim}: {shown}; {spilled}", flush=True)
    write(NAME, {**circumstances(), "rows": rows, "turns": list(turns())})


def turns() -> Iterator[dict[str, Any]]:
    """Yield what turns cost in each case."""
    for variant, shape in IN_TURNS:
        found = launches(variant, shape, BLACKWELL_BACKWARD)
        stall, naive = round(found.stall, 3), round(found.naive_stall, 3)
        print(f"turns, {variant:12} {shape.length}: {stall:+.1%}; naive order {naive:+.1%}")
        yield {
            "variant": variant,
            "shape": asdict(shape),
            "stall": stall,
            "naive_stall": naive,
            "all_masked": found.masked,
        }


def in_process(case: Case) -> dict[str, Any]:
    """Return the row of a case, compiled in a process of its own."""
    environment = {**os.environ, "CUTE_DSL_ARCH": case.arch, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(Path(__file__)), "--one", json.dumps(asdict(case))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{case}:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
