"""Importing and compiling without Python's garbage collector, which finds nothing there.

Importing modules and tracing a kernel make up to a million objects that stay.  The collector starts
again and again while they come, and looks through all that the process holds, torch included: a
tenth of a first call, and more the larger the program is.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_LOCK: Final = threading.Lock()
_inside = 0  # threads that do so
_was_on = False


@contextmanager
def no_collection() -> Iterator[None]:
    """Stop the collector for a while; threads may do so at the same time."""
    global _inside, _was_on
    with _LOCK:
        if not _inside:
            _was_on = gc.isenabled()
            gc.disable()
        _inside += 1
    try:
        yield
    finally:
        with _LOCK:
            _inside -= 1
            if not _inside and _was_on:
                gc.enable()
