"""Finding a C++ compiler, and how to call it on this machine.

Any compiler of C++17 that takes the options of GCC will do: GCC, Clang, and Zig's, which
``pip install ziglang`` brings to machines that have none.  Vector instructions are used where the
machine has them, and nothing depends on them: results are the same bits without.

What this module deliberately does not do: compile.
"""

from __future__ import annotations

import functools
import importlib.util
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flexfa4.config import CXX
from flexfa4.emulator.failures.build import MissingCompilerError

NAMES: Final = ("c++", "g++", "clang++")

# Strictly IEEE: no contraction into fused operations, and nothing of -ffast-math.
_OPTIONS: Final = (
    "-std=c++17",
    "-O2",
    "-ftree-vectorize",
    "-ffp-contract=off",
    "-fPIC",
    "-fvisibility=hidden",
    "-pthread",
    "-Wall",
    "-Wextra",
)
# At -O2 GCC vectorises only loops that need no check whether arrays overlap: ours all do.  What the
# other two drop no code here looks at: errno and traps.
_GCC_OPTIONS: Final = ("-fvect-cost-model=dynamic", "-fno-math-errno", "-fno-trapping-math")
# Loops ask for vector instructions; Clang warns of those that it does not find any for.  Without
# errno it takes the root of a negative number for a number (Clang 22).
_CLANG_OPTIONS: Final = ("-Wno-pass-failed",)

# what /proc/cpuinfo calls an extension, and the option that uses it
_EXTENSIONS: Final = {
    "avx2": "-mavx2",
    "fma": "-mfma",
    "f16c": "-mf16c",
    "bmi1": "-mbmi",
    "bmi2": "-mbmi2",
}


@dataclass(frozen=True)
class Compiler:
    """A compiler and how it is called.

    Attributes:
        command: what to run, without arguments.
        version: what it says of itself.
        options: for this machine, without those that name files.
    """

    command: tuple[str, ...]
    version: str
    options: tuple[str, ...]


@functools.cache
def find_compiler() -> Compiler:
    """Return the first compiler that runs: of $CXX, of the usual names, and Zig's.

    Raises:
        MissingCompilerError: there is none.
    """
    looked_for = []
    source = " ($CXX)" if CXX.text() else ""
    for command in _candidates():
        looked_for.append(shlex.join(command) + source)
        version = _version(command)
        if version is not None:
            return Compiler(command, version, _options(version))
    raise MissingCompilerError(names=", ".join(looked_for))


def _candidates() -> Iterator[tuple[str, ...]]:
    chosen = CXX.text()
    if chosen:
        yield tuple(shlex.split(chosen))
        return
    for name in NAMES:
        yield (name,)
    if importlib.util.find_spec("ziglang"):
        yield (sys.executable, "-m", "ziglang", "c++")


def _version(command: tuple[str, ...]) -> str | None:
    path = shutil.which(command[0])
    if path is None:
        return None
    try:
        done = subprocess.run(
            [path, *command[1:], "--version"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _options(version: str) -> tuple[str, ...]:
    own = _CLANG_OPTIONS if "clang" in version.lower() else _GCC_OPTIONS
    return (*_OPTIONS, *own, *_vector_options())


def _vector_options() -> tuple[str, ...]:
    """Return options for this machine's vector instructions; AArch64 has its own always."""
    cpuinfo = Path("/proc/cpuinfo")
    if platform.machine().lower() not in ("x86_64", "amd64") or not cpuinfo.is_file():
        return ()
    lines = cpuinfo.read_text().splitlines()
    flags = next((set(line.split()) for line in lines if line.startswith("flags")), set())
    return tuple(option for name, option in _EXTENSIONS.items() if name in flags)
