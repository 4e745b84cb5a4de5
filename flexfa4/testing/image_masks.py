"""Cases of the masks over images and video: one row or more for each variant."""

from __future__ import annotations

from typing import Final

from flexfa4.testing.case import Case

CASES: Final[tuple[Case, ...]] = ()
