"""`KernelCache`: a kernel from memory, from a file, or compiled and kept.

Files are in ``<cache folder>/kernels`` (`flexfa4.config.cache_folder`), one for each kernel, named
by its key.  They appear there whole, by being renamed, so a crash leaves no half of one; what
cannot be read is compiled again, with a warning.  A folder that cannot be written costs a warning
and the time to compile in each process.  A file that was not used for a while is removed when
another one is written.

What this module deliberately does not do: compile; who asks hands in how.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from flexfa4.collector import no_collection
from flexfa4.config import cache_folder
from flexfa4.counters import count
from flexfa4.kernels.cache.entry import FORM, EntryError, read_entry, write_entry
from flexfa4.kernels.cache.keys import key_of
from flexfa4.kernels.cache.locks import locked
from flexfa4.kernels.compile.compiled_kernel import CompiledKernel

KEPT_DAYS: Final = 90  # that a file stays unused
_SUFFIX: Final = ".kernel"
_TEMPORARY: Final = ".part"


class CacheWarning(UserWarning):
    """Compiled kernels cannot be kept, or a kept one was damaged; results are not affected."""


class KernelCache:
    """Compiled kernels by plan.

    Threads and processes may share one folder, and threads one object.

    Args:
        folder: of the files; by default that of the user's cache, asked for at each miss.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._kernels: dict[tuple[str, Any], CompiledKernel] = {}
        self._warned = threading.Event()

    def get(self, plan: Any, arch: str, compile: Callable[[], CompiledKernel]) -> CompiledKernel:
        """Return the kernel of a plan.

        Args:
            plan: a frozen dataclass, hashable, that says all about the kernel
                (`flexfa4.kernels.cache.keys.canonical_text`).
            arch: such as ``sm_90a``.
            compile: makes the kernel, where none is kept; what it raises passes through.
        """
        found = self._kernels.get((arch, plan))
        if found is None:
            found = self._kept(key_of(plan, arch, FORM), compile)
            found = self._kernels.setdefault((arch, plan), found)  # the first thread's, for all
        return found

    def path(self, plan: Any, arch: str) -> Path:
        """Return the file of a plan's kernel, which need not exist."""
        return self._file(key_of(plan, arch, FORM))

    def _kept(self, key: str, compile: Callable[[], CompiledKernel]) -> CompiledKernel:
        """Return a kernel from its file, or compile it and write the file."""
        file = self._file(key)
        kernel = self._read(file)
        if kernel is not None:
            return kernel
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
        with locked(file.parent, key, until=file.exists):
            kernel = self._read(file)  # another one may have compiled it meanwhile
            if kernel is None:
                count("compiles")
                with no_collection():
                    kernel = compile()
                self._write(file, kernel)
        return kernel

    def _file(self, key: str) -> Path:
        folder = self._folder if self._folder is not None else cache_folder() / "kernels"
        return folder / (key + _SUFFIX)

    def _read(self, file: Path) -> CompiledKernel | None:
        try:
            kernel = read_entry(file.read_bytes())
        except OSError:  # it is not there, or is not for us
            return None
        except EntryError as error:
            self._warn(f"the compiled kernel {file} is damaged, and is compiled again: {error}")
            with contextlib.suppress(OSError):
                file.unlink()  # so that others wait for the one that compiles it
            return None
        with contextlib.suppress(OSError):
            os.utime(file)  # it is kept for longer
        return kernel

    def _write(self, file: Path, kernel: CompiledKernel) -> None:
        try:
            handle, name = tempfile.mkstemp(dir=file.parent, suffix=_TEMPORARY)
        except OSError as error:
            self._warn_once(error)
            return
        try:
            with os.fdopen(handle, "wb") as written:
                written.write(write_entry(kernel))
            os.replace(name, file)
        except OSError as error:  # no space left, most likely
            self._warn_once(error)
            with contextlib.suppress(OSError):
                os.unlink(name)
            return
        self._forget_unused(file.parent)

    def _forget_unused(self, folder: Path) -> None:
        """Remove what was not used for long, and what processes left behind that were stopped."""
        now = time.time()
        for path in folder.iterdir():
            days = {_SUFFIX: KEPT_DAYS, _TEMPORARY: 1}.get(path.suffix)
            with contextlib.suppress(OSError):  # another process may have taken it away
                if days is not None and path.stat().st_mtime < now - days * 24 * 3600:
                    path.unlink()

    def _warn_once(self, error: OSError) -> None:
        if not self._warned.is_set():
            self._warned.set()
            self._warn(
                f"compiled kernels cannot be kept in {self._file('').parent}: {error.strerror};"
                " set FLEXFA4_CACHE_DIR to a folder that can be written"
            )

    def _warn(self, text: str) -> None:
        warnings.warn(CacheWarning(text), stacklevel=2)


KERNELS: Final = KernelCache()
"""The kernels of this process."""
