"""Kernels kept in memory and in files: between threads, processes and crashes."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import flexfa4
from flexfa4.kernels.cache.keys import sources_fingerprint
from flexfa4.kernels.cache.store import CacheWarning, KernelCache
from flexfa4.kernels.compile.compiled_kernel import CompiledKernel
from tests.compiled_kernels import compiled_kernel

ROOT = Path(__file__).parents[4]
ARCH = "sm_90a"


@dataclass(frozen=True)
class Plan:
    tile: int = 128


class Compiler:
    """Compiles nothing, and counts."""

    def __init__(self, seconds: float = 0) -> None:
        self.count = 0
        self._seconds = seconds

    def __call__(self) -> CompiledKernel:
        self.count += 1
        time.sleep(self._seconds)
        return compiled_kernel(name=f"kernel_{self.count}")


def refuse() -> CompiledKernel:
    raise AssertionError("it is compiled, although it is kept")


def test_a_kernel_is_compiled_once_in_a_process(tmp_path: Path) -> None:
    cache, compiler, before = KernelCache(tmp_path), Compiler(), flexfa4.stats()
    first = cache.get(Plan(), ARCH, compiler)
    assert cache.get(Plan(), ARCH, refuse) is first
    assert compiler.count == (flexfa4.stats() - before).compiles == 1


def test_a_kernel_is_read_where_another_one_has_compiled_it(tmp_path: Path) -> None:
    made, before = KernelCache(tmp_path).get(Plan(), ARCH, Compiler()), flexfa4.stats()
    read = KernelCache(tmp_path).get(Plan(), ARCH, refuse)
    assert flexfa4.stats() == before
    assert read is not made
    assert (read.name, read.cubin, read.ptx) == (made.name, made.cubin, made.ptx)


@pytest.mark.parametrize(("plan", "arch"), [(Plan(64), ARCH), (Plan(), "sm_100a")])
def test_another_plan_or_architecture_is_another_kernel(
    tmp_path: Path, plan: Plan, arch: str
) -> None:
    cache, compiler = KernelCache(tmp_path), Compiler()
    assert cache.get(Plan(), ARCH, compiler) is not cache.get(plan, arch, compiler)
    assert compiler.count == 2
    assert cache.path(Plan(), ARCH) != cache.path(plan, arch)


def test_the_folder_is_that_of_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEXFA4_CACHE_DIR", str(tmp_path))
    cache = KernelCache()
    cache.get(Plan(), ARCH, Compiler())
    assert cache.path(Plan(), ARCH).is_file()
    assert cache.path(Plan(), ARCH).parent == tmp_path / "kernels"


def test_what_compiling_raises_passes_through_and_leaves_nothing(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)

    def fail() -> CompiledKernel:
        raise KeyError("no")

    with pytest.raises(KeyError, match="no"):
        cache.get(Plan(), ARCH, fail)
    assert not cache.path(Plan(), ARCH).exists()
    assert cache.get(Plan(), ARCH, Compiler()).name == "kernel_1"


# ---- files that are not as they should be ----


@pytest.mark.parametrize(
    "spoil",
    [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: data[:-1] + b"\xff"],
    ids=["cut off", "empty", "altered"],
)
def test_a_damaged_file_is_compiled_again_with_a_warning(
    tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    KernelCache(tmp_path).get(Plan(), ARCH, Compiler())
    file = KernelCache(tmp_path).path(Plan(), ARCH)
    file.write_bytes(spoil(file.read_bytes()))
    compiler = Compiler()
    with pytest.warns(CacheWarning, match="is damaged, and is compiled again"):
        KernelCache(tmp_path).get(Plan(), ARCH, compiler)
    assert compiler.count == 1
    KernelCache(tmp_path).get(Plan(), ARCH, refuse)


def test_a_folder_that_cannot_be_made_costs_a_warning_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache, compiler = KernelCache(tmp_path / "file" / "folder"), Compiler()
    with pytest.warns(CacheWarning, match="cannot be kept in .*FLEXFA4_CACHE_DIR"):
        cache.get(Plan(), ARCH, compiler)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.get(Plan(64), ARCH, compiler)
        cache.get(Plan(64), ARCH, refuse)
    assert compiler.count == 2


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Yield what makes all folders read-only; permissions would not, for root."""

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    def begin() -> None:
        for call in ("open", "mkdir", "utime", "unlink", "replace"):
            monkeypatch.setattr(os, call, refused)

    yield begin
    monkeypatch.undo()


def test_a_read_only_folder_still_serves_what_it_has(
    tmp_path: Path, read_only: Callable[[], None]
) -> None:
    KernelCache(tmp_path).get(Plan(), ARCH, Compiler())
    read_only()
    assert KernelCache(tmp_path).get(Plan(), ARCH, refuse).name == "kernel_1"


@pytest.mark.parametrize("folder", ["", "not made yet"])
def test_in_a_read_only_folder_each_process_compiles_and_is_told_once(
    folder: str, tmp_path: Path, read_only: Callable[[], None]
) -> None:
    read_only()
    cache, compiler = KernelCache(tmp_path / folder), Compiler()
    with pytest.warns(CacheWarning, match="cannot be kept") as told:
        for _ in range(2):
            assert cache.get(Plan(), ARCH, compiler).name == "kernel_1"
            assert cache.get(Plan(64), ARCH, compiler).name == "kernel_2"
    assert len(told) == 1 and compiler.count == 2


def test_a_full_disk_costs_a_warning_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_paths: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(CacheWarning, match="No space left on device"):
        KernelCache(tmp_path).get(Plan(), ARCH, Compiler())
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith("lock")] == []


def test_files_that_were_not_used_for_long_are_removed(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    for tile in (1, 2):
        cache.get(Plan(tile), ARCH, Compiler())
    (tmp_path / "stopped.part").write_text("")
    (tmp_path / "other").write_text("")
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0))
    KernelCache(tmp_path).get(Plan(2), ARCH, refuse)  # is used
    cache.get(Plan(3), ARCH, Compiler())
    left = {p.name for p in tmp_path.iterdir() if not p.name.startswith("lock")}
    assert left == {cache.path(Plan(2), ARCH).name, cache.path(Plan(3), ARCH).name, "other"}


# ---- threads and processes ----


def test_threads_that_ask_at_once_compile_once(tmp_path: Path) -> None:
    cache, compiler = KernelCache(tmp_path), Compiler(seconds=0.2)
    found: list[CompiledKernel] = []
    threads = [
        threading.Thread(target=lambda: found.append(cache.get(Plan(), ARCH, compiler)))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compiler.count == 1
    assert len(set(map(id, found))) == 1


def ask(folder: Path, start: Any, names: Any) -> None:
    """Ask for the kernel when all are ready, and tell which process compiled it."""

    def compile() -> CompiledKernel:
        time.sleep(0.5)
        return compiled_kernel(name=f"by_{os.getpid()}")

    start.wait(60)
    names.put((os.getpid(), KernelCache(folder).get(Plan(), ARCH, compile).name))


def test_of_several_processes_one_compiles(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    start, names = spawn.Barrier(2), spawn.Queue()
    processes = [spawn.Process(target=ask, args=(tmp_path, start, names)) for _ in range(2)]
    for process in processes:
        process.start()
    got = dict(names.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    assert len(set(got.values())) == 1
    assert got.popitem()[1] in {f"by_{process.pid}" for process in processes}


def write_for_long(folder: Path, writing: Any) -> None:
    """Compile and write a kernel, but stop before its file gets its name."""

    def replace(*_paths: Any) -> None:
        writing.set()
        time.sleep(60)

    os.replace = replace  # type: ignore[assignment]
    KernelCache(folder).get(Plan(), ARCH, compiled_kernel)


def test_a_process_killed_while_it_writes_blocks_nobody_and_leaves_no_half(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    writing = spawn.Event()
    process = spawn.Process(target=write_for_long, args=(tmp_path, writing))
    process.start()
    assert writing.wait(60)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    assert [path.suffix for path in tmp_path.iterdir() if path.suffix] == [".part"]
    assert KernelCache(tmp_path).get(Plan(), ARCH, Compiler()).name == "kernel_1"


def test_a_kept_kernel_is_found_and_launched_without_cutlass(tmp_path: Path) -> None:
    """In a process in which importing cutlass fails."""
    KernelCache(tmp_path).get(Plan(), ARCH, lambda: compiled_kernel(signature=()))
    code = f"""
import sys
from importlib.abc import MetaPathFinder
class Refuse(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "cutlass":
            raise AssertionError(name)
sys.meta_path.insert(0, Refuse())
from pathlib import Path
from tests.unit.kernels.cache.test_store import ARCH, Plan, refuse
from tests.fake_cuda import FakeCuda
from flexfa4.kernels.cache import keys
from flexfa4.kernels.cache.store import KernelCache
from flexfa4.kernels.launch.driver import Driver
from flexfa4.kernels.launch.executor import executor_of
keys.sources_fingerprint = lambda: {sources_fingerprint()!r}  # of now, if files are edited
kernel = KernelCache(Path({str(tmp_path)!r})).get(Plan(), ARCH, refuse)
fake = FakeCuda()
executor_of(Driver(fake), 0).launch(kernel, (1, 1, 1), ())
print(len(fake.launches), kernel.name)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "kernel"]
