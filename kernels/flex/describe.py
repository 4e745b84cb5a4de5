"""What torch's FlexAttention makes of a mod, in words, for `flexfa4.explain`."""

from __future__ import annotations

from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.ir import I32, topological
from flexfa4.frontend.sizes import Sizes
from flexfa4.kernels.emit.errors import KernelLimitError
from flexfa4.kernels.emit.widths import Ranges
from flexfa4.kernels.flex.function import plain, plan_mod
from flexfa4.kernels.flex.source import mod_source
from flexfa4.kernels.refusal import Refusal

Row = tuple[str, str]

_LENGTH = 4096  # whatever the lengths are, within some millions: integers are as wide
_SERVED = (
    'backend="flex", torch\'s compiled FlexAttention: bf16, fp16 and fp32, heads of 16 dimensions'
    "\nand more, where torch.compile and Triton work; otherwise torch code on the GPU"
)
_INSTEAD = "the CPU backend's torch code on the GPU, which serves every mod"


def describe_on_torch(bound: BoundGraph) -> list[Row]:
    """Return rows about a mod on GPUs that there are no kernels of ours for."""
    try:
        numbers = plain(bound)
        learned = frozenset(
            buffer
            for buffer, tensor in zip(numbers.graph.buffers, numbers.tensors, strict=True)
            if tensor.requires_grad and numbers.graph.kind == "score"
        )
        plan = plan_mod(numbers, Sizes(1, 1, 1, _LENGTH, _LENGTH), learned)
        source = mod_source(plan)
    except KernelLimitError as error:
        refused = Refusal.of(error)
        return [
            ("not by torch", f"{refused.found};\nserved: {refused.allowed}"),
            ("instead", _INSTEAD),
        ]
    rows = [("instead", _SERVED)]
    if numbers.graph is not bound.graph:
        rows.append(("vectors", "taken apart: each element is read and computed for each score"))
    ranges = Ranges(plan.graph, plan.captures)
    integers = [node for node in topological(plan.graph.root) if node.dtype is I32]
    if any(ranges.width(node) == 64 for node in integers):
        rows.append(("integers", "some are 64 bits wide, for 32 are not proved to hold them"))
    if any(not load.in_range for load in plan.captures.loads):
        rows.append(("captured tensors", "some are read at places that are compared with the size"))
    copies = sum(buffer in learned for buffer in source.tensors)
    if copies:
        rows.append(("gradients", _learned(copies)))
    return rows


def _learned(copies: int) -> str:
    some = "one fp32 copy" if copies == 1 else f"{copies} fp32 copies, one for each read"
    return f"of captured tensors by atomic additions, from {some}; the order of sums varies"
