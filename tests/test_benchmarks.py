"""The benchmarks run: at small sizes, so that only what fails counts and no time does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_benchmark_of_masks_measures_and_checks_every_row() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/masks.py", "--quick", "--no-torch", "--threads", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split("│")[1:-1] for line in done.stdout.splitlines() if line.startswith("│")]
    checked = [int(row[7]) for row in rows if row[7].strip()]
    assert len(checked) == len(done.stderr.splitlines()) > 20
    assert min(checked) > 100
