"""Locks between processes, and between threads, that a crash releases.

A lock is held on an open file, by the operating system: when its holder ends, in whatever way, the
lock is gone, so no file is ever stale.  Files of locks are few and stay: removing one while another
process opens it would give two holders.  Keys are spread over them, and now and then two keys share
one, which costs waiting only.

A lock that cannot be had is done without, after a while: two processes that compile the same kernel
both write the same entry.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

FILES: Final = 2  # hexadecimal digits of a key that choose the file
PATIENCE: Final = 300.0  # seconds that one waits for a holder, who may have been stopped
_PAUSE: Final = 0.02  # seconds between two tries


@contextlib.contextmanager
def locked(
    folder: Path, key: str, until: Callable[[], bool], patience: float = PATIENCE
) -> Iterator[None]:
    """Hold the lock of a key, in a folder that exists.

    Args:
        folder: of the files of locks.
        key: hexadecimal digits.
        until: asked now and then while waiting; true ends the wait, without the lock.
        patience: seconds after which one goes on without the lock.
    """
    try:
        handle = os.open(folder / f"lock-{key[:FILES]}", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:  # a folder that cannot be written
        yield
        return
    try:
        end = time.monotonic() + patience
        while not _try(handle) and time.monotonic() < end and not until():
            time.sleep(_PAUSE)
        yield
    finally:
        _release(handle)  # said, for a child that was forked meanwhile has the file open, too
        os.close(handle)


def _release(handle: int) -> None:
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)


def _try(handle: int) -> bool:
    """Take the lock of an open file, if nobody holds it."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # held; the latter is Windows' word for it
        return False
    except OSError:
        return True  # a file system without locks: nobody holds one
    return True
