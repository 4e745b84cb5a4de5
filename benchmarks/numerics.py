"""What the kernels' arithmetic does to gradients and to training: errors against fp64, loss curves.

    python benchmarks/numerics.py --out results.json               # measure, on a Hopper GPU
    python benchmarks/numerics.py --out tiny.json --device emulator --only flexfa4,causal
    python benchmarks/numerics.py --write docs/notes/numerics.md   # tables and pictures, no GPU

Errors are those of outputs and of dq, dk and dv, for ordinary variants at a few lengths, beside
dense attention by torch in bf16 and, where it is installed, flash-attn-4 (`numerical.errors`).
Loss curves are those of a small language model on real text in which only the attention differs
(`numerical.training`): dense in fp32, dense in bf16, and our kernels with one choice changed at a
time.  The emulator runs the same at sizes that show nothing but that all of it works.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch
from numerical import pictures, report
from numerical.errors import ErrorJob
from numerical.jobs import Job, jobs, run_all, size_of
from numerical.training import Size
from numerical.ways import BACKENDS
from record import FOLDER, card, commit, inserted, machine

RESULTS: Final = FOLDER / "numerics.json"


def main() -> None:
    """Measure and keep; or show what was kept."""
    arguments = parser().parse_args()
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(compact(measured(arguments)))
    results = json.loads((arguments.out or arguments.results).read_text())
    tables = report.tables(results)
    print(*tables.values(), sep="\n\n")
    if arguments.write:
        document = arguments.write.read_text()
        for name, table in tables.items():
            document = inserted(document, table, report.mark(name))
        arguments.write.write_text(document)
        for path in pictures.draw(results, arguments.write.parent):
            print(path)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    made.add_argument("--out", type=Path, metavar="FILE", help="measure, and write it there, JSON")
    made.add_argument("--device", choices=BACKENDS, default="cuda", help="what to measure on")
    made.add_argument("--steps", type=int, default=Size().steps, help="of a training run")
    made.add_argument("--seeds", type=int, default=3, help="training runs of each way")
    made.add_argument("--limit", type=float, default=190.0, help="seconds after which it ends")
    made.add_argument("--workers", type=int, default=6, help="processes at once")
    made.add_argument("--only", default="*", help="ways and variants, with commas between")
    made.add_argument("--commit", help="what is measured, where there is no git checkout")
    made.add_argument("--results", type=Path, default=RESULTS, help="what to show, if not --out")
    made.add_argument("--write", type=Path, metavar="FILE", help="document that has the marks")
    return made


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the results of what was selected, as far as the time goes."""
    patterns = arguments.only.split(",")
    every = jobs(arguments.device, arguments.steps, arguments.seeds)
    chosen = [job for job in every if any(_matches(job, pattern) for pattern in patterns)]
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no CUDA device: --device emulator, or --write for what was measured")
    if not chosen:
        raise SystemExit(f"--only {arguments.only}: selects nothing")
    errors, training, missing = run_all(chosen, arguments.workers, arguments.limit)
    if missing:
        print(f"not reached, or failed: {', '.join(missing)}", file=sys.stderr)
    return {
        "run": {
            "date": datetime.date.today().isoformat(),
            "commit": arguments.commit or commit(),
            "machine": machine(),
            "card": card() if arguments.device == "cuda" else None,
            "missing": missing,
        },
        "size": asdict(size_of(arguments.device, arguments.steps)),
        "errors": errors,
        "training": training,
    }


def _matches(job: Job, pattern: str) -> bool:
    name: str = job.variant if isinstance(job, ErrorJob) else job.way
    return fnmatch.fnmatchcase(name, pattern)


def compact(results: dict[str, Any]) -> str:
    """Return results as JSON with lists of numbers in one line each."""
    text = json.dumps(results, indent=1)
    return re.sub(r"\[[-\d.,e\s]+\]", lambda found: json.dumps(json.loads(found[0])), text) + "\n"


if __name__ == "__main__":
    main()
