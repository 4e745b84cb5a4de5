"""The table of tilings of the Blackwell forward kernel, by the performance model.

    python benchmarks/sm100_search.py                  # all candidates of a class, ranked
    python benchmarks/sm100_search.py --write          # the table, to kernels/sm100/tilings.py

Needs no GPU.  What is ranked: keys of a tile, one or two blocks for a product, the share of
exponentials that are emulated, the threshold of rescaling, and how registers are split; for every
class of variants (`flexfa4.kernels.sm100.search`), the head dims below, sm_100a and sm_103a.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Final

from flexfa4.kernels.forward.model import LONG
from flexfa4.kernels.sm100.forward.plan import TILE_ROWS, Tiling
from flexfa4.kernels.sm100.model import GPUS
from flexfa4.kernels.sm100.search import CLASSES, Choice, best, ranked

TABLE: Final = Path(__file__).parent.parent / "kernels" / "sm100" / "tilings.py"
HEAD_DIMS: Final = ((64, 64), (64, 128), (96, 96), (128, 128), (192, 128))

HEADER: Final = '''\
"""The tilings of the Blackwell forward kernel; written by `benchmarks/sm100_search.py`.

For each architecture, head dims and class of variants (`search`) the first candidate that the
performance model cannot tell from the best one.
"""

from __future__ import annotations

from typing import Final

from flexfa4.kernels.sm100.search import Choice

# Keys, parts of K and V, registers of softmax, correction and others, sixteenths of exponentials
# that are emulated; cycles of a tile.  All have one block for a product and a tau of 8.
TABLE: Final = (
'''


def main() -> None:
    """Rank the candidates of a class, or write the table."""
    parsed = parser().parse_args()
    if parsed.write:
        TABLE.write_text(source(rows()))
        return
    known = next(known for known in CLASSES if known.name == parsed.variant)
    dims = tuple(parsed.head_dims)
    for cycles, tiling, tau in ranked(parsed.arch, dims, known.mod)[: parsed.most]:
        whole = cycles * TILE_ROWS * LONG
        print(f"{whole:10.0f} cycles for {LONG} keys  {in_words(tiling)}, tau {tau:g}")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    made.add_argument("--write", action="store_true", help="write the table")
    made.add_argument("--arch", choices=GPUS, default="sm_100a")
    made.add_argument("--variant", choices=[known.name for known in CLASSES], default="plain")
    made.add_argument("--head-dims", type=int, nargs=2, default=(128, 128), metavar=("D", "DV"))
    made.add_argument("--most", type=int, default=20, help="how many are shown")
    return made


def rows() -> list[Choice]:
    """Return the rows of the table."""
    order = itertools.product(GPUS, HEAD_DIMS, CLASSES)
    return [best(name, head_dims, known.name) for name, head_dims, known in order]


def source(found: list[Choice]) -> str:
    """Return the module that has the table."""
    return HEADER + "".join(f"    {line(row)},\n" for row in found) + ")  # fmt: skip\n"


def line(row: Choice) -> str:
    """Return a row as the table has it, for `Choice.of`."""
    tiling, split = row.tiling, row.tiling.registers
    about = (row.name, row.head_dims, row.variant)
    registers = (split.softmax, split.correction, split.others)
    numbers = (tiling.keys, tiling.stages, registers, tiling.emulated.numerator)
    time = (row.cycles, row.bound)
    assert Choice.of(about, *numbers, time) == row, "a row with more than the table says"
    first = ", ".join(map(quoted, (about, *numbers)))
    return f"Choice.of(\n        {first},\n        {quoted(time)},\n    )"


def quoted(value: object) -> str:
    """Return a value as Python with double quotes."""
    return repr(value).replace("'", '"')


def in_words(tiling: Tiling) -> str:
    """Return a tiling in a line."""
    share, split = tiling.emulated, tiling.registers
    return (
        f"{tiling.keys} keys, {tiling.stages} parts, {tiling.blocks} block"
        f"{'s' * (tiling.blocks > 1)}, {share.value:.1%} emulated,"
        f" registers {split.softmax}/{split.correction}/{split.others}"
    )


if __name__ == "__main__":
    main()
