"""Cases of the masks over positions in a sequence: one row or more for each variant."""

from __future__ import annotations

from typing import Final

from flexfa4.testing.case import Case

CASES: Final[tuple[Case, ...]] = ()
