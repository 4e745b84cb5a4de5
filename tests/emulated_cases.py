"""Launches of the kernels in ``tests/compile/emulated_kernels``: sizes, inputs, and right results.

All results are exact: sums of whole numbers and of powers of two, rounded once or twice as the
kernel does.  Nothing here needs CuTe-DSL; `Case.function` says where a kernel is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Inputs = Mapping[str, Tensor]


@dataclass(frozen=True)
class Case:
    """A launch of a kernel.

    Attributes:
        name: what its record is called.
        function: module in ``emulated_kernels`` and the name of the host function in it.
        inputs: makes the tensors that the kernel reads or adds to, the same ones each time.
        outputs: what is written: right values by name, from the inputs.
        constants: further arguments of the host function.
        target: architecture.
    """

    name: str
    function: str
    inputs: Callable[[], Inputs]
    outputs: Callable[[Inputs], Inputs]
    constants: tuple[Any, ...] = ()
    target: str = "sm_100a"

    def tensors(self) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
        """Return the arguments, and pairs of those that are written with the right results."""
        inputs, outputs = _made(self)
        checked = [(torch.zeros_like(right), right) for right in outputs]
        return [*(given.clone() for given in inputs), *(given for given, _ in checked)], checked


@functools.cache
def _made(case: Case) -> tuple[list[Tensor], list[Tensor]]:
    """Return the inputs of a case and its right results, which nobody changes."""
    inputs = case.inputs()
    return list(inputs.values()), list(case.outputs(inputs).values())


def whole(generator: torch.Generator, *size: int, low: int = -4, high: int = 5) -> Tensor:
    """Return whole numbers from `low` up to `high` - 1, int32."""
    return torch.randint(low, high, size, generator=generator, dtype=torch.int32)


def seeded() -> torch.Generator:
    """Return a generator that draws the same numbers each time."""
    return torch.Generator().manual_seed(7)


def factors(rows: int, columns: int, depth: int) -> Callable[[], Inputs]:
    """Return what makes the factors of a matrix product, float16."""

    def make() -> Inputs:
        generator = seeded()
        return {
            "a": whole(generator, rows, depth).half(),
            "b": whole(generator, columns, depth).half(),
        }

    return make


def product(dtype: torch.dtype) -> Callable[[Inputs], Inputs]:
    """Return what multiplies the factors."""

    def make(inputs: Inputs) -> Inputs:
        return {"c": (inputs["a"].float() @ inputs["b"].float().T).to(dtype)}

    return make


def attention_inputs() -> Inputs:
    """Return queries of two numbers each, so that scores are from -4 to 4, keys and values."""
    generator = seeded()
    places = torch.randint(0, 64, (256, 2), generator=generator)
    signs = 2 * whole(generator, 256, 2, low=0, high=2) - 1
    return {
        "q": torch.zeros(256, 64).scatter_(1, places, signs.float()).half(),
        "k": whole(generator, 192, 64, low=-2, high=3).half(),
        "v": whole(generator, 192, 64).half(),
    }


def attention_outputs(inputs: Inputs) -> Inputs:
    """Return what softmax in base 2 makes of the values."""
    q, k, v = (inputs[name].float() for name in "qkv")
    scores = q @ k.T
    powers = torch.exp2(scores - scores.amax(1, keepdim=True))
    return {"out": powers @ v * (1 / powers.sum(1, keepdim=True))}


def softmax_outputs(inputs: Inputs) -> Inputs:
    """Return softmax in base 2 of each row."""
    powers = torch.exp2(inputs["x"] - inputs["x"].amax(1, keepdim=True))
    return {"y": powers * (1 / powers.sum(1, keepdim=True))}


def sums(inputs: Inputs) -> Inputs:
    """Return the sum of each row, and that of all."""
    rows = inputs["x"].sum(1, dtype=torch.int32)
    return {"sums": rows, "total": rows.sum(0, keepdim=True, dtype=torch.int32)}


def counts(inputs: Inputs) -> Inputs:
    """Return how often each number occurs, in all and in each block's share; and the blocks."""
    x, blocks = inputs["x"], 3
    shares = [
        torch.cat([x[at : at + 64] for at in range(64 * block, len(x), 64 * blocks)])
        for block in range(blocks)
    ]
    return {
        "counts": torch.bincount(x, minlength=64).int(),
        "parts": torch.stack([torch.bincount(share, minlength=64).int() for share in shares]),
        "arrived": torch.tensor([blocks], dtype=torch.int32),
    }


CASES = (
    # four tiles for a block: stages and accumulators are used again and again
    Case(
        "gemm_one_cta",
        "gemm_one_cta.gemm",
        factors(256, 128, 192),
        product(torch.float32),
        (1,),
    ),
    Case(
        "gemm_pair_256",
        "gemm_pair.gemm",
        factors(512, 256, 96),
        product(torch.float16),
        (256, (2, 2), 1),
    ),
    Case(
        "gemm_pair_128",
        "gemm_pair.gemm",
        factors(512, 192, 96),
        product(torch.float16),
        (128, (4, 1), 1),
    ),
    Case(
        "gemm_warpgroups",
        "gemm_warpgroups.gemm",
        factors(256, 128, 192),
        product(torch.float32),
        (1, False),
        "sm_90a",
    ),
    Case(
        "gemm_registers",
        "gemm_warpgroups.gemm",
        factors(256, 128, 192),
        product(torch.float32),
        (1, True),
        "sm_90a",
    ),
    Case("attention", "attention.attention", attention_inputs, attention_outputs, (1,)),
    Case(
        "softmax",
        "softmax.softmax",
        lambda: {"x": whole(seeded(), 5, 512, low=-6, high=7).float()},
        softmax_outputs,
        (2,),
    ),
    Case(
        "transpose",
        "transpose.transpose",
        lambda: {"x": whole(seeded(), 80, 32, low=-1000, high=1000)},
        lambda inputs: {"y": inputs["x"].T.contiguous()},
    ),
    Case(
        "cluster_sums",
        "cluster_sums.cluster_sums",
        lambda: {"x": whole(seeded(), 7, 128, low=-1000, high=1000)},
        sums,
        target="sm_90a",
    ),
    Case(
        "histogram",
        "histogram.histogram",
        lambda: {"x": whole(seeded(), 1000, low=0, high=64)},
        counts,
        target="sm_103a",
    ),
)
