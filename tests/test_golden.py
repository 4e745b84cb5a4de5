"""The golden fixture itself: it compares, updates, and finds files that no test uses."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULE = """
import pytest

def test_first(golden):
    golden("first", "one\\ntwo\\n")

def test_second():
    pass

@pytest.mark.full
def test_of_the_matrix(golden):
    golden("matrix", "text")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with this one's settings, one test module and its golden file."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "tests" / "golden" / "module").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "tests")
    (tmp_path / "tests" / "test_module.py").write_text(MODULE)
    golden_file(tmp_path).write_text("one\ntwo\n")
    return tmp_path


def golden_file(project: Path, name: str = "first") -> Path:
    return project / "tests" / "golden" / "module" / f"{name}.txt"


def run(project: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=project,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout


def test_an_equal_text_passes_and_a_different_one_fails_with_a_diff(project: Path) -> None:
    assert run(project)[0] == 0
    golden_file(project).write_text("one\nthree\n")
    code, output = run(project)
    assert code == 1
    assert "-three" in output and "+two" in output and "--update-golden" in output


def test_a_missing_file_fails_until_update_golden_writes_it(project: Path) -> None:
    golden_file(project).unlink()
    assert run(project)[0] == 1
    assert run(project, "--update-golden")[0] == 0
    assert golden_file(project).read_text() == "one\ntwo\n"
    assert run(project)[0] == 0


def test_an_unused_file_fails_a_full_run_only(project: Path) -> None:
    golden_file(project, "forgotten").write_text("")
    code, output = run(project)
    assert code == 1 and "no test uses golden/module/forgotten.txt" in output
    assert run(project, "-k", "second")[0] == 0
    assert run(project, "tests/test_module.py::test_second")[0] == 0


def test_processes_that_share_out_the_tests_know_together_what_is_used(project: Path) -> None:
    assert run(project, "-n", "2")[0] == 0
    golden_file(project, "forgotten").write_text("")
    code, output = run(project, "-n", "2")
    assert code == 1 and "no test uses golden/module/forgotten.txt" in output
    assert "first.txt" not in output


def test_a_test_that_a_default_run_leaves_out_cannot_use_golden(project: Path) -> None:
    code, output = run(project, "-m", "full")
    assert code == 1 and "cannot use golden" in output
