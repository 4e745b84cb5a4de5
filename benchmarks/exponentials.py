"""2^x by additions and products, and a row's softmax around it: errors and instructions, no GPU.

    python benchmarks/exponentials.py                # the tables of docs/notes/exponentials.md

Instructions are those of a kernel whose threads do nothing but what Blackwell's softmax warps do to
the rows of a tile of 128 keys, compiled for sm_100a and disassembled: of its loop, what computes,
without reading scores and writing probabilities, which go through global memory there.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")

import torch
from blackwell.loops import natural_loops
from blackwell.sass import disassembled, parsed

from flexfa4.frontend.analysis.bounds import premises
from flexfa4.frontend.sizes import Sizes
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.emit.captures import capture_plan
from flexfa4.kernels.emit.program import prepare_score, score_promises
from flexfa4.primitives.exponentials import POLYNOMIALS, EmulatedFraction, emulated_exp2

sys.path.append(str(Path(__file__).parents[1]))
from tests.emulate.whole_row_kernels import RowWork
from tests.emulate.whole_rows import compiled

HEADS, LENGTH = 16, 4096
SIZES: Final = Sizes(1, HEADS, HEADS, LENGTH, LENGTH)
SLOPES, BIAS = torch.rand(HEADS), torch.rand(HEADS, LENGTH)

MODS: Final[dict[str, Callable[..., Any]]] = {
    "ALiBi": lambda score, b, h, q, kv: score + SLOPES[h] * (kv - q),
    "ALiBi of distances": lambda score, b, h, q, kv: score - SLOPES[h] * (q - kv).abs(),
    "a bias for each key": lambda score, b, h, q, kv: score + BIAS[h, kv],
    "softcap": lambda score, b, h, q, kv: 30.0 * torch.tanh(score / 30.0),
}
KINDS: Final[dict[str, tuple[str, ...]]] = {
    "on pairs": ("FFMA2", "FADD2", "FMUL2"),
    "fp32": ("FFMA", "FADD", "FMUL"),
    "maxima": ("FMNMX", "FMNMX3"),
    "MUFU": ("MUFU",),
    "conversions": ("F2FP",),
    "selections": ("FSEL",),
    "bits": ("LEA", "R2P", "LOP3", "SHF", "ISETP", "VIADDMNMX", "VIMNMX"),
}
"""What computes, by opcodes without modifiers."""


def errors() -> Iterator[str]:
    """Yield the rows of the table of relative errors."""
    x = torch.arange(1 << 24).float() / (1 << 24) - 1
    exact = torch.exp2(x.double())
    yield "| 2^x on [-1, 0) | in fp32 | rounded to bf16 |"
    yield "|---|---|---|"
    forms = {f"degree {degree}": emulated_exp2(x, degree) for degree in POLYNOMIALS}
    for name, found in {**forms, "rounded once": torch.exp2(x)}.items():
        single, half = ((f.double() / exact - 1).abs().max() for f in (found, found.bfloat16()))
        yield f"| {name} | {single:.2e} | {half:.2e} |"


def cases() -> dict[str, tuple[RowWork, Any]]:
    """Return what is compiled: work and the captures of its mod, by name."""
    found: dict[str, tuple[RowWork, Any]] = {"softmax alone": (RowWork(), None)}
    for degree in POLYNOMIALS:
        emulated = EmulatedFraction(1, 8, degree)
        found[f"1/8 emulated, degree {degree}"] = (RowWork(emulated=emulated), None)
    found["all emulated, degree 3"] = (RowWork(emulated=EmulatedFraction(1, 1)), None)
    found["limits of the row"] = (RowWork(limits=True), None)
    for name, mod in MODS.items():
        bound = resolve(mod, "score")
        promises = score_promises(bound.graph, premises(bound, SIZES).domain(), 0.125)
        program = prepare_score(bound.graph, promises)
        found[name] = (RowWork(program, bound.graph, capture_plan(bound, SIZES)), bound)
    return found


def instructions(work: RowWork, bound: Any) -> Counter[str]:
    """Return what a warp executes for a tile, by kind."""
    kernel = parsed(disassembled(compiled(work, bound).cubin))
    _, body = max(natural_loops(kernel), key=lambda loop: len(loop[1]))
    names = [i.name for block in body for i in kernel.blocks[block].instructions]
    kinds = {name: kind for kind, opcodes in KINDS.items() for name in opcodes}
    return Counter(kinds[name] for name in names if name in kinds)


def counts() -> Iterator[str]:
    """Yield the rows of the table of instructions."""
    yield f"| for 128 keys | {' | '.join(KINDS)} | all |"
    yield "|---" * (len(KINDS) + 2) + "|"
    for name, (work, bound) in cases().items():
        found = instructions(work, bound)
        numbers = [found[kind] for kind in KINDS]
        yield f"| {name} | {' | '.join(map(str, numbers))} | {sum(numbers)} |"


if __name__ == "__main__":
    print(*errors(), "", *counts(), sep="\n")
