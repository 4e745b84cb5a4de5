"""Building: what is compiled again, and what is said when it cannot be."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from flexfa4.emulator.failures.build import BuildError, CacheFolderError
from flexfa4.emulator.native import build
from flexfa4.emulator.native.build import Build, core_folder
from flexfa4.emulator.native.compiler import Compiler, find_compiler

pytestmark = pytest.mark.cxx

SOURCES = {
    "shared/number.hpp": '#pragma once\n#include "shared/base.hpp"\ninline int number() {'
    " return BASE + 1; }\n",
    "shared/base.hpp": "#pragma once\nconstexpr int BASE = 41;\n",
    "one.cpp": '#include "shared/number.hpp"\nextern "C" __attribute__((visibility("default")))'
    " int one() { return number(); }\n",
    "two.cpp": 'extern "C" __attribute__((visibility("default"))) int two() { return 2; }\n',
}


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "sources"
    for name, text in SOURCES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def compiler() -> Compiler:
    return replace(find_compiler(), options=("-std=c++17", "-O0", "-fPIC"))


def made(folder: Path) -> set[str]:
    """Return the stems of the objects in a cache folder, once for each object."""
    return {path.name for path in folder.glob("*.o")}


def test_only_what_an_edit_touches_is_compiled_again(sources: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert Build(compiler(), cache, sources=sources).built() is None
    assert not cache.exists()
    first = Build(compiler(), cache, sources=sources).library()
    assert Build(compiler(), cache, sources=sources).built() == first
    assert ctypes.CDLL(str(first)).one() == 42
    objects = made(cache)
    assert Build(compiler(), cache, sources=sources).library() == first
    assert made(cache) == objects

    (sources / "shared" / "base.hpp").write_text("#pragma once\nconstexpr int BASE = 6;\n")
    second = Build(compiler(), cache, sources=sources).library()
    assert ctypes.CDLL(str(second)).one() == 7
    (new,) = made(cache) - objects
    assert new.startswith("one-")


def test_options_and_compiler_are_part_of_what_a_file_is_made_of(
    sources: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    names = {
        Build(compiler(), cache, sources=sources).library(),
        Build(compiler(), cache, sources=sources, extra_options=["-DX"]).library(),
        Build(replace(compiler(), version="another"), cache, sources=sources).library(),
    }
    assert len(names) == 3


def test_a_build_that_nobody_watches_is_told_in_one_line_and_a_finished_one_is_not(
    sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Build(compiler(), tmp_path / "cache", sources=sources).library()
    assert capsys.readouterr().err == "flexfa4: compiling the emulator's core (2 files), once\n"
    Build(compiler(), tmp_path / "cache", sources=sources).library()
    assert capsys.readouterr().err == ""


def test_a_source_that_does_not_compile_is_an_error_with_the_compilers_words(
    sources: Path, tmp_path: Path
) -> None:
    (sources / "two.cpp").write_text("int two() {\n  return seven;\n}\n")
    with pytest.raises(BuildError, match=r"two\.cpp of (.|\n)*seven(.|\n)*not declared"):
        Build(compiler(), tmp_path / "cache", sources=sources).library()
    assert not list((tmp_path / "cache").glob("core-*"))


def test_a_partial_build_leaves_out_what_does_not_compile_and_says_so(
    sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (sources / "two.cpp").write_text("broken\n")
    partial = Build(compiler(), tmp_path / "cache", sources=sources, partial=True)
    assert ctypes.CDLL(str(partial.library())).one() == 42
    assert partial.left_out == [sources / "two.cpp"]
    assert "left out: two.cpp" in capsys.readouterr().err


def test_a_source_that_is_edited_while_it_is_compiled_is_compiled_again(
    sources: Path, tmp_path: Path
) -> None:
    slow = tmp_path / "c++"
    real = " ".join(find_compiler().command)
    two = sources / "two.cpp"
    slow.write_text(
        f'#!/bin/sh\n{real} "$@" || exit 1\ncase "$*" in *two.cpp*) sed -i s/2/3/ {two};; esac\n'
    )
    slow.chmod(0o755)
    edited = replace(compiler(), command=(str(slow),))
    made = Build(edited, tmp_path / "cache", sources=sources).library()
    assert ctypes.CDLL(str(made)).two() == 3


def test_objects_that_cannot_be_linked_are_an_error(sources: Path, tmp_path: Path) -> None:
    (sources / "two.cpp").write_text(SOURCES["one.cpp"])
    with pytest.raises(BuildError, match=r"the library of (.|\n)*one"):
        Build(compiler(), tmp_path / "cache", sources=sources).library()


def test_a_folder_that_cannot_be_written_is_an_error_that_names_the_variable(
    sources: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheFolderError, match=r"file/cache(.|\n)*FLEXFA4_CACHE_DIR"):
        Build(compiler(), tmp_path / "file" / "cache", sources=sources).library()


def test_processes_that_build_at_the_same_time_compile_each_source_once(
    sources: Path, tmp_path: Path
) -> None:
    slow = tmp_path / "c++"
    log = tmp_path / "log"
    real = " ".join(find_compiler().command)
    slow.write_text(f'#!/bin/sh\necho x >> {log}\nsleep 0.2\nexec {real} "$@"\n')
    slow.chmod(0o755)
    code = (
        "from pathlib import Path; from flexfa4.emulator.native.build import Build;"
        "from flexfa4.emulator.native.compiler import Compiler;"
        f"c = Compiler(({str(slow)!r},), 'v', ('-std=c++17', '-fPIC'));"
        f"print(Build(c, Path({str(tmp_path / 'cache')!r}), sources=Path({str(sources)!r}))"
        ".library())"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(3)
    ]
    printed = {process.communicate()[0] for process in running}
    assert len(printed) == 1
    assert len(log.read_text().split()) == 3  # two sources and the library


def test_files_that_nobody_has_used_for_long_are_forgotten(sources: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    used = Build(compiler(), cache, sources=sources).library()
    old = cache / "core-old.so"
    old.write_text("")
    long_ago = time.time() - (build.KEPT_DAYS + 1) * 24 * 3600
    for path in (old, used):
        os.utime(path, (long_ago, long_ago))
    assert Build(compiler(), cache, sources=sources).library() == used  # which is a use of it
    (sources / "two.cpp").write_text(SOURCES["two.cpp"] + "\n")
    Build(compiler(), cache, sources=sources).library()
    assert used.exists() and not old.exists()


def test_the_core_lies_in_a_folder_of_its_own_in_the_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEXFA4_CACHE_DIR", str(tmp_path))
    assert core_folder() == tmp_path / "emulator"


def test_the_command_prints_the_path_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main([]) == 0
    assert Path(capsys.readouterr().out.strip()).is_file()
