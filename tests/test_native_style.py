"""The rules of the emulator's C++ that a machine can check: sizes, opening comments, tests.

The compiler does the rest: `flexfa4.emulator.native.build` with ``strict`` takes no warnings.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NATIVE = ROOT / "emulator" / "native"
TESTS = ROOT / "tests" / "unit" / "emulator" / "native"
SOURCES = sorted(p for p in NATIVE.rglob("*") if p.suffix in (".cpp", ".hpp"))
MAX_LINES = 600
MAX_COLUMNS = 100
RECORDED = "test_hardware.py"  # compares a folder with what a device did
FOLDERS = {"arithmetic", "copies", "machine", "matrices", "memory", "program", "races", "sync"}


def opens_with_a_comment(path: Path) -> bool:
    """Whether a file says what it does; the header of the same name may say it for both."""
    if path.suffix == ".cpp" and path.with_suffix(".hpp").exists():
        path = path.with_suffix(".hpp")
    return path.read_text(encoding="utf-8").startswith("// ")


def test_sources_lie_in_their_folders() -> None:
    assert {p.parent.name for p in SOURCES if p.parent != NATIVE} == FOLDERS


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(NATIVE)))
def test_a_source_is_short_and_opens_with_what_it_does(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert opens_with_a_comment(path)
    assert len(lines) <= MAX_LINES
    assert [line for line in lines if len(line) > MAX_COLUMNS] == []
    assert path.suffix == ".cpp" or "#pragma once" in lines


def test_every_test_of_the_core_mirrors_a_source() -> None:
    tests = [
        path.relative_to(TESTS)
        for path in TESTS.rglob("test_*.py")
        if path.parent != TESTS and path.name != RECORDED
    ]
    assert tests
    lost = [
        test
        for test in tests
        if not any(
            (NATIVE / test.parent / f"{test.stem.removeprefix('test_')}{suffix}").exists()
            for suffix in (".cpp", ".hpp")
        )
    ]
    assert lost == []
