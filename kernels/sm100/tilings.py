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
    Choice.of(
        ("sm_100a", (64, 64), "plain"), 128, 10, (184, 80, 64), 2,
        (2058, "special functions"),
    ),
    Choice.of(
        ("sm_100a", (64, 64), "several functions"), 128, 10, (184, 80, 64), 6,
        (7612, "special functions"),
    ),
    Choice.of(
        ("sm_100a", (64, 64), "a function"), 128, 10, (184, 80, 64), 7,
        (3612, "special functions"),
    ),
    Choice.of(
        ("sm_100a", (64, 64), "integers"), 128, 10, (184, 80, 64), 0,
        (4213, "integers and comparisons"),
    ),
    Choice.of(
        ("sm_100a", (64, 64), "arithmetic"), 128, 10, (184, 80, 64), 2,
        (2137, "special functions"),
    ),
    Choice.of(
        ("sm_100a", (64, 128), "plain"), 128, 8, (184, 80, 64), 3,
        (2205, "special functions"),
    ),
    Choice.of(
        ("sm_100a", (64, 128), "several functions"), 128, 8, (184, 80, 64), 6,
        (7630, "special functions"),
    ),
    Choice.of(
        ("sm_100a", (64, 128), "a function"), 128, 8, (184, 80, 64), 6,
        (3742, "special functions"),
    ),
    Choice.of(
        ("sm_100a", (64, 128), "integers"), 128, 8, (184, 80, 64), 0,
        (4266, "integers and comparisons"),
    ),
    Choice.of(
        ("sm_100a", (64, 128), "arithmetic"), 128, 8, (184, 80, 64), 2,
        (2318, "special functions"),
    ),
    Choice.of(
        ("sm_100a", (96, 96), "plain"), 128, 5, (184, 80, 64), 3,
        (2205, "special functions"),
    ),
    Choice.of(
        ("sm_100a", (96, 96), "several functions"), 128, 5, (184, 80, 64), 6,
        (7630, "special functions"),
    ),
    Choice.of(
        ("sm_100a", (96, 96), "a function"), 128, 5, (184, 80, 64), 6,
        (3742, "special functions"),
    ),
    Choice.of(
        ("sm_100a", (96, 96), "integers"), 128, 5, (184, 80, 64), 0,
        (4266, "integers and comparisons"),
    ),
    Choice.of(
        ("sm_100a", (96, 96), "arithmetic"), 128, 5, (184, 80, 64), 2,
        (2318, "special functions"),
    ),
    Choice.of(
        ("sm_100a", (128, 128), "plain"), 128, 3, (184, 80, 64), 2,
        (2546, "tensor cores"),
    ),
    Choice.of(
        ("sm_100a", (128, 128), "several functions"), 128, 3, (184, 80, 64), 6,
        (7662, "special functions"),
    ),
    Choice.of(
        ("sm_100a", (128, 128), "a function"), 128, 3, (184, 80, 64), 6,
        (3865, "special functions"),
    ),
    Choice.of(
        ("sm_100a", (128, 128), "integers"), 128, 3, (184, 80, 64), 0,
        (4363, "integers and comparisons"),
    ),
    Choice.of(
        ("sm_100a", (128, 128), "arithmetic"), 128, 3, (184, 80, 64), 1,
        (2637, "tensor cores"),
    ),
    Choice.of(
        ("sm_100a", (192, 128), "plain"), 128, 8, (184, 80, 64), 1,
        (2954, "tensor cores"),
    ),
    Choice.of(
        ("sm_100a", (192, 128), "several functions"), 128, 8, (184, 80, 64), 6,
        (7715, "special functions"),
    ),
    Choice.of(
        ("sm_100a", (192, 128), "a function"), 128, 8, (184, 80, 64), 6,
        (4049, "special functions"),
    ),
    Choice.of(
        ("sm_100a", (192, 128), "integers"), 128, 8, (184, 80, 64), 0,
        (4511, "integers and comparisons"),
    ),
    Choice.of(
        ("sm_100a", (192, 128), "arithmetic"), 128, 8, (184, 80, 64), 1,
        (2989, "tensor cores"),
    ),
    Choice.of(
        ("sm_103a", (64, 64), "plain"), 128, 10, (184, 80, 64), 0,
        (1411, "tensor cores and special functions"),
    ),
    Choice.of(
        ("sm_103a", (64, 64), "several functions"), 128, 10, (184, 80, 64), 0,
        (4400, "special functions"),
    ),
    Choice.of(
        ("sm_103a", (64, 64), "a function"), 128, 10, (184, 80, 64), 0,
        (2408, "special functions"),
    ),
    Choice.of(
        ("sm_103a", (64, 64), "integers"), 128, 10, (184, 80, 64), 0,
        (4051, "integers and comparisons"),
    ),
    Choice.of(
        ("sm_103a", (64, 64), "arithmetic"), 128, 10, (184, 80, 64), 0,
        (1573, "tensor cores and special functions"),
    ),
    Choice.of(
        ("sm_103a", (64, 128), "plain"), 128, 8, (184, 80, 64), 0,
        (1755, "tensor cores"),
    ),
    Choice.of(
        ("sm_103a", (64, 128), "several functions"), 128, 8, (184, 80, 64), 0,
        (4450, "special functions"),
    ),
    Choice.of(
        ("sm_103a", (64, 128), "a function"), 128, 8, (184, 80, 64), 0,
        (2556, "special functions"),
    ),
    Choice.of(
        ("sm_103a", (64, 128), "integers"), 128, 8, (184, 80, 64), 0,
        (4109, "integers and comparisons"),
    ),
    Choice.of(
        ("sm_103a", (64, 128), "arithmetic"), 128, 8, (184, 80, 64), 0,
        (1868, "tensor cores"),
    ),
    Choice.of(
        ("sm_103a", (96, 96), "plain"), 128, 5, (184, 80, 64), 0,
        (1755, "tensor cores"),
    ),
    Choice.of(
        ("sm_103a", (96, 96), "several functions"), 128, 5, (184, 80, 64), 0,
        (4450, "special functions"),
    ),
    Choice.of(
        ("sm_103a", (96, 96), "a function"), 128, 5, (184, 80, 64), 0,
        (2556, "special functions"),
    ),
    Choice.of(
        ("sm_103a", (96, 96), "integers"), 128, 5, (184, 80, 64), 0,
        (4109, "integers and comparisons"),
    ),
    Choice.of(
        ("sm_103a", (96, 96), "arithmetic"), 128, 5, (184, 80, 64), 0,
        (1868, "tensor cores"),
    ),
    Choice.of(
        ("sm_103a", (128, 128), "plain"), 128, 3, (184, 80, 64), 0,
        (2184, "tensor cores"),
    ),
    Choice.of(
        ("sm_103a", (128, 128), "several functions"), 128, 3, (184, 80, 64), 0,
        (4539, "special functions"),
    ),
    Choice.of(
        ("sm_103a", (128, 128), "a function"), 128, 3, (184, 80, 64), 0,
        (2796, "tensor cores and special functions"),
    ),
    Choice.of(
        ("sm_103a", (128, 128), "integers"), 128, 3, (184, 80, 64), 0,
        (4213, "integers and comparisons"),
    ),
    Choice.of(
        ("sm_103a", (128, 128), "arithmetic"), 128, 3, (184, 80, 64), 0,
        (2261, "tensor cores"),
    ),
    Choice.of(
        ("sm_103a", (192, 128), "plain"), 128, 8, (184, 80, 64), 0,
        (2652, "tensor cores"),
    ),
    Choice.of(
        ("sm_103a", (192, 128), "several functions"), 128, 8, (184, 80, 64), 0,
        (4677, "special functions"),
    ),
    Choice.of(
        ("sm_103a", (192, 128), "a function"), 128, 8, (184, 80, 64), 0,
        (3116, "tensor cores"),
    ),
    Choice.of(
        ("sm_103a", (192, 128), "integers"), 128, 8, (184, 80, 64), 0,
        (4370, "integers and comparisons"),
    ),
    Choice.of(
        ("sm_103a", (192, 128), "arithmetic"), 128, 8, (184, 80, 64), 0,
        (2705, "tensor cores"),
    ),
)  # fmt: skip
