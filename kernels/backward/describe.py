"""What the backward pass of a call does, in words, for `flexfa4.explain` and the shell."""

from __future__ import annotations

from typing import Final

from flexfa4.frontend.ir import F32, Graph
from flexfa4.kernels.backward.architecture import BackwardKernels
from flexfa4.kernels.backward.call import summed_in_kernel
from flexfa4.kernels.emit.captures import loads_of
from flexfa4.kernels.emit.errors import KernelLimitError
from flexfa4.kernels.emit.gradient import GradientProgram, Over, over, prepare_gradient

_SUMS: Final[dict[Over, str]] = {
    "pair": "key",
    "key": "key",
    "query": "query",
    "distance": "distance from key to query",
    "element": "element",
}


def gradients_in_words(
    kernels: BackwardKernels, head_dims: tuple[int, int], score: Graph | None
) -> str:
    """Return how gradients are computed.

    Args:
        kernels: the architecture's.
        head_dims: of q and k, and of v.
        score: the score mod, if there is one.
    """
    buffers = () if score is None else score.buffers
    floats = frozenset(b for b in buffers if b.dtype is F32)
    summed = floats if score is None else summed_in_kernel(score, floats)
    try:
        program = prepare_gradient(score, summed)
    except KernelLimitError:
        program = None
    tiling = None if program is None else kernels.tiling(head_dims, program)
    if program is None or tiling is None:
        return "computed by the CPU backend's torch code on the GPU, from out and lse"
    count = "three kernels"
    if kernels.finishes_dq(tiling):
        count += ", or two where queries meet few tiles of keys"
    lines = [
        f"{count}, from out and lse; tiles of {tiling.queries} queries by {tiling.keys} keys;"
        f" {kernels.dq_in_words(tiling)}; derivative of the mod: {_derivative(program)}"
    ]
    for buffer in buffers:
        if score is not None and buffer in summed:
            loads = [load for load in loads_of(score) if load.attr == buffer]
            kinds = dict.fromkeys(_SUMS[kind] for load in loads if (kind := over(load)))
            lines.append(f"of {buffer.name}: summed up in the kernel for each {', '.join(kinds)}")
        elif buffer in floats:
            lines.append(f"of {buffer.name}: as the CPU backend computes it, on the GPU (slower)")
    return "\n".join(lines)


def _derivative(program: GradientProgram) -> str:
    if program.derivative is not None:
        return "computed for each score"
    return "1" if program.factor is None else "a number of each query, at most"
