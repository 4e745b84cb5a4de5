"""The Blackwell forward kernels as machine code, beside flash-attn-4's: what a warp executes.

    python benchmarks/sm100_static.py                       # all cases -> results/sm100_static.json
    python benchmarks/sm100_static.py --variants alibi      # some
    python benchmarks/sm100_static.py --write docs/notes/b200.md    # tables of the results

Needs no GPU, but CuTe-DSL, flash-attn-4 and nvdisasm (pip install nvidia-cuda-nvdisasm).  Both are
compiled by the same CuTe-DSL for the same problem, each case in a process of its own.  The number
that counts is of instructions that a warp of softmax executes for 128 keys, in the loop over tiles
that no mask cuts and in that over masked ones (`blackwell.loops`).
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

from blackwell.measure import OURS, PEER, Case, measured
from blackwell.report import written
from record import circumstances, write

NAME: Final = "sm100_static"
RESULTS: Final = Path(__file__).parent / "results" / f"{NAME}.json"
BATCH, HEADS, LENGTH = 4, 16, 8192
VARIANTS: Final = (
    "full", "causal", "window-1024", "prefix-2048", "documents", "alibi", "key-bias", "softcap-30",
    "t5-table",
)  # fmt: skip
HEAD_DIMS: Final = ((128, 128), (64, 64), (192, 128))
PLAIN: Final = ("full", "causal")
"""Of other head dims and of sm_103a only these are compiled."""

WIDTHS: Final = {
    "alibi": (2, 4, 8, 32, 128), "key-bias": (4, 8, 16, 64, 128), "t5-table": (8, 32, 128),
    "documents": (4, 16, 32, 128), "prefix-2048": (32,),
}  # fmt: skip
"""Lengths of vectors that the peer's mods are tried with; the shortest loop counts."""


def main() -> None:
    """Compile the cases and keep what was found, or write tables of what was kept."""
    arguments = parser().parse_args()
    if arguments.one:
        given = json.loads(arguments.one)
        print(json.dumps(measured(Case(**{**given, "sizes": tuple(given["sizes"])}))))
        return
    if arguments.write:
        text = arguments.write.read_text()
        arguments.write.write_text(written(text, json.loads(RESULTS.read_text())))
        return
    found = []
    for case in cases(arguments.variants, arguments.providers):
        row = in_process(case)
        found.append(row)
        shown = ", ".join(f"{loop['per_128_keys']:g}" for loop in row["loops"])
        print(
            f"{case.provider:13} {case.variant:12} {case.sizes[4:]} {case.arch} width {case.width}:"
            f" {shown}; {row['spills']} bytes spilled, {row['seconds']} s",
            flush=True,
        )
    kept = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    rows = {_key(row): row for row in (*kept, *found)}
    sizes = {"B": BATCH, "H": HEADS, "S": LENGTH, "dtype": "bf16"}
    about = {**circumstances(), "sizes": sizes, "tools": tools()}
    write(NAME, {**about, "rows": list(rows.values())})


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    made.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    made.add_argument("--providers", nargs="+", choices=(OURS, PEER), default=(OURS, PEER))
    made.add_argument("--write", type=Path, metavar="FILE", help="document that has the marks")
    made.add_argument("--one", help=argparse.SUPPRESS)
    return made


def cases(variants: list[str], providers: list[str]) -> Iterator[Case]:
    """Yield what is compiled."""
    for provider in providers:
        for variant in variants:
            for arch in ("sm_100a", "sm_103a"):
                for dims in HEAD_DIMS:
                    usual = arch == "sm_100a" and dims == HEAD_DIMS[0]
                    if not usual and variant not in PLAIN:
                        continue
                    widths = WIDTHS.get(variant, (1,)) if provider == PEER else (1,)
                    sizes = (BATCH, HEADS, HEADS, LENGTH, *dims)
                    for width in widths:
                        yield Case(provider, variant, arch, sizes, width)


def in_process(case: Case) -> dict[str, Any]:
    """Return the row of a case, compiled in a process of its own."""
    environment = {**os.environ, "CUTE_DSL_ARCH": case.arch, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, __file__, "--one", json.dumps(asdict(case))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{case}:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _key(row: dict[str, Any]) -> str:
    names = ("provider", "variant", "arch", "sizes", "width")
    return json.dumps([row[name] for name in names])


def tools() -> dict[str, str]:
    """Return the releases of what compiles and takes apart."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in ("nvidia-cutlass-dsl", "flash-attn-4", "nvidia-cuda-nvdisasm"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # as when nvdisasm is that of a toolkit
            continue
    return found


if __name__ == "__main__":
    main()
