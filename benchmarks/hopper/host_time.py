"""What the host does: microseconds of a repeated small call, and the making of masks.

*Repeated*: calls of a problem so small that the device waits for the host, made one after the other
without waiting for their results; providers alternate and the least mean of a round counts.  With
gradients, a call is a forward and a backward pass, and there is a provider that computes nothing:
its time is that of torch's autograd, which wakes a thread for the device each time.

*Masks*: the time of a first call with a mask that is new, kernels being compiled, beyond that of a
repeated one; beside it torch's ``create_block_mask``, eager, for the same mask.
"""

from __future__ import annotations

import functools
import itertools
import random
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import torch
from hopper.cases import Case
from hopper.providers import BACKEND, OURS, PROVIDERS, Prepared, Problem, first_of
from hopper.speed import in_a_line
from hopper.timing import Call, synchronize
from hopper.variants import Mod, Shape, causal_mask

import flexfa4

REPEATED_MOST_US: Final = 40.0
"""What a repeated call may take of the host."""
TRAINED_MOST_US: Final = 120.0
"""What it may take with the gradients of its inputs."""
MASK_MOST_MS: Final = 10.0
"""What the making of a mask may take inside the first call."""

# ---- repeated calls ------------------------------------------------------------------------------

_SMALL: Final = Shape(1, 4, 4, 128, 128, 128)
REPEATED: Final = ("causal", "alibi")
_CALLS, _ROUNDS = 200, 12


def sdpa(problem: Problem) -> Prepared | None:
    """Return torch's own choice of backend, without the cost of naming one."""
    given = problem.mods.sdpa
    if given is None:
        return None
    attend = torch.nn.functional.scaled_dot_product_attention
    inputs = (problem.q, problem.k, problem.v)
    return Prepared(lambda: attend(*inputs, **given), inputs=inputs)


class _Nothing(torch.autograd.Function):
    """Outputs and gradients that nothing is written to."""

    @staticmethod
    def forward(ctx: Any, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*inputs)
        return torch.empty_like(inputs[0])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return tuple([torch.empty_like(x) for x in ctx.saved_tensors])


def autograd_alone(problem: Problem) -> Prepared:
    """Return a call that computes nothing, forward and backward."""
    inputs = (problem.q, problem.k, problem.v)
    return Prepared(lambda: _Nothing.apply(*inputs), inputs=inputs)


def repeated(variant: str, device: torch.device, *, gradients: bool = False) -> dict[str, Any]:
    """Return microseconds of a repeated small call by each provider, with gradients or without."""
    torch._dynamo.reset()
    torch._functorch.config.donated_buffer = False
    problem = Problem.of(Case(f"repeated-{variant}", "host", variant, _SMALL), device)
    providers = {**PROVIDERS, "SDPA": sdpa}
    del providers["cuDNN"]
    if gradients:
        providers["autograd alone"] = autograd_alone
    found: dict[str, Any] = {}
    calls: dict[str, Call] = {}
    for name, prepare in providers.items():
        try:
            prepared = prepare(problem.apart())
            if prepared is not None and (prepared.inputs or not gradients):
                call = trained(prepared) if gradients else prepared.call
                call()
                calls[name] = call
        except Exception as error:  # of whatever kind: peers are not ours
            found[name] = {"failed": in_a_line(error)}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            times[name].append(_microseconds(call, device))
    found |= {name: {"us": min(each), "all_us": each} for name, each in times.items()}
    named = f"{variant}, with gradients" if gradients else variant
    limit = TRAINED_MOST_US if gradients else REPEATED_MOST_US
    return {"variant": named, "limit_us": limit, "providers": found}


def trained(prepared: Prepared) -> Call:
    """Return a provider's forward pass and the gradients of its inputs, as one call."""
    for tensor in prepared.inputs:
        tensor.requires_grad_()
    do = torch.ones_like(first_of(prepared.call()))
    return lambda: torch.autograd.grad(first_of(prepared.call()), prepared.inputs, do)


def _microseconds(call: Call, device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    for _ in range(_CALLS):
        call()
    seconds = time.perf_counter() - start
    synchronize(device)
    return seconds / _CALLS * 1e6


# ---- masks ---------------------------------------------------------------------------------------

_MASK_SHAPE: Final = Shape(4, 4, 4, 8192, 128, 128)

Maker = Callable[[int, torch.device], "tuple[int, Mod]"]
"""From a number and a device to a mask that no other number gives, and the length it is for."""


def _new_causal(number: int, device: torch.device) -> tuple[int, Mod]:
    return _MASK_SHAPE.length - 128 * number, lambda b, h, i, j: causal_mask(b, h, i, j)


def _new_window(number: int, device: torch.device) -> tuple[int, Mod]:
    distance = 1000 + number
    return _MASK_SHAPE.length, lambda b, h, i, j: (i >= j) & (i - j <= distance)


def _new_documents(number: int, device: torch.device) -> tuple[int, Mod]:
    draw, length = random.Random(number), _MASK_SHAPE.length
    begins = [sorted(draw.sample(range(length), 4)) for _ in range(_MASK_SHAPE.batch)]
    ids = torch.tensor(
        [[sum(b <= at for b in each) for at in range(length)] for each in begins], device=device
    )
    return length, lambda b, h, i, j: (i >= j) & (ids[b, i] == ids[b, j])


MAKERS: Final[dict[str, Maker]] = {
    "causal": _new_causal,
    "window": _new_window,
    "documents": _new_documents,
}
_NEW_MASKS: Final = 7


def masks(name: str, device: torch.device) -> dict[str, Any]:
    """Return milliseconds of the making of new masks, ours and torch's."""
    from torch.nn.attention.flex_attention import create_block_mask

    maker, shape = MAKERS[name], _MASK_SHAPE
    batch = shape.batch if name == "documents" else None
    dims = (shape.batch, shape.heads, shape.length, shape.dim)
    q, k, v = (torch.randn(dims, device=device, dtype=torch.bfloat16) for _ in range(3))
    mine, torchs = [], []
    for number in range(_NEW_MASKS):
        length, mask = maker(number, device)
        call = _attention(q[:, :, :length], k[:, :, :length], v[:, :, :length], mask)
        first = _milliseconds(call, device)
        again = min(_milliseconds(call, device) for _ in range(5))
        mine.append(first - again)
        sizes = (batch, None, length, length)
        create = functools.partial(create_block_mask, mask, *sizes, device=device)
        torchs.append(_milliseconds(create, device))
    return {
        "mask": name,
        "limit_ms": MASK_MOST_MS,
        OURS: _first_and_later(mine),
        "create_block_mask": _first_and_later(torchs),
    }


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mod) -> Call:
    return lambda: flexfa4.attention(q, k, v, block_mask=mask, backend=BACKEND)


def _milliseconds(call: Call, device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    return (time.perf_counter() - start) * 1e3


def _first_and_later(times: list[float]) -> dict[str, float]:
    """Return the first time, which also loads and compiles, and the median of those after it."""
    return {"first_ms": times[0], "ms": statistics.median(itertools.islice(times, 2, None))}
