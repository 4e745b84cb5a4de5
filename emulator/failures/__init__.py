"""What can go wrong while a kernel is loaded and run: a chapter of texts for each subject.

The execution core names a failure by its class and sends the fields of its message; `named` finds
the class.  `who` ("block (0, 0, 0), warp 3, lanes 0-31") is among the fields of whatever an
instruction reports, and the error's `where` quotes its line.

What this package deliberately does not do: decide when something is wrong.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

from flexfa4.emulator.errors import EmulationError


@functools.cache
def by_name() -> dict[str, type[EmulationError]]:
    """Return the classes of all chapters by their names."""
    found: dict[str, type[EmulationError]] = {}
    for chapter in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{chapter.name}")
        for name, value in vars(module).items():
            if isinstance(value, type) and issubclass(value, EmulationError):
                found[name] = value
    return found
