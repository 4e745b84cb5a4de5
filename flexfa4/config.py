"""Every environment variable of the project, in one table.

A leaf that every layer may import; no other module reads the environment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
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

VARIABLES: Final = (VERIFY,)
