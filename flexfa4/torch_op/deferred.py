"""Block masks made where no values are known: their blocks are a tensor of torch's graph.

``create_block_mask`` inside ``torch.compile``, ``torch.export`` or under fake tensors gives one.
Where the graph has run, it is a block mask like any other; one of fake tensors has no values to
look at (`BlockMask.density`, `BlockMask.to_dense`).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from flexfa4.block_mask import BlockMask
from flexfa4.errors import FakeBlockMaskError
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.evaluate import Values
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.frontend.tracing.trace import TextMod
from flexfa4.masks.snapshot import Snapshot
from flexfa4.masks.spec import Spec, reads
from flexfa4.torch_op import calls
from flexfa4.torch_op.arguments import Captured, bind, float_tensor, graph_of
from flexfa4.torch_op.tables import with_table


class DeferredBlockMask(BlockMask):
    """A block mask whose blocks are found when the graph runs."""

    def __init__(
        self, mask: Any, captured: Captured, spec: Spec, device: torch.device, counts_heads: bool
    ) -> None:
        sizes = spec.sizes
        self.mask = mask
        self.batch, self.heads = sizes.batch, sizes.heads
        self.q_len, self.kv_len = sizes.q_len, sizes.kv_len
        self.block_size = spec.block_size
        self._spec = spec
        self._device = device
        self._of_forms = {}
        self.counts_heads = counts_heads
        self.captures_tensors = len(captured.tensors) > 0
        # a snapshot: what changes afterwards in the graph does not change it
        tensors = [t.detach().clone() for t in captured.tensors]
        self.captured = Captured(captured.text, tensors, captured.ints, captured.floats)
        self.table = calls.block_kinds(self.captured, spec, device)

    @functools.cached_property
    def _bound(self) -> BoundGraph:  # type: ignore[override]
        text, tensors, ints, floats = self.captured
        return bind(text, tensors, ints, float_tensor(floats))

    @functools.cached_property
    def _blocks(self) -> MaskBlocks:  # type: ignore[override]
        if self._is_fake():
            raise FakeBlockMaskError
        assert self.table is not None
        graph = self._bound.graph
        # every load was in range when the table was made
        values = Values.of(self._bound, self._spec.known_sizes, device=self._device)
        blocks = MaskBlocks(graph, values, self._spec.space(graph), self.block_size)
        return with_table(blocks, self.table)

    @functools.cached_property
    def _snapshot(self) -> Snapshot:  # type: ignore[override]
        return Snapshot.for_good(TextMod(self._bound, self.captured.text, "mask"), self._bound)

    @property
    def device(self) -> torch.device:
        """The device of its captures."""
        return self._device

    def _is_fake(self) -> bool:
        return isinstance(self.table, FakeTensor)

    def _summary(self) -> str:
        return "blocks not known" if self._is_fake() else super()._summary()

    def check_current(self) -> None:
        """Do nothing: nobody can have changed what only the graph holds."""


def block_mask(mask: Any, captured: Captured, spec: Spec, device: torch.device) -> BlockMask:
    """Return a block mask of a mask that was resolved; `spec` has been checked."""
    return DeferredBlockMask(
        mask, captured, spec, device, "num_heads" in reads(graph_of(captured.text))
    )
