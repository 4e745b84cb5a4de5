"""`explain`: everything the compiler knows about a mod, as text.

Reads what the other modules found out; finds out nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from flexfa4.block_mask import BlockMask
from flexfa4.errors import ArgumentError
from flexfa4.frontend import facts, trace
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.blocks import EMPTY, FULL, PARTIAL
from flexfa4.kernels.cpu.describe import describe_mask, describe_score

Row = tuple[str, str]


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


def explain(mod: Any, *, kind: str | None = None) -> Explanation:
    """Say what the compiler knows about a mod, and how the CPU backend runs it.

    Args:
        mod: a score mod or mask (function, text or `Mod`), or a `BlockMask`.
        kind: "score" or "mask"; by default the number of parameters decides.

    Returns:
        Sections: the graph, what it captures and is specialised on, the facts with their proof
        obligations, how the CPU backend runs it (every slower path is named), and for a block mask
        its blocks.

    Raises:
        ArgumentError: `kind` is neither "score" nor "mask".
        TraceError, TextError: the mod cannot be traced or read.
    """
    if kind not in (None, "score", "mask"):
        raise ArgumentError(
            name="kind", found_value=repr(kind), expected='"score", "mask" or None', rewrite="kind=None"
        )
    function = mod.mask if isinstance(mod, BlockMask) else mod
    traced = trace.trace(function, "mask" if isinstance(mod, BlockMask) else kind)
    bound = traced.bind()
    sections = [
        Section(f"{traced.kind} mod", (("", str(bound.graph)),)),
        Section("captures", _captures(bound) or (("", "nothing"),)),
    ]
    if traced.guards:
        sections.append(
            Section("specialised on", tuple(("", guard) for guard in traced.guards))
        )
    if traced.kind == "score":
        found = facts.score_facts(bound.graph)
        sections.append(Section("facts", tuple(facts.describe(found))))
        sections.append(Section("on the CPU", tuple(describe_score(bound.graph))))
    else:
        sections.append(Section("facts", tuple(facts.describe_mask(facts.mask_facts(bound.graph)))))
        sections.append(Section("on the CPU", tuple(describe_mask(bound.graph))))
    if isinstance(mod, BlockMask):
        sections.append(Section("blocks", _blocks(mod)))
    return Explanation(tuple(sections))


def _captures(bound: BoundGraph) -> tuple[Row, ...]:
    rows: list[Row] = []
    for scalar, value in zip(bound.graph.scalars, bound.scalars, strict=True):
        rows.append((scalar.name, f"{value!r}, read on each call"))
    for buffer, tensor in zip(bound.graph.buffers, bound.tensors, strict=True):
        rows.append((buffer.name, _tensor(tensor)))
    return tuple(rows)


def _tensor(tensor: torch.Tensor) -> str:
    text = f"{str(tensor.dtype)[6:]} {tuple(tensor.shape)} on {tensor.device}"
    return text + (", gets a gradient" if tensor.requires_grad else "")


def _blocks(mask: BlockMask) -> tuple[Row, ...]:
    kinds = mask.block_kinds()
    total = max(kinds.numel(), 1)
    return (
        ("made for", repr(mask)),
        *(
            (name, f"{int((kinds == kind).sum())} ({float((kinds == kind).sum()) / total:.1%})")
            for name, kind in (("empty", EMPTY), ("partial", PARTIAL), ("full", FULL))
        ),
    )
