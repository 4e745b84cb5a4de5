"""The garbage collector is off while kernels are compiled, and as before behind it."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest

from flexfa4.collector import no_collection
from flexfa4.kernels.cache.store import KernelCache
from tests.compiled_kernels import compiled_kernel


def test_the_collector_is_off_inside_and_on_behind() -> None:
    with no_collection():
        assert not gc.isenabled()
        with no_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_is_on_again_after_a_failure_and_stays_off_where_it_was() -> None:
    with pytest.raises(KeyError), no_collection():
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    try:
        with no_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_threads_that_overlap_turn_it_on_together() -> None:
    inside, leave = threading.Event(), threading.Event()

    def compile_slowly() -> None:
        with no_collection():
            inside.set()
            leave.wait()

    other = threading.Thread(target=compile_slowly)
    other.start()
    inside.wait()
    with no_collection():
        pass
    assert not gc.isenabled()
    leave.set()
    other.join()
    assert gc.isenabled()


def test_kernels_are_compiled_without_it(tmp_path: Path) -> None:
    states = []

    def compile_() -> object:
        states.append(gc.isenabled())
        return compiled_kernel()

    KernelCache(tmp_path).get((1, 2), "sm_90a", compile_)  # type: ignore[arg-type]
    assert states == [False]
