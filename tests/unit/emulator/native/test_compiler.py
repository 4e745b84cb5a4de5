"""Finding a compiler."""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flexfa4.emulator.failures.build import MissingCompilerError
from flexfa4.emulator.native import compiler
from flexfa4.emulator.native.compiler import find_compiler


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    find_compiler.cache_clear()
    yield
    find_compiler.cache_clear()


def program(folder: Path, name: str, version: str) -> Path:
    """Write a program that only says what version it is."""
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{version}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_the_compiler_of_the_environment_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = program(tmp_path, "mine", "clang version 99")
    program(tmp_path, "c++", "GCC 1")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("CXX", f"{mine} --target=here")
    found = find_compiler()
    assert found.command == (str(mine), "--target=here")
    assert found.version == "clang version 99"


def test_the_usual_names_are_tried_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    program(tmp_path, "clang++", "clang version 99")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setattr(compiler, "NAMES", ("no-such-compiler", "clang++"))
    assert find_compiler().command == ("clang++",)


def test_zigs_compiler_is_taken_where_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compiler, "NAMES", ())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "ziglang")
    monkeypatch.setattr(compiler, "_version", lambda command: "clang version 20")
    assert find_compiler().command == (sys.executable, "-m", "ziglang", "c++")


def test_no_compiler_is_an_error_that_says_what_was_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++ -x")
    with pytest.raises(MissingCompilerError, match=r"looked for /nowhere/c\+\+ -x \(\$CXX\)"):
        find_compiler()


def test_options_are_strictly_ieee_and_fit_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    gcc, clang = compiler._options("g++ (GCC) 12"), compiler._options("clang version 16")
    assert "-ffp-contract=off" in gcc and "-ffp-contract=off" in clang
    assert not {o for o in gcc if "fast" in o or "unsafe" in o}
    assert "-fvect-cost-model=dynamic" in gcc  # which Clang has not
    assert "-fno-math-errno" not in clang  # with which its roots of negative numbers are numbers
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert not [option for option in compiler._options("g++") if option.startswith("-m")]
