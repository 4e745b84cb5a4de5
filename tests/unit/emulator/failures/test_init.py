"""The chapters of failures, held against the core that names them."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest

import flexfa4.emulator
import flexfa4.emulator.native
from flexfa4.emulator.errors import EmulationError
from flexfa4.emulator.failures import by_name

NATIVE = Path(flexfa4.emulator.native.__file__).parent
SOURCES = {
    path.relative_to(NATIVE): path.read_text()
    for path in [*NATIVE.rglob("*.cpp"), *NATIVE.rglob("*.hpp")]
}
# Python's modules: they raise classes of these chapters too
MODULES = {
    path: path.read_text()
    for path in Path(flexfa4.emulator.__file__).parent.rglob("*.py")
    if "failures" not in path.parts
}
GIVEN_BY_THE_WARP = {"who"}


def code(text: str) -> str:
    return re.sub(r"//.*", "", text)


def literals(text: str) -> set[str]:
    return set(re.findall(r'"(\w+)"', code(text)))


def named(text: str) -> set[str]:
    return {name for name in literals(text) if name.endswith("Error")}


def fields(kind: type[EmulationError]) -> set[str]:
    """Return the fields that the texts of a class have."""
    texts = (kind.found, kind.allowed, kind.instead)
    return {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name}


def test_the_core_names_failures() -> None:
    assert sum(len(named(text)) for text in SOURCES.values()) > 50


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_every_failure_that_a_source_names_has_a_class(source: Path) -> None:
    assert named(SOURCES[source]) <= set(by_name())


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_a_source_that_names_a_failure_gives_the_fields_of_its_texts(source: Path) -> None:
    known = literals(SOURCES[source]) | GIVEN_BY_THE_WARP
    missing = {
        name: lacking
        for name in named(SOURCES[source])
        if (lacking := fields(by_name()[name]) - known)
    }
    assert not missing


def test_every_class_is_raised_by_somebody() -> None:
    thrown = set().union(*map(named, SOURCES.values()))
    raised = "\n".join(MODULES.values())
    silent = {
        name
        for name, kind in by_name().items()
        if "found" in vars(kind) and name not in thrown and f"{name}(" not in raised
    }
    assert not silent


def test_the_names_of_classes_are_unique() -> None:
    names = [
        name
        for path in (NATIVE.parent / "failures").glob("*.py")
        for name in re.findall(r"^class (\w+)\(", path.read_text(), re.MULTILINE)
    ]
    assert sorted(names) == sorted(set(names))
