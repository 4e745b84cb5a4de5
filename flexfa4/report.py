"""`explain`: everything the compiler knows about a mod, as text.

Reads what the other modules found out; finds out nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch

from flexfa4.ahead_of_time import Call, is_other_gpu, plan_of
from flexfa4.block_mask import BlockMask
from flexfa4.errors import ArgumentError, OutOfRangeError
from flexfa4.frontend.analysis import facts, in_words
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.ir import Graph
from flexfa4.frontend.masks.grid import FULL, PARTIAL
from flexfa4.frontend.masks.runs import BlockRuns
from flexfa4.frontend.masks.solving.in_words import describe, describe_premises
from flexfa4.frontend.masks.solving.solve import Index, NotClosed, closed_form
from flexfa4.frontend.tracing import trace
from flexfa4.frontend.tracing.contract import check_kind
from flexfa4.frontend.tracing.forms import MaskLike, ScoreLike
from flexfa4.kernels.architectures import named
from flexfa4.kernels.compile.errors import MissingCompilerPackageError
from flexfa4.kernels.cpu.describe import describe_mask, describe_score, describe_use
from flexfa4.kernels.flex.describe import describe_on_torch
from flexfa4.kernels.forward.compiled import kernel_for
from flexfa4.kernels.forward.describe import describe_kernel
from flexfa4.kernels.refusal import Refusal
from flexfa4.masks.snapshot import tensor_identity

Row = tuple[str, str]

# Captures of a mask that make attention find its blocks on every call.
_AGAIN: Final = (
    "attention finds the blocks again on each call\n"
    "that is given this mask as a function; create_block_mask finds them once"
)
COMPUTED: Final = f"\ncomputed anew by the mask: {_AGAIN}"
UNCOUNTED: Final = f"\nan inference tensor, whose changes torch does not count: {_AGAIN}"


# The index a mask is solved for -> what the solution says, and what is done where there is none.
_SOLVED: Final[dict[Index, tuple[str, str]]] = {
    "kv": ("keys of a query", "blocks are found by splitting boxes"),
    "q": ("queries of a key", "columns of blocks are made from the rows"),
}


@dataclass(frozen=True)
class Section:
    """A heading and its rows of a label and a text; a row without a label is text only."""

    title: str
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        width = max((len(label) for label, _ in self.rows), default=0)
        lines = [self.title]
        for label, text in self.rows:
            head = f"{label:<{width}}  " if label else ""
            indent = " " * (2 + len(head))
            lines.append(f"  {head}{text}".replace("\n", "\n" + indent))
        return "\n".join(lines)


@dataclass(frozen=True)
class Explanation:
    """What `explain` returns: print it, or look a section up by its title."""

    sections: tuple[Section, ...]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.sections))

    def __getitem__(self, title: str) -> Section:
        for section in self.sections:
            if section.title == title:
                return section
        raise KeyError(title)


def explain(
    mod: ScoreLike | MaskLike | BlockMask,
    *,
    kind: Literal["score", "mask"] | None = None,
    arch: str | None = None,
    head_dim: int | tuple[int, int] = 128,
    dtype: torch.dtype = torch.bfloat16,
    heads: int | None = None,
    kv_heads: int | None = None,
) -> Explanation:
    """Say what the compiler knows about a mod, and how the backends run it.

    docs/mods.md of the project explains the words.

    Args:
        mod: a score mod or mask (function, text or `Mod`), or a `BlockMask`, ours, `flexfa4.flex`'s
            or torch's.
        kind: "score" or "mask"; by default the number of parameters decides.
        arch: also say how this architecture of GPUs runs it: ``"sm_90a"``, ``"sm_100a"`` and
            ``"sm_103a"`` by a kernel, which is compiled where CuTe-DSL is installed, others
            (``"sm_80"``) by torch's FlexAttention.
        head_dim: that it is for, see `flexfa4.compile`.
        dtype: likewise.
        heads: likewise.
        kv_heads: likewise.

    Returns:
        Sections: the graph; what it captures and is specialised on; the facts; for a score mod the
        rewrites that a backend may use, with their proof obligations and whether the CPU backend
        uses them; for a mask its closed form, or why there is none; how the CPU backend runs the
        mod (every slower path is named); for a block mask its blocks; the kernel, or why such
        calls are served by torch's FlexAttention or the CPU backend instead.

    Raises:
        ArgumentError: `kind` is neither "score" nor "mask".
        ArgumentError: `arch` is no architecture.
        TraceError, TextError: the mod cannot be traced or read.
    """
    check_kind(kind)
    if hasattr(mod, "BLOCK_SIZE"):  # a block mask of FlexAttention
        from flexfa4.flex.shown import shown

        look = shown(mod)
        mod = mod if look is None else look.native
    function = mod.mask if isinstance(mod, BlockMask) else mod
    traced = trace.trace(function, "mask" if isinstance(mod, BlockMask) else kind)
    bound, again = traced.bind(), traced.bind()
    sections = [
        Section(f"{traced.kind} mod", (("", str(bound.graph)),)),
        Section("captures", _captures(bound, again) or (("", "nothing"),)),
    ]
    if traced.guards:
        sections.append(Section("specialised on", tuple(("", guard) for guard in traced.guards)))
    if traced.kind == "score":
        found = facts.score_facts(bound.graph)
        sections.append(Section("facts", tuple(in_words.describe(found))))
        if found.rewrites:
            sections.append(Section("rewrites", tuple(_rewrites(found))))
        sections.append(Section("on the CPU", tuple(describe_score(bound.graph))))
    else:
        found_of_mask = facts.mask_facts(bound.graph)
        sections.append(Section("facts", tuple(in_words.describe_mask(found_of_mask))))
        sections.append(Section("closed form", tuple(_closed_form(bound.graph))))
        sections.append(Section("on the CPU", tuple(describe_mask(bound.graph))))
    if isinstance(mod, BlockMask):
        sections.append(Section("blocks", tuple(_blocks(mod))))
    if arch is not None:
        call = Call(head_dim, dtype, heads=heads, kv_heads=kv_heads)
        is_score = traced.kind == "score"
        score_mod, block_mask = (mod, None) if is_score else (None, mod)
        if is_other_gpu(arch):
            rows = [("no kernel", "for this architecture"), *describe_on_torch(bound)]
        else:
            rows = list(_kernel(score_mod, block_mask, bound, call, arch))
        sections.append(Section(f"on {arch}", tuple(rows)))
    return Explanation(tuple(sections))


def _kernel(
    score_mod: Any, block_mask: Any, bound: BoundGraph, call: Call, arch: str
) -> Iterator[Row]:
    """Yield what the kernel for an architecture does, or why there is none."""
    try:
        plan = plan_of(score_mod, block_mask, call, arch)
    except OutOfRangeError as error:  # a function, for sizes that it was not written for
        problem = str(error).splitlines()[0]
        yield "not planned", f"{problem};\nexplain(create_block_mask(...)) knows the sizes"
        return
    if isinstance(plan, Refusal):
        yield "no kernel", f"{plan.found};\nserved: {plan.allowed}"
        yield from describe_on_torch(bound)
        return
    known = named(arch)
    yield from known.describe(plan, arch)
    try:
        yield from describe_kernel(known, kernel_for(known, plan, arch))
    except MissingCompilerPackageError as error:
        yield "not compiled", str(error).splitlines()[0]


def _rewrites(found: facts.ScoreFacts) -> Iterator[Row]:
    for rewrite in found.rewrites:
        use = describe_use(rewrite, found.graph)
        yield rewrite.name, f"{in_words.describe_rewrite(rewrite)}\non the CPU {use}"


def _captures(bound: BoundGraph, again: BoundGraph) -> tuple[Row, ...]:
    """Return what a mod captures; two bindings tell what it computes anew on each call."""
    rows: list[Row] = []
    for scalar, value in zip(bound.graph.scalars, bound.scalars, strict=True):
        rows.append((scalar.name, f"{value!r}, read on each call"))
    for buffer, first, second in zip(
        bound.graph.buffers, bound.tensors, again.tensors, strict=True
    ):
        text = f"{str(first.dtype)[6:]} {tuple(first.shape)} on {first.device}"
        if bound.graph.kind == "score":
            text += ", gets a gradient" if first.requires_grad else ""
        elif tensor_identity(first) in (None, tensor_identity(second)):
            text += "" if tensor_identity(first) else UNCOUNTED
        else:
            text += COMPUTED
        rows.append((buffer.name, text))
    return tuple(rows)


def _closed_form(graph: Graph) -> Iterator[Row]:
    """Yield what a mask solves to, symbolic in everything that it captures."""
    premises: dict[str, None] = {}
    for index, (label, instead) in _SOLVED.items():
        form = closed_form(graph, index)
        if isinstance(form, NotClosed):
            yield label, f"not in closed form: {form.reason};\n{instead}"
            continue
        yield label, describe(form)
        premises.update(dict.fromkeys(describe_premises(form)))
    if premises:
        yield "rests on", "\n".join([*premises, "checked for each block mask"])


def _block_counts(runs: BlockRuns, of: torch.Tensor) -> Iterator[Row]:
    """Yield how many blocks there are of each kind; `of` has the class of each batch and head."""

    def total(kind: int) -> int:
        return int(runs.counts(kind).sum(1).cpu()[of].sum())

    partial, full = total(PARTIAL), total(FULL)
    every = of.numel() * runs.lines * runs.width
    counts = {"empty": every - partial - full, "partial": partial, "full": full}
    for name, count in counts.items():
        yield name, f"{count} ({count / max(every, 1):.1%})"


def _blocks(mask: BlockMask) -> Iterator[Row]:
    """Yield the blocks of a block mask, all batches and heads together, and how they were found."""
    blocks, held = mask.blocks_on(mask.device), mask.nbytes
    of = blocks.classes.of.expand(mask.shape[:2])
    yield "made for", repr(mask)
    try:
        yield from _block_counts(blocks.runs, of)
    except ArgumentError as error:  # only a closed form can have so many
        yield "counts", f"not made: {str(error).splitlines()[0]}"
    if of.numel() > 1:
        pairs = f"{of.numel()} pairs of batch and head"
        yield "classes", f"{len(blocks.classes.members)}, of {pairs}"
    form = blocks.by_rows
    if isinstance(form, NotClosed):
        yield "found", f"by splitting boxes, not in closed form: {form.reason}"
    else:
        yield "found", "from the closed form"
    yield "memory", f"{held} bytes: what is known of the blocks, and copies of captures"
