"""The chapter of the error catalogue for building the execution core.

Texts only: `flexfa4.emulator.native` decides when something is wrong.
"""

from __future__ import annotations

from flexfa4.emulator.errors import EmulationError


class CoreBuildError(EmulationError, RuntimeError):
    """The execution core could not be built."""


class MissingCompilerError(CoreBuildError):
    """No C++ compiler."""

    found = "no C++ compiler runs; looked for {names}"
    allowed = "a compiler of C++17 that takes the options of GCC: GCC 9 or later, Clang, Zig's"
    instead = "apt-get install g++, or pip install ziglang, or the path of a compiler in $CXX"


class BuildError(CoreBuildError):
    """A source that does not compile."""

    found = "{what} of the emulator's core does not compile with {compiler}:\n    {output}"
    allowed = "GCC 9 or later, Clang 10 or later, Zig's"
    instead = "another compiler: its path in $CXX"


class CacheFolderError(CoreBuildError, OSError):
    """A folder for compiled files that cannot be written."""

    found = "the folder {folder} for the built core cannot be written: {reason}"
    allowed = "a folder that can be written"
    instead = "its path in $FLEXFA4_CACHE_DIR"


class LoadingError(CoreBuildError):
    """A library that was built and cannot be loaded."""

    found = "the built core {path} cannot be loaded: {reason}"
    allowed = "a library for this machine and this Python"
    instead = "another compiler: its path in $CXX"
