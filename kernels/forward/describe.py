"""What forward kernels of all architectures say of a plan, in words."""

from __future__ import annotations

from typing import Final

from flexfa4.frontend.analysis.in_words import expression
from flexfa4.kernels.compile.compiled_kernel import CompiledKernel
from flexfa4.kernels.emit.program import ScoreProgram, Term
from flexfa4.kernels.forward.architecture import AnyArchitecture, Row
from flexfa4.kernels.forward.plan import VariantPlan
from flexfa4.primitives.exponentials import EmulatedFraction

INPUTS: Final[Row] = (
    "inputs",
    "read where they are, if their last axis is contiguous and addresses and other strides are"
    "\nmultiples of 16 bytes; copied on each call otherwise",
)
"""The row of what is read."""


def describe_variant(plan: VariantPlan) -> list[Row]:
    """Return rows about what a plan computes, whatever it runs on."""
    return [
        ("heads", _heads(plan.group)),
        ("blocks", plan.walk.in_words),
        ("masked tiles", _masked(plan)),
        *describe_score(plan.score),
        ("rescaling", _rescaling(plan.tau)),
    ]


def emulated_in_words(emulated: EmulatedFraction) -> str:
    """Return how many exponentials are emulated."""
    if not emulated.numerator:
        return "none"
    return f"{emulated.value:.1%} by polynomials of degree {emulated.degree}"


def describe_kernel(architecture: AnyArchitecture, kernel: CompiledKernel) -> list[Row]:
    """Return rows about a compiled kernel."""
    budgets = architecture.registers(kernel)
    shown = ", ".join(f"{count} of a {role}" for role, count in budgets.items())
    return [
        ("registers", f"{shown} thread; {kernel.spills} bytes spilled"),
        ("machine code", f"{len(kernel.cubin)} bytes"),
    ]


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


def _masked(plan: VariantPlan) -> str:
    if plan.mask is None:
        return "keys outside of two limits for each query are hidden"
    return "the mask is computed for each score"


def _rescaling(tau: float) -> str:
    if not tau:
        return "whenever a row's maximum grows"
    return f"where a row's maximum grows by more than a factor of 2**{tau:g}"
