"""Every environment variable of the project in one table, and the folder that one of them chooses.

A leaf that every layer may import; no other module reads the environment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True)
class Variable:
    """An environment variable: its name, default and one line on what it does."""

    name: str
    default: str
    meaning: str

    def text(self) -> str:
        """Return its value now."""
        return os.environ.get(self.name, self.default)

    def flag(self) -> bool:
        """Return its value now, as yes or no."""
        return self.text().lower() not in ("", "0", "no", "off", "false")


VERIFY: Final = Variable(
    "FLEXFA4_VERIFY", "0", "verify the graph after every pass (the tests set it)"
)

CXX: Final = Variable("CXX", "", "the C++ compiler that builds the emulator's core")
CACHE_DIR: Final = Variable(
    "FLEXFA4_CACHE_DIR", "", "folder for what is compiled; else one in the user's cache folder"
)
PARTIAL_CORE: Final = Variable(
    "FLEXFA4_PARTIAL_CORE", "0", "leave sources of the emulator's core out that do not compile"
)

VARIABLES: Final = (VERIFY, CXX, CACHE_DIR, PARTIAL_CORE)


def cache_folder() -> Path:
    """Return the folder in which compiled things are kept, each kind in one of its own.

    It need not exist.  Where ``FLEXFA4_CACHE_DIR`` chooses none it is the operating system's place
    for a user's caches: ``~/.cache/flexfa4`` on Linux, or what ``XDG_CACHE_HOME`` says.
    """
    if chosen := CACHE_DIR.text():
        return Path(chosen).expanduser()
    import platformdirs  # not before something is compiled

    return Path(platformdirs.user_cache_path("flexfa4", appauthor=False))
