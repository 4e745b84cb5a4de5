"""Orders of work compared: longest tiles first by sections of heads, against the natural order.

The order is numbers that the forward kernel is given, so the same compiled kernel runs both: an
executor that stands in for the device changes them on the way.  Under a causal mask the last
queries have the most work; the natural order comes to them last, and goes through the heads one
by one.  Beside them stands the first order with a block for each tile, which the hardware hands
out: what blocks that stay and fetch their work gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import torch
from hopper.cases import Case
from hopper.correctness import expected, verdict
from hopper.providers import BACKEND, OURS, PROVIDERS, Problem
from hopper.speed import Bench
from hopper.timing import Call, interleaved
from hopper.variants import Shape

import flexfa4
from flexfa4.kernels.architectures import architecture
from flexfa4.kernels.compile.compiled_kernel import CompiledKernel, Dim3
from flexfa4.kernels.forward.call import PlannedCall
from flexfa4.kernels.forward.function import launched, planned
from flexfa4.kernels.launch.executor import Executor, cuda_executor
from flexfa4.kernels.launch.target import Target, standing_in, target_of
from flexfa4.kernels.request import Inputs, Request
from flexfa4.primitives.scheduler import NUMBERS, Sections, Work

SHAPES: Final = {
    f"{sharing}-{length // 1024}k": Shape(32768 // length, 16, 16 // group, length, 128, 128)
    for length in (8192, 32768)
    for sharing, group in (("mha", 1), ("gqa", 8), ("mqa", 16))
}


@dataclass(frozen=True)
class NaturalOrder:
    """Launches on a device with another order of work: by heads, and in them by position.

    Attributes:
        device: what launches.
    """

    device: Executor

    def load(self, kernel: CompiledKernel) -> Any:
        """Make a kernel ready, see `Executor.load`."""
        return self.device.load(kernel)

    def launch(
        self,
        kernel: CompiledKernel,
        grid: Dim3,
        values: Sequence[Any],
        *,
        stream: int = 0,
        memory: Sequence[Any] = (),
    ) -> None:
        """Launch a kernel, see `Executor.launch`."""
        at = [parameter.name for parameter in kernel.signature].index(NUMBERS[0])
        end = at + len(NUMBERS)
        given = [*values[:at], *natural(values[at:end]), *values[end:]]
        self.device.launch(kernel, grid, given, stream=stream, memory=memory)


def natural(numbers: Sequence[int]) -> list[int]:
    """Return the numbers of an order, as `Sections.numbers` has them, for the natural one."""
    given = Sections.from_numbers(list(numbers))
    heads = given.heads.size
    work = Work(given.tiles, heads, given.items // (given.tiles * heads))
    return Sections.of(work, pairs=1).numbers()


def measured(name: str, bench: Bench) -> dict[str, Any]:
    """Return the times of both orders of a causal call."""
    problem = Problem.of(Case(f"order-{name}", "order", "causal", SHAPES[name]), bench.device)
    right = expected(problem)
    calls = {
        "longest first": attention(problem),
        "natural": in_natural_order(problem),
        "a block for each": with_a_block_for_each(problem),
    }
    for order, call in calls.items():
        said = verdict(call(), right)
        if not said.right:
            return {"failed": f"{order}: wrong: off by {said.error:.2g}"}
    times = interleaved(calls, bench.clock, bench.rounds)
    return {"order": name, "shape": asdict(problem.case.shape), "ms": times}


def attention(problem: Problem) -> Call:
    """Return the call as it is."""
    prepared = PROVIDERS[OURS](problem)
    assert prepared is not None
    return prepared.call


def in_natural_order(problem: Problem) -> Call:
    """Return the call in the natural order of work."""
    device, call = problem.q.device, attention(problem)
    properties = torch.cuda.get_device_properties(device)
    target = Target(
        NaturalOrder(cuda_executor(device.index)),
        (properties.major, properties.minor),
        properties.multi_processor_count,
    )

    def run() -> Any:
        with standing_in(target):
            return call()

    return run


def with_a_block_for_each(problem: Problem) -> Call:
    """Return the call by a kernel whose blocks work on one tile of queries each."""
    q, k, v, mask = problem.q, problem.k, problem.v, problem.mods.mask
    assert mask is not None
    made = flexfa4.create_block_mask(mask, q_len=q.shape[2], kv_len=k.shape[2], device=q.device)
    request = Request(None, made.blocks_on(q.device), q.shape[3] ** -0.5, frozenset(), False)
    inputs, target = Inputs(q, k, v, None), target_of(q.device)
    assert target is not None
    known = architecture(BACKEND)
    call = planned(known, request, inputs, False, known.name_of(target.capability))
    assert isinstance(call, PlannedCall)
    call = replace(call, plan=replace(call.plan, fetched=False))
    ready = launched(call, request, inputs, target)
    return lambda: ready.forward(request, inputs)[0]
