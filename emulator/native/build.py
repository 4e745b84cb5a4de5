"""Compiling the execution core at first use, and keeping what was compiled.

Each source is compiled by itself, several at once, and the objects are linked to one shared
library.  Objects and libraries are files in a cache folder, named by what they were made of: the
source with all of the project's headers that it includes, the options, and the compiler's version.
So nothing is ever out of date, an edit compiles only what it touches, and several processes and
versions of the project can share the folder: files appear there whole, by being renamed, and one
process compiles at a time.

``python -m flexfa4.emulator.native.build`` builds and prints what is wrong; ``--strict`` makes
errors of warnings.

What this module deliberately does not do: load the library (`flexfa4.emulator.native.library`), or
choose the compiler (`flexfa4.emulator.native.compiler`).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final

from flexfa4.config import PARTIAL_CORE, cache_folder
from flexfa4.emulator.failures.build import BuildError, CacheFolderError
from flexfa4.emulator.native.compiler import Compiler, find_compiler

SOURCES: Final = Path(__file__).parent
_INCLUDE: Final = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_ERROR: Final = re.compile(r"\berror\b|undefined (?:reference|symbol)", re.IGNORECASE)
SHOWN_LINES: Final = 24  # of a compiler's output
KEPT_DAYS: Final = 30  # that a file of the cache stays unused
_ACTIVITY: Final = "compiling the emulator's core"


def built_library() -> Path:
    """Return the path of the built library, building it if it is not in the cache.

    Raises:
        MissingCompilerError: it has to be built, and there is no compiler.
        BuildError: a source does not compile.
        CacheFolderError: the cache folder cannot be written.
    """
    return Build(find_compiler(), core_folder(), partial=PARTIAL_CORE.flag()).library()


def core_folder() -> Path:
    """Return the folder of compiled files; it need not exist."""
    return cache_folder() / "emulator"


class Build:
    """One way of building: a compiler, options, and a cache folder.

    Attributes:
        left_out: sources that did not compile, where those are left out.
    """

    def __init__(
        self,
        compiler: Compiler,
        folder: Path,
        *,
        sources: Path = SOURCES,
        extra_options: Sequence[str] = (),
        partial: bool = False,
    ) -> None:
        """Describe a build; nothing is done yet.

        Args:
            compiler: what compiles.
            folder: where compiled files are kept.
            sources: the folder of the sources, and of the headers that they include.
            extra_options: for the compiler, behind its own.
            partial: leave out sources that do not compile, and say so: while one part of the core
                is being written the others can be tested.
        """
        self.compiler = compiler
        self.folder = folder
        self.sources = sources
        self.options = (*compiler.options, *extra_options)
        self.partial = partial
        self.left_out: list[Path] = []

    def built(self) -> Path | None:
        """Return the path of the library if it is there, without building it."""
        library = self._library(self._objects().values())
        return library if library.is_file() else None

    def library(self) -> Path:
        """Return the path of the library, built if it is not there.

        Raises:
            BuildError: a source does not compile, or the objects cannot be linked.
            CacheFolderError: the folder cannot be written.
        """
        library = self._library(self._objects().values())
        if _used(library):
            return library
        with self._alone():
            while True:
                objects = self._objects()  # others may have built meanwhile, or edited
                library = self._library(objects.values())
                if _used(library):
                    return library
                self.left_out = self._compile(objects)
                objects = {p: made for p, made in objects.items() if p not in self.left_out}
                if all(made.is_file() for made in objects.values()):
                    library = self._library(objects.values())
                    self._link(objects.values(), library)
                    self._forget_unused()
                    return library

    # ---- names

    def _objects(self) -> dict[Path, Path]:
        """Return the file of each source's object."""
        return {path: self._object(path) for path in sorted(self.sources.rglob("*.cpp"))}

    def _object(self, source: Path) -> Path:
        digest = hashlib.sha256(repr((self.compiler.version, self.options)).encode())
        for path in sorted(self._includes(source, {source})):
            digest.update(f"\0{path.relative_to(self.sources)}\0".encode())
            digest.update(_text(path, path.stat().st_mtime_ns).encode())
        return self.folder / f"{source.stem}-{digest.hexdigest()[:32]}.o"

    def _includes(self, source: Path, known: set[Path]) -> set[Path]:
        """Add the project's headers that a file includes, and those that they include."""
        for name in _INCLUDE.findall(_text(source, source.stat().st_mtime_ns)):
            header = self.sources / name
            if header not in known and header.is_file():
                known.add(header)
                self._includes(header, known)
        return known

    def _library(self, objects: Iterable[Path]) -> Path:
        names = "\0".join(sorted(path.name for path in objects))
        return self.folder / f"core-{hashlib.sha256(names.encode()).hexdigest()[:32]}.so"

    # ---- work

    def _compile(self, objects: dict[Path, Path]) -> list[Path]:
        """Compile what is not there; return the sources that were left out."""
        failures: dict[Path, str] = {}
        missing = {source: made for source, made in objects.items() if not _used(made)}
        with _progress(len(missing)) as advance, ThreadPoolExecutor(os.cpu_count()) as pool:
            running = {
                pool.submit(self._compile_one, source, made): source
                for source, made in missing.items()
            }
            for done in as_completed(running):
                output = done.result()
                if output is not None:
                    failures[running[done]] = output
                advance()
        for source, output in sorted(failures.items()):
            error = BuildError(
                what=source.relative_to(self.sources), compiler=self._name(), output=_first(output)
            )
            if not self.partial:
                raise error
            print(f"left out: {error}", file=sys.stderr)
        return sorted(failures)

    def _compile_one(self, source: Path, target: Path) -> str | None:
        """Compile a source; return what the compiler said if it could not.

        A source that was edited meanwhile leaves no object: it would have the name of another text.
        """
        arguments = [*self.options, "-I", str(self.sources), "-c", str(source)]
        return self._run(arguments, target, lambda: self._object(source) == target)

    def _link(self, objects: Iterable[Path], target: Path) -> None:
        inputs = sorted(str(path) for path in objects)
        output = self._run(["-shared", "-pthread", *inputs], target, lambda: True)
        if output is not None:
            raise BuildError(what="the library", compiler=self._name(), output=_first(output))

    def _run(self, arguments: list[str], target: Path, holds: Callable[[], bool]) -> str | None:
        """Let the compiler make a file, which appears when it is whole, if then something holds."""
        handle, name = tempfile.mkstemp(dir=self.folder, suffix=target.suffix)
        os.close(handle)
        made = Path(name)
        try:
            done = subprocess.run(
                [*self.compiler.command, *arguments, "-o", str(made)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            if done.returncode:
                return done.stdout or f"exit code {done.returncode}"
            if holds():
                made.chmod(0o755)
                made.replace(target)
            return None
        finally:
            made.unlink(missing_ok=True)

    def _name(self) -> str:
        return self.compiler.version.splitlines()[0] if self.compiler.version else "the compiler"

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the folder against other processes, which then find what this one built."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / "lock").open("w")
        except OSError as error:
            raise CacheFolderError(folder=self.folder, reason=error.strerror) from error
        with lock:
            try:
                import fcntl
            except ImportError:  # no Unix: files are renamed into place anyway
                yield
                return
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _forget_unused(self) -> None:
        oldest = time.time() - KEPT_DAYS * 24 * 3600
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):  # another process may have taken it away
                if path.name != "lock" and path.stat().st_mtime < oldest:
                    path.unlink()


@functools.lru_cache(maxsize=1024)
def _text(path: Path, _modified: int) -> str:
    return path.read_text(encoding="utf-8")


def _used(path: Path) -> bool:
    """Whether a file is there; it is kept for longer then."""
    try:
        os.utime(path)
    except OSError:
        return path.is_file()
    return True


def _first(output: str) -> str:
    """Return the first error of a compiler's output with what follows, indented."""
    lines = output.splitlines()
    start = next((number for number, line in enumerate(lines) if _ERROR.search(line)), 0)
    shown = lines[max(start - 1, 0) : start + SHOWN_LINES]
    if start + SHOWN_LINES < len(lines):
        shown.append("...")
    return "\n    ".join(shown)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """Say that a build goes on, for it may take minutes; how far it is where somebody watches."""
    if not total:
        yield lambda: None
        return
    if not sys.stderr.isatty():
        print(f"flexfa4: {_ACTIVITY} ({total} files), once", file=sys.stderr, flush=True)
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(_ACTIVITY, total=total)
        yield lambda: progress.advance(task)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, and print the library's path or what is wrong; return the exit code."""
    parser = argparse.ArgumentParser(description="Build the emulator's execution core.")
    parser.add_argument("--strict", action="store_true", help="make errors of warnings")
    parser.add_argument("--partial", action="store_true", help="leave out what does not compile")
    options = parser.parse_args(arguments)
    extra = ("-Werror",) if options.strict else ()
    build = Build(find_compiler(), core_folder(), extra_options=extra, partial=options.partial)
    try:
        print(build.library())
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 1 if build.left_out else 0


if __name__ == "__main__":
    raise SystemExit(main())
