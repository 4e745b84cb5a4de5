"""Locks that exclude threads and processes, and that a crash releases."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from flexfa4.kernels.cache.locks import locked

KEY = "ab12"


def never() -> bool:
    return False


def hold(folder: Path, held: Any) -> None:
    with locked(folder, KEY, never):
        held.set()
        time.sleep(60)


def taken_within(folder: Path, key: str, seconds: float) -> bool:
    start = time.monotonic()
    with locked(folder, key, never, patience=30):
        return time.monotonic() - start < seconds


@pytest.fixture
def holder(tmp_path: Path) -> Any:
    """Yield a process that holds the lock of KEY."""
    spawn = multiprocessing.get_context("spawn")
    held = spawn.Event()
    process = spawn.Process(target=hold, args=(tmp_path, held))
    process.start()
    assert held.wait(60)
    yield process
    process.kill()
    process.join()


def test_threads_exclude_each_other(tmp_path: Path) -> None:
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        with locked(tmp_path, KEY, never):
            inside += 1
            most = max(most, inside)
            time.sleep(0.01)
            inside -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path: Path, holder: Any) -> None:
    waited = threading.Event()

    def kill() -> None:
        waited.set()
        os.kill(holder.pid, signal.SIGKILL)

    threading.Timer(0.1, kill).start()
    with locked(tmp_path, KEY, never, patience=30):
        assert waited.is_set()


def test_waiting_ends_when_there_is_nothing_to_wait_for(tmp_path: Path, holder: Any) -> None:
    answers = iter([False, False, True])
    with locked(tmp_path, KEY, lambda: next(answers), patience=30):
        assert next(answers, None) is None


def test_patience_ends(tmp_path: Path, holder: Any) -> None:
    start = time.monotonic()
    with locked(tmp_path, KEY, never, patience=0.1):
        assert 0.1 <= time.monotonic() - start < 30


def test_keys_wait_for_keys_of_the_same_file_only(tmp_path: Path, holder: Any) -> None:
    assert taken_within(tmp_path, "cd" + KEY, 5)
    assert not taken_within_a_moment(tmp_path, KEY[:2] + "ff")


def taken_within_a_moment(folder: Path, key: str) -> bool:
    start = time.monotonic()
    with locked(folder, key, never, patience=0.2):
        return time.monotonic() - start < 0.2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks beside threads
def test_a_child_that_was_forked_meanwhile_does_not_keep_the_lock(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    with locked(tmp_path, KEY, never):
        child = fork.Process(target=time.sleep, args=(60,))
        child.start()
    try:
        assert taken_within(tmp_path, KEY, 5)
    finally:
        child.kill()
        child.join()


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path: Path) -> None:
    with locked(tmp_path / "absent", KEY, never):
        pass


def test_there_are_few_files_of_locks(tmp_path: Path) -> None:
    for number in range(300):
        with locked(tmp_path, f"{number * 7919 % 65536:04x}", never):
            pass
    assert len(list(tmp_path.iterdir())) <= 256
