"""From the tensors of a call to the launch that makes its table of work items."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.sizes import Sizes
from flexfa4.kernels.compile.compiled_kernel import CompiledKernel
from flexfa4.kernels.emit.captures import capture_values
from flexfa4.kernels.launch.executor import Executor
from flexfa4.kernels.varlen import table
from flexfa4.kernels.varlen.plan import TablePlan
from flexfa4.primitives.scheduler import Work


@dataclass(frozen=True, eq=False)
class Ends:
    """The cumulative lengths of a call, on its device, int32 or int64 ``(sequences + 1,)``."""

    q: torch.Tensor
    kv: torch.Tensor

    @property
    def sequences(self) -> int:
        """How many sequences there are."""
        return self.q.shape[0] - 1

    @property
    def wide(self) -> tuple[bool, bool]:
        """Whether each of them is of 64 bits."""
        return self.q.dtype is torch.int64, self.kv.dtype is torch.int64


@dataclass(frozen=True, eq=False)
class TableCall:
    """What makes the tables of calls of one form.

    Attributes:
        plan: of the kernel.
        kernel: the kernel.
        sizes: of the table.
        numbers: those of `flexfa4.kernels.varlen.plan.NUMBERS`.
    """

    plan: TablePlan
    kernel: CompiledKernel
    sizes: table.Sizes
    numbers: tuple[int, ...]

    def launch(
        self, executor: Executor, ends: Ends, interval: BoundGraph | None, stream: int
    ) -> torch.Tensor:
        """Make the table of a call: launch the kernel, and return what it writes.

        Args:
            executor: who launches.
            ends: the cumulative lengths, each contiguous.
            interval: of the mask, with what it captures; None for none.
            stream: where the launch takes its turn.
        """
        made = torch.empty(self.sizes.numbers, dtype=torch.int32, device=ends.q.device)
        at = made.data_ptr()
        values: list[int | float] = [ends.q.data_ptr(), ends.kv.data_ptr(), at, *self.numbers]
        captured: tuple[torch.Tensor, ...] = ()
        if interval is not None:
            values += capture_values(interval, self.plan.captures, at)
            captured = interval.tensors
        memory = (ends.q, ends.kv, made, *captured)
        executor.launch(self.kernel, (1, 1, 1), values, stream=stream, memory=memory)
        return made


def numbers_of(
    sizes: table.Sizes, heads: Sizes, items: Work, pairs: int, cached_keys: int
) -> tuple[int, ...]:
    """Return the numbers of calls of one form, see `flexfa4.kernels.varlen.plan.NUMBERS`.

    Args:
        sizes: of the table.
        heads: how many the call has.
        items: how many heads have items.
        pairs: heads that are worked on together, see `flexfa4.primitives.scheduler`.
        cached_keys: keys of a head that fit the cache, with their values.
    """
    groups = table.groups_of(sizes.kv_total, cached_keys)
    levels_log2 = table.LEVELS_LOG2 - (groups.bit_length() - 1)
    return (
        sizes.sequences,
        sizes.q_total,
        sizes.kv_total,
        heads.heads,
        heads.kv_heads,
        items.heads,
        min(pairs, items.heads),
        sizes.least,
        sizes.most,
        -(-sizes.kv_total // groups),
        levels_log2,
    )
