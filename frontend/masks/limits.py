"""How large the structure of a mask may be, and how much work may go into finding it.

Closed forms have no limits; lists of blocks, counts and dense tables of them do, and so has the
evaluation of masks about which nothing can be proved.  What is beyond would end in want of memory
or not at all, and is an error that says so.  The limits are far above what attention can use.
Tables that the analysis makes for itself are coarser or left out instead (`table_fits`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NoReturn

from flexfa4.errors import ArgumentError

# Batches times heads, where the mask reads both.
MOST_PAIRS: Final = 1 << 24
# Lines of blocks, all classes together: one takes 8 bytes and more.
MOST_LINES: Final = 1 << 26
# Queries or keys whose intervals a closed form is evaluated for, all classes together: some minutes
# on a CPU.
MOST_POSITIONS: Final = 1 << 31
# Blocks that are listed one by one: 4 bytes each, and as many again while they are written.
MOST_LISTED: Final = 1 << 30
# Elements of a dense table or mask: one byte each, three while it is made.
MOST_DENSE: Final = 1 << 32
# Rectangles of blocks that are found one by one: 48 bytes each, until they are joined to runs.
MOST_RECTANGLES: Final = 1 << 27
# Bytes of a table that is made of a captured tensor: so many, or so many times the tensor's.
MOST_TABLE_BYTES: Final = 64 << 20
MOST_TABLE_TIMES: Final = 8
# Scores at which a mask is evaluated to find its blocks: some minutes on a CPU, where one takes
# 7 ns (2026-11).
MOST_LANES: Final = 1 << 36
_EVALUATED: Final = "scores at which the mask has to be evaluated"
_PART: Final = "block_mask[:, :, first:last] for a part"


def check_pairs(batches: int, heads: int) -> None:
    """Refuse to tell apart more pairs of batch and head than the limit.

    Raises:
        ArgumentError: there are more.
    """
    _check("batches times heads that may differ", batches * heads, MOST_PAIRS, "fewer at a time")


def check_lines(classes: int, lines: int) -> None:
    """Refuse to list or count more rows and columns of blocks than the limit.

    Args:
        classes: how many masks there are.
        lines: rows or columns of each, whichever are more.

    Raises:
        ArgumentError: there are more.
    """
    _check(
        "rows or columns of blocks to list or count",
        classes * lines,
        MOST_LINES,
        f"a larger block_size, or {_PART}",
    )


def check_positions(classes: int, positions: int) -> None:
    """Refuse to list or count the blocks of more positions than the limit.

    Args:
        classes: how many masks there are.
        positions: queries or keys of each.

    Raises:
        ArgumentError: there are more.
    """
    _check("positions whose blocks to list or count", classes * positions, MOST_POSITIONS, _PART)


def check_listed(blocks: int) -> None:
    """Refuse to list more blocks than the limit.

    Args:
        blocks: how many there are of one kind.

    Raises:
        ArgumentError: there are more.
    """
    _check("blocks to list", blocks, MOST_LISTED, f"a larger block_size, or {_PART}")


def check_dense(what: str, shape: tuple[int, ...], rewrite: str) -> None:
    """Refuse a dense result of more elements than the limit.

    Args:
        what: what its elements are.
        shape: its shape.
        rewrite: what to write instead, beside a part of the mask.

    Raises:
        ArgumentError: it has more.
    """
    _check(f"{what} in a dense table", math.prod(shape), MOST_DENSE, f"{rewrite}, or {_PART}")


def table_fits(table: int, tensor: int) -> bool:
    """Return whether a table that is made of a captured tensor may be as large as it would be.

    Args:
        table: bytes of the table.
        tensor: bytes of the tensor.
    """
    return table <= max(MOST_TABLE_BYTES, MOST_TABLE_TIMES * tensor)


def _check(what: str, count: int, most: int, rewrite: str) -> None:
    if count > most:
        raise ArgumentError(
            name=f"the number of {what}",
            found_value=f"{count:,}",
            expected=f"at most {most:,}",
            rewrite=rewrite,
        )


@dataclass
class Budget:
    """What is left of the work that may go into finding the blocks of a mask.

    Attributes:
        lanes: scores at which it may still be evaluated.
        rectangles: rectangles of blocks that may still be found.
    """

    lanes: int = MOST_LANES
    rectangles: int = MOST_RECTANGLES

    def evaluate(self, lanes: int) -> None:
        """Note that the mask is about to be evaluated at some scores.

        Raises:
            ArgumentError: there have been too many.
        """
        self.lanes -= lanes
        if self.lanes < 0:
            _refuse(_EVALUATED)

    def foresee(self, spent: int, times: float) -> None:
        """Refuse at once what is sure to take more than there is, by what a sample of it took.

        Args:
            spent: scores at which the mask was evaluated for the sample.
            times: how many times the sample the whole is.

        Raises:
            ArgumentError: the whole would take more than twice of what is left.
        """
        if spent * times > 2 * self.lanes:
            _refuse(_EVALUATED)

    def keep(self, rectangles: int) -> None:
        """Note that rectangles of blocks have been found.

        Raises:
            ArgumentError: there are too many.
        """
        self.rectangles -= rectangles
        if self.rectangles < 0:
            _refuse("blocks that have to be listed one by one")


def _refuse(what: str) -> NoReturn:
    raise ArgumentError(
        name=f"the number of {what}",
        found_value="beyond all bounds, since next to nothing is proved about the mask",
        expected="at such lengths a mask in closed form, or one of few blocks that vary",
        rewrite="flexfa4.explain(mask), which says why there is no closed form",
    )
