"""Hopper's kernels beside their peers on one H200, in one process, calls alternating.

    python benchmarks/h200.py --out results.json               # the table, and what the host does
    python benchmarks/h200.py --cases 'paper-d128-*' --out paper.json
    python benchmarks/h200.py --cases causal,window-128 --quick
    python benchmarks/h200.py --cases backward --out backward.json
    python benchmarks/h200.py --cases step --ahead 12 --limit 60
    python benchmarks/h200.py --merge a.json b.json --out all.json --plot docs/notes

Needs an H200 and CUDA; peers that are not installed are reported and left out.  FLOPs are those of
visible scores.  Each output is compared with attention in fp64 on slices before it is timed; each
case has a matrix product before and after it, to see what the card gives.  Ratios are medians over
rounds in which all providers took their turns; ± is half of the range of the middle half of them.

Results are written after every job, and no job begins that may take longer than is left of
``--limit``: what was not reached is named, and ``--resume`` goes on with it.  A run is cut into
several processes that way; ratios are never taken across them.

With ``--ahead`` as many processes compile at once what is measured then; times of first calls are
those of kernels from the disk then.

What is measured: `hopper.cases` (speed), `hopper.backward` (gradients), `hopper.step` (a training
step of a transformer block), `hopper.varlen` (sequences of different lengths), `hopper.order`
(orders of work), `hopper.first_calls` (first calls in fresh processes), `hopper.host_time`
(repeated calls and masks).
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from hopper import pictures, report  # the package beside this file
from hopper.ahead import GROUPS, SHARE, compile_ahead
from hopper.jobs import DEFAULT, Job, jobs, selected
from hopper.speed import Bench, in_a_line
from hopper.timing import QUICK, Ceiling, DeviceClock, Rounds
from record import card, commit, machine


def main() -> None:
    """Measure, show and keep; or show what was kept."""
    arguments = parser().parse_args()
    if arguments.list:
        for job in jobs().values():
            print(f"{job.group:12}{job.name}")
        return
    if arguments.merge:
        parts = [json.loads(path.read_text()) for path in arguments.merge]
        results = report.merged(parts)
        keep(results, arguments.out)
    else:
        results = measured(arguments)
    report.show(results)
    if arguments.plot:
        for path in pictures.draw(results, arguments.plot):
            print(path)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    made.add_argument(
        "--cases", default=",".join(DEFAULT), help="names, groups or patterns, with commas between"
    )
    made.add_argument("--out", type=Path, help="file for the results, JSON")
    made.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    made.add_argument("--ahead", type=int, default=0, help="processes that compile all at first")
    made.add_argument("--limit", type=float, default=570.0, help="seconds after which it ends")
    made.add_argument("--resume", action="store_true", help="keep what --out has, run the rest")
    made.add_argument("--commit", help="what is measured, where there is no git checkout")
    made.add_argument("--merge", nargs="+", type=Path, help="files to join; measures nothing")
    made.add_argument("--plot", type=Path, metavar="FOLDER", help="draw the results there")
    made.add_argument("--list", action="store_true", help="name all jobs and end")
    return made


def measured(arguments: argparse.Namespace) -> report.Results:
    """Run the selected jobs as far as the time goes."""
    begun = time.monotonic()
    chosen = selected(arguments.cases.split(","))
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device: --merge shows results, --list what can be measured")
    if arguments.ahead:
        folder = Path(tempfile.gettempdir()) / "flexfa4-h200-kernels"
        for missing in compile_ahead(chosen, arguments.ahead, folder, arguments.limit / 2):
            print(f"not compiled ahead: {missing}", file=sys.stderr)
        print(f"{time.monotonic() - begun:6.1f} s  compiled ahead", file=sys.stderr, flush=True)
    bench = made_bench(quick=arguments.quick)
    results: report.Results = {"runs": [], "rows": []}
    if arguments.resume and arguments.out and arguments.out.exists():
        results = json.loads(arguments.out.read_text())
    done = {row["job"] for row in results["rows"] if "failed" not in row}
    results["rows"] = [row for row in results["rows"] if row["job"] in done]
    number, first = len(results["runs"]), bench.ceiling.tflops(bench.clock)
    results["runs"].append(circumstances(arguments, [first]))
    skipped = []
    for job in chosen:
        left = arguments.limit - (time.monotonic() - begun)
        if job.name in done:
            continue
        if left < job.seconds * (SHARE if arguments.ahead and job.group in GROUPS else 1):
            skipped.append(job.name)
            continue
        results["rows"].append({**row_of(job, bench, left), "run": number})
        now = bench.ceiling.tflops(bench.clock)
        results["runs"][number]["ceiling_tflops"] = [first, now]
        keep(results, arguments.out)
        print(f"{time.monotonic() - begun:6.1f} s  {job.name}", file=sys.stderr, flush=True)
    if skipped:
        print(f"not reached: {', '.join(skipped)}", file=sys.stderr)
    return results


def made_bench(*, quick: bool) -> Bench:
    """Return what measures on the current device."""
    device = torch.device("cuda", torch.cuda.current_device())
    torch._dynamo.config.recompile_limit = 64  # each variant of FlexAttention is one
    bench = Bench(device, DeviceClock(), QUICK if quick else Rounds(), Ceiling(device))
    bench.ceiling.tflops(bench.clock, rounds=20)  # until the card is warm
    return bench


def row_of(job: Job, bench: Bench, seconds: float) -> report.Row:
    """Return the row of a job, also of one that fails."""
    try:
        row = job.run(bench, seconds)
    except Exception as error:  # the other jobs are measured all the same
        traceback.print_exc()
        row = {"failed": in_a_line(error)}
    torch.cuda.empty_cache()
    return {"job": job.name, "group": job.group, **row}


def circumstances(arguments: argparse.Namespace, ceiling: list[float]) -> dict[str, Any]:
    """Return under what this process measures."""
    return {
        "date": datetime.date.today().isoformat(),
        "commit": arguments.commit or commit(),
        "quick": arguments.quick,
        "ahead": arguments.ahead,
        "machine": machine(),
        "card": card(),
        "ceiling_tflops": ceiling,
    }


def keep(results: report.Results, path: Path | None) -> None:
    """Write the results, if anywhere: to a new file that then takes the place of the old one."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(results, indent=1) + "\n")
    new.replace(path)


if __name__ == "__main__":
    main()
