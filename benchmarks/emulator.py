"""The emulator's speed: instructions of warps per second, with what it checks and without.

    python benchmarks/emulator.py --cutlass-examples FOLDER     # a table, and results/emulator.json
    python benchmarks/emulator.py --repeats 5

Needs CuTe-DSL and flash-attn-4; FOLDER is examples/python/CuTeDSL of CUTLASS's sources, without
which the GEMM is left out. Everything runs on one thread, and the least time of each row counts:
that of the core, without compiling and reading the kernel. An instruction counts once for a warp;
a matrix product and a copy are one each. *times* is how many times as long a row takes as without
checks.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import runpy
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from unittest import mock

import torch
from record import circumstances, write  # the module beside this one
from rich.console import Console
from rich.table import Table

from flexfa4.emulator import Device

sys.path.append(str(Path(__file__).parents[1]))
from tests.emulate.cuda_torch import cuda_torch, without_triton

NAME: Final = "sm_100a"
CHECKS: Final[dict[str, tuple[str, ...]]] = {
    "nothing": (),
    "uninitialised reads": ("uninitialised",),
    "and races": ("uninitialised", "races"),
}
S, D = 512, 128
GEMM: Final = "cute/blackwell/kernel/dense_gemm/dense_gemm.py"
SIZES: Final = "--mnkl 128,128,512,1 --ab_dtype Float16 --c_dtype Float16 --use_tma_store"


def attend() -> Callable[[], Any]:
    """Return a call of flash-attn-4's forward pass, one head, not causal."""
    without_triton()
    from flash_attn.cute import interface

    interface._get_device_arch = lambda: 100
    q, k, v = (torch.randn(1, S, 1, D).bfloat16() for _ in range(3))
    return lambda: interface._flash_attn_fwd(q, k, v, return_lse=True)


def multiply(folder: Path) -> Callable[[], Any]:
    """Return a call of NVIDIA's dense GEMM of 128 x 128 x 512."""
    script = folder / GEMM

    def call() -> None:
        with mock.patch("sys.argv", [str(script), *SIZES.split()]):
            runpy.run_path(str(script), run_name="__main__")

    return call


def measure(call: Callable[[], Any], check: tuple[str, ...]) -> tuple[int, float]:
    """Return the instructions of the warps, and the core's seconds."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        Device(NAME, check=check) as device,
        cuda_torch(device),
    ):
        call()
        runs = [launch.run for launch in device.launches if launch.run is not None]
    return sum(run.instructions for run in runs), sum(run.seconds for run in runs)


def speed(cases: dict[str, Callable[[], Any]], repeats: int) -> list[dict[str, Any]]:
    """Time every case with all kinds of checks."""
    rows = []
    for case, call in cases.items():
        plain = math.inf
        for checked, check in CHECKS.items():
            found = [measure(call, check) for _ in range(repeats)]
            seconds = min(seconds for _, seconds in found)
            plain = min(plain, seconds) if not check else plain
            rows.append(
                {
                    "case": case,
                    "checks": checked,
                    "instructions": found[0][0],
                    "seconds": seconds,
                    "per_second": found[0][0] / seconds,
                    "times": seconds / plain,
                }
            )
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table("case", "checks", "instructions", "ms", "thousands a second", "times")
    for r in rows:
        table.add_row(
            r["case"], r["checks"], f"{r['instructions']:,}", f"{1e3 * r['seconds']:.1f}",
            f"{r['per_second'] / 1e3:,.0f}", f"{r['times']:.2f}x",
        )  # fmt: skip
    Console().print(table)


def main() -> None:
    """Measure, show and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cutlass-examples", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # the kernels', when they are compiled
    cases = {f"flash-attn-4 forward, S = {S}, d = {D}": attend()}
    if args.cutlass_examples is not None:
        cases["GEMM 128 x 128 x 512"] = multiply(args.cutlass_examples)
    rows = speed(cases, args.repeats)
    show(rows)
    measured = circumstances(S=S, D=D)
    measured["sizes"]["dtype"] = "bf16"
    write("emulator", {**measured, "speed": rows})


if __name__ == "__main__":
    main()
