"""The demo: train a small language model with flexfa4 beside the same model in plain torch.

`run` is what ``flexfa4 demo`` calls.  The stages: `corpus` (text), `model` (transformer and the two
attentions), `train` (runs in processes of their own), `report` (comparison, tables, picture).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from flexfa4.demo import report
from flexfa4.demo.model import Shape
from flexfa4.demo.train import Job, train_in_turn
from flexfa4.errors import ArgumentError
from flexfa4.plotting.figures import new_figure


@dataclass(frozen=True)
class Options:
    """What the user chooses.

    Attributes:
        steps: optimiser steps, at least 1.
        length: positions in a sequence, at least 2.
        folder: where the picture goes; made where it does not exist.
    """

    steps: int = 40
    length: int = 2048
    folder: Path = Path("flexfa4-demo")

    def __post_init__(self) -> None:
        defaults = {field.name: field.default for field in fields(self)}
        for name, field, least in (("--steps", "steps", 1), ("--seq-len", "length", 2)):
            value = getattr(self, field)
            if value < least:
                raise ArgumentError(
                    name=name,
                    found_value=value,
                    expected=f"at least {least}",
                    rewrite=f"flexfa4 demo {name} {defaults[field]}",
                )


def run(options: Options, console: Console) -> bool:
    """Train both sides in turn, print what came out and save the picture.

    Returns:
        Whether the losses agree to rounding.

    Raises:
        ArgumentError: more text was asked for than the standard library has, or the folder cannot
            be made.
        MissingPackageError: matplotlib is not installed.
    """
    figure = new_figure(width=11.0, height=4.1)  # the first thing that could fail, before training
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(
            name="--out",
            found_value=str(options.folder),
            expected="a folder, or a path where one can be made",
            rewrite=f"another path: {error.strerror}",
        ) from None
    shape = Shape()
    jobs = {
        "flexfa4": Job("flexfa4", options.steps, 1, options.length, shape),
        "dense torch": Job("dense", options.steps, 1, options.length, shape),
        "flexfa4 in fp64": Job("flexfa4", options.steps, 1, options.length, shape, double=True),
    }
    report.print_setup(jobs["flexfa4"], console)
    columns = (
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        tasks = [progress.add_task(name, total=options.steps) for name in jobs]
        runs = train_in_turn(list(jobs.values()), lambda index: progress.advance(tasks[index]))
    comparison = report.Comparison(jobs["flexfa4"], *runs)
    report.print_tables(comparison, console)
    path = options.folder / "flexfa4-demo.png"
    step = report.draw(comparison, figure)
    figure.savefig(path)
    console.print(f"picture: {path}, with the mask of step {step}", soft_wrap=True)
    return comparison.agrees
