"""What a plan of the Hopper forward kernel says, in words, for `flexfa4.explain` and the shell."""

from __future__ import annotations

from typing import Final

from flexfa4.frontend.analysis.in_words import expression
from flexfa4.kernels.compile.compiled_kernel import CompiledKernel
from flexfa4.kernels.emit.program import ScoreProgram, Term
from flexfa4.kernels.sm90.forward.plan import ForwardPlan
from flexfa4.kernels.sm90.forward.storage import SHARED_MEMORY
from flexfa4.kernels.sm90.model import described

Row = tuple[str, str]

ROLES: Final = ("producer", "consumer")
"""The warp roles, in the order of `CompiledKernel.resources.register_budgets`."""

_GRADIENTS: Final = (
    "computed by the CPU backend's torch code on the GPU, from out and lse: there is no backward"
    " kernel"
)
_INPUTS: Final = (
    "read where they are, if their last axis is contiguous and addresses and other strides are\n"
    "multiples of 16 bytes; copied on each call otherwise"
)


def describe_plan(plan: ForwardPlan) -> list[Row]:
    """Return rows about a plan."""
    tiling, storage = plan.tiling, plan.storage
    consumers = "1 warpgroup" if tiling.warpgroups == 1 else f"{tiling.warpgroups} warpgroups"
    rows = [
        (
            "tile",
            f"{tiling.rows} queries by {tiling.keys} keys, {consumers} of 64 queries;"
            f" K and V {tiling.stages} tiles ahead",
        ),
        ("heads", _heads(plan.group)),
        ("blocks", plan.walk.in_words),
        ("masked tiles", _masked(plan)),
        *describe_score(plan.score),
        ("shared memory", f"{storage.bytes} bytes of {SHARED_MEMORY}"),
        *described(plan),
        ("inputs", _INPUTS),
        ("gradients", _GRADIENTS),
    ]
    return rows


def describe_kernel(kernel: CompiledKernel) -> list[Row]:
    """Return rows about a compiled kernel."""
    budgets = registers_of(kernel)
    shown = ", ".join(f"{count} of a {role}" for role, count in budgets.items())
    return [
        ("registers", f"{shown} thread; {kernel.spills} bytes spilled"),
        ("machine code", f"{len(kernel.cubin)} bytes"),
    ]


def registers_of(kernel: CompiledKernel) -> dict[str, int]:
    """Return the registers of a thread of each warp role."""
    return dict(zip(ROLES, kernel.resources.register_budgets, strict=True))


def describe_score(program: ScoreProgram) -> list[Row]:
    """Return rows about how scores are computed."""
    rows = []
    if program.ignores_score:
        rows.append(("per score", "the bias alone: the products of q and k are not used"))
    elif program.max_of_products:
        rows.append(("per score", "one fused multiply-add, in the exponent"))
    else:
        factor = "in the exponent" if program.defers else "before the maximum"
        rows.append(("per score", _per_score(program, factor)))
    named = (
        ("inner factor", program.inner),
        ("core", program.core),
        ("factor", program.outer),
        ("per row", program.constant),
    )
    rows += [(label, expression(node)) for label, node in named if node is not None]
    rows += [(_label(term), _term(term)) for term in program.terms]
    return rows


def _per_score(program: ScoreProgram, factor: str) -> str:
    parts = [] if program.core is None else ["the core"]
    count = len(program.terms)
    if count:
        parts.append("a fused multiply-add" if count == 1 else f"{count} fused multiply-adds")
    parts.append(f"the factor {factor}")
    return ", ".join(parts)


def _label(term: Term) -> str:
    return "term along kv" if term.part is None else "term"


def _term(term: Term) -> str:
    if term.part is None:
        assert term.origin is not None
        return f"{expression(term.origin)}\nat the tile's first key, and a constant step from there"
    if term.coefficient is None:
        return expression(term.part)
    return f"({expression(term.coefficient)}) * ({expression(term.part)})"


def _heads(group: int) -> str:
    if group == 1:
        return "a tile of one query head"
    return f"{group} query heads of a key head share a tile"


def _masked(plan: ForwardPlan) -> str:
    if plan.mask is None:
        return "keys outside of two limits for each query are hidden"
    return "the mask is computed for each score"
