"""The demo's verdict depends on measured rounding, and its tables and picture show the runs."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from matplotlib.colors import to_hex
from rich.console import Console

from flexfa4.demo.model import Shape
from flexfa4.demo.report import Comparison, draw, print_tables
from flexfa4.demo.train import Job, Run
from flexfa4.plotting.figures import PARTIAL, SEEN, new_figure

JOB = Job("flexfa4", 3, 1, 512, Shape(window=128))
EXACT = [5.5, 4.0, 3.0]
MIB = 2**20


def comparison(ours: list[float], dense: list[float]) -> Comparison:
    return Comparison(
        JOB,
        Run(ours, [9.0, 0.1, 0.1], [0.4, 0.5, 0.6], peak_memory=10 * MIB),
        Run(dense, [9.0, 0.4, 0.4], peak_memory=250 * MIB),
        Run(EXACT),
    )


def off(by: float) -> list[float]:
    return [loss + by for loss in EXACT]


@pytest.mark.parametrize(
    ("ours", "dense", "agrees"),
    [
        (off(1e-6), off(-1e-6), True),  # as far apart as two fp32 runs may be
        (off(0), off(1e-6), True),  # within the rounding of the fp32 loss itself
        (off(0), off(1e-4), False),
        (off(1e-6), off(-1e-4), False),
        (off(0), off(math.nan), False),
        (off(math.nan), off(math.nan), False),
    ],
)
def test_the_sides_agree_when_they_differ_by_rounding_only(
    ours: list[float], dense: list[float], agrees: bool
) -> None:
    assert comparison(ours, dense).agrees is agrees


def test_the_tables_show_losses_speed_skipped_blocks_and_memory() -> None:
    text = io.StringIO()
    print_tables(comparison(off(0), off(1e-4)), Console(file=text, width=100))
    shown = " ".join(text.getvalue().replace("│", " ").split())
    assert "1 5.500000 5.500100 -1.0e-04" in shown
    assert "tokens/s (median step) 5,120 1,280 4.0x" in shown
    assert "blocks skipped (mean of all steps) 50.0% 0.0%" in shown
    assert "peak memory of training 10 MiB 250 MiB 25.0x less" in shown
    assert "THEY DO NOT AGREE" in shown


@pytest.mark.parametrize(
    ("steps", "shown"),
    [
        (1, [1]),
        (3, [1, 2, 3]),
        (40, [5, 10, 15, 20, 25, 30, 35, 40]),
        (41, [5, 11, 17, 23, 29, 35, 41]),
    ],
)
def test_the_steps_in_the_table_are_evenly_spaced_up_to_the_last(
    steps: int, shown: list[int]
) -> None:
    run = Run([3.0] * steps, [0.1] * steps, [0.5] * steps)
    text = io.StringIO()
    job = replace(JOB, steps=steps)
    print_tables(Comparison(job, run, run, run), Console(file=text, width=100))
    assert [int(row) for row in re.findall(r"│ +(\d+) │ 3\.0", text.getvalue())] == shown


def test_the_picture_shows_the_mask_its_blocks_and_both_curves() -> None:
    figure = new_figure(width=9, height=4)
    runs = comparison(off(0), off(1e-6))
    step = draw(runs, figure)
    tokens, blocks, curves = figure.axes
    drawn_tokens, drawn_blocks = (axes.images[0].get_array() for axes in (tokens, blocks))
    assert tokens.get_title().startswith(f"step {step}, scores: ")
    assert blocks.get_title().startswith(f"step {step}, blocks of 128 x 128: ")
    assert drawn_tokens is not None and drawn_tokens.shape == (512, 512)
    assert drawn_blocks is not None and drawn_blocks.shape == (4, 4)
    lines: Any = curves.lines
    drawn = {to_hex(line.get_color()).upper(): list(line.get_ydata()) for line in lines}
    assert drawn == {PARTIAL: runs.dense.losses, SEEN: runs.flexfa4.losses}
