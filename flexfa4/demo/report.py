"""What the demo shows: whether both sides agree, the tables, the picture.

*Agreement.*  Both sides compute the same function in fp32, in different orders, so their losses
differ by rounding.  How much rounding matters here is measured, not guessed: flexfa4 trains once
more in fp64, and the largest distance between its fp32 and fp64 losses is the size of fp32's
rounding in this model.  Two correct fp32 runs are each about that far from the exact loss, hence
at most twice as far from each other, plus the rounding of the fp32 loss itself.  A wrong mask or
bias on either side would show in this comparison: fp64 moves with the wrong side, the other side
stays away from both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.table import Table

from flexfa4.demo.corpus import load
from flexfa4.demo.model import Sparse
from flexfa4.demo.train import Job, Run
from flexfa4.plotting.figures import PARTIAL, SEEN
from flexfa4.plotting.masks import draw_blocks, draw_tokens

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ROWS = 8  # of the table of losses
FP32_EPSILON = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Comparison:
    """The three runs of a demo.

    Attributes:
        job: sizes of the flexfa4 run; the others have the same.
        flexfa4: attention by flexfa4, fp32.
        dense: attention in plain torch, fp32.
        exact: attention by flexfa4, fp64.
    """

    job: Job
    flexfa4: Run
    dense: Run
    exact: Run

    @property
    def difference(self) -> float:
        """Largest difference between the losses of the two fp32 sides, nats."""
        return max(abs(a - b) for a, b in zip(self.flexfa4.losses, self.dense.losses, strict=True))

    @property
    def rounding(self) -> float:
        """What fp32's rounding accounts for, nats: see the module's docstring."""
        of_fp32 = max(
            abs(a - b) for a, b in zip(self.flexfa4.losses, self.exact.losses, strict=True)
        )
        return 2 * of_fp32 + 4 * FP32_EPSILON * max(self.exact.losses)

    @property
    def agrees(self) -> bool:
        """Whether the two sides differ by no more than rounding (NaN agrees with nothing)."""
        return self.difference <= self.rounding

    @property
    def skipped(self) -> float:
        """Share of blocks that flexfa4 skipped, on average over the steps."""
        return sum(self.flexfa4.skipped) / len(self.flexfa4.skipped)


def print_setup(job: Job, console: Console) -> None:
    """Say what is trained on what."""
    shape = job.shape
    console.print(
        f"A byte-level transformer ({shape.layers} layers, {shape.heads} heads on "
        f"{shape.kv_heads} key heads, width {shape.width}) reads the Python standard library, "
        f"packed into sequences of {job.length} bytes. Its attention has ALiBi's bias, stays "
        f"within a document and sees {shape.window} keys at most.\n"
    )


def print_tables(comparison: Comparison, console: Console) -> None:
    """Print both loss curves and what each side took."""
    console.print(_losses(comparison))
    verdict = "they agree" if comparison.agrees else "THEY DO NOT AGREE"
    console.print(
        f"Largest difference {comparison.difference:.1e}; fp32 rounding accounts for "
        f"{comparison.rounding:.1e} (flexfa4 in fp32 beside fp64): {verdict}.\n"
    )
    console.print(_costs(comparison))


def _losses(comparison: Comparison) -> Table:
    table = Table(title="loss (nats per byte)")
    for name in ("step", "flexfa4", "dense torch", "difference"):
        table.add_column(name, justify="right")
    steps = comparison.job.steps
    stride = -(-steps // MOST_ROWS)
    for step in reversed(range(steps, 0, -stride)):  # evenly spaced, and the last one is shown
        ours, dense = comparison.flexfa4.losses[step - 1], comparison.dense.losses[step - 1]
        table.add_row(str(step), f"{ours:.6f}", f"{dense:.6f}", f"{ours - dense:+.1e}")
    return table


def _costs(comparison: Comparison) -> Table:
    job, ours, dense = comparison.job, comparison.flexfa4, comparison.dense
    table = Table(title="cost of training")
    for name in ("", "flexfa4", "dense torch", "ratio"):
        table.add_column(name, justify="left" if not name else "right")
    fast, slow = ours.tokens_per_second(job), dense.tokens_per_second(job)
    table.add_row("tokens/s (median step)", f"{fast:,.0f}", f"{slow:,.0f}", f"{fast / slow:.1f}x")
    table.add_row("blocks skipped (mean of all steps)", f"{comparison.skipped:.1%}", "0.0%", "")
    table.add_row("peak memory of training", *_memory(ours.peak_memory, dense.peak_memory))
    return table


def _memory(ours: int | None, dense: int | None) -> tuple[str, str, str]:
    """Return both sizes and how much less the first is, as text."""
    if ours is None or dense is None:
        return ("not told by this system", "not told by this system", "")
    ratio = f"{dense / ours:.1f}x less" if ours else ""
    return (f"{ours / 2**20:,.0f} MiB", f"{dense / 2**20:,.0f} MiB", ratio)


def draw(comparison: Comparison, figure: Figure) -> int:
    """Draw the mask of one sequence, its blocks, and both loss curves.

    Returns:
        The step whose mask is drawn, counted from 1: its sequence holds the most documents.
    """
    job = comparison.job
    documents = load(job.steps * job.batch, job.length).documents
    most = int((documents[:, -1] - documents[:, 0]).argmax())  # where the most documents meet
    step = most // job.batch + 1
    attention = Sparse(job.shape)
    attention.prepare(documents[most : most + 1])
    assert attention.block_mask is not None
    tokens, blocks, curves = figure.subplots(1, 3)
    draw_tokens(tokens, attention.block_mask)
    draw_blocks(blocks, attention.block_mask)
    for axes in (tokens, blocks):  # the table shows a mean, this is one mask
        axes.set_title(f"step {step}, {axes.get_title()}", fontsize="medium")
    steps = range(1, job.steps + 1)
    marker = "o" if job.steps == 1 else ""
    curves.plot(steps, comparison.dense.losses, color=PARTIAL, lw=5, marker=marker, label="dense")
    curves.plot(
        steps, comparison.flexfa4.losses, color=SEEN, lw=1.5, marker=marker, label="flexfa4"
    )
    curves.set_xlabel("step")
    curves.set_ylabel("loss (nats per byte)")
    curves.set_title("training loss", fontsize="medium")
    curves.set_box_aspect(1)  # as high as the masks
    curves.spines[["top", "right"]].set_visible(False)
    curves.grid(alpha=0.3)
    curves.legend(frameon=False)
    return step
