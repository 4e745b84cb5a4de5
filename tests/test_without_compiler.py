"""Where there is no C++ compiler, tests that need one are skipped, and say why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = (
    "unit/emulator/native/test_build.py::test_only_what_an_edit_touches_is_compiled_again",
    "unit/emulator/test_execution.py::test_parameters_lie_as_the_kernel_declares_them",
    "unit/emulator/test_kernel.py::test_an_access_behind_a_tensor_is_an_error_that_names_it_and_the_line",
    "unit/emulator/native/test_compiler.py::test_no_compiler_is_an_error_that_says_what_was_looked_for",
)


def test_what_needs_a_compiler_is_skipped_with_the_reason_and_the_rest_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        + [f"tests/{name}" for name in TESTS],
        cwd=ROOT,
        env={**os.environ, "CXX": "/nowhere/c++"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed, 3 skipped" in done.stdout
    assert done.stdout.count("no C++ compiler runs; looked for /nowhere/c++ ($CXX)") == 1
