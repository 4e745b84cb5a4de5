"""The case table and the dense reference that every tier of tests, and the benchmarks, share.

`CASES` names attention variants as users write them; `dense_reference` says what each must compute;
`compare` and `excess` hold an implementation against it, `agrees` one tensor.

Not for production use: everything here is quadratic in memory.
"""

from typing import Final

from flexfa4.testing import biases, general, image_masks, sequence_masks
from flexfa4.testing.case import Case, Draw, Factory, Mods, Sizes
from flexfa4.testing.reference import (
    Attend,
    Deviation,
    Inputs,
    Trial,
    agrees,
    attend,
    compare,
    dense_reference,
    excess,
    finite_rows,
    make_inputs,
)

CASES: Final[tuple[Case, ...]] = (
    *general.CASES,
    *sequence_masks.CASES,
    *image_masks.CASES,
    *biases.CASES,
)

__all__ = [
    "CASES",
    "Attend",
    "Case",
    "Deviation",
    "Draw",
    "Factory",
    "Inputs",
    "Mods",
    "Sizes",
    "Trial",
    "agrees",
    "attend",
    "compare",
    "dense_reference",
    "excess",
    "finite_rows",
    "make_inputs",
]
