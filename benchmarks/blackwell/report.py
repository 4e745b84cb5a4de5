"""Tables of `results/sm100_static.json` for docs/notes/b200.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from blackwell.measure import OURS, PEER

Row = dict[str, Any]

MARKS: Final = ("loops", "kernels", "shapes", "model")
"""What the document has places for: ``<!-- begin loops -->`` to ``<!-- end loops -->``."""


def written(document: str, results: Row) -> str:
    """Return a document with the tables between its marks."""
    tables = {"loops": loops, "kernels": kernels, "shapes": shapes, "model": model}
    for mark in MARKS:
        begin, end = f"<!-- begin {mark} -->", f"<!-- end {mark} -->"
        before, rest = document.split(begin)
        behind = rest.split(end, 1)[1]
        text = "\n".join(tables[mark](results["rows"]))
        document = f"{before}{begin}\n\n{text}\n\n{end}{behind}"
    return document


def loops(rows: list[Row]) -> Iterator[str]:
    """Yield the table of softmax loops of the variants, at head dim 128 on sm_100a."""
    yield (
        "| variant | loop | FlexFA4 | flash-attn-4 | ratio | issue cycles of a tile:"
        " FlexFA4, flash-attn-4 | exponentials on MUFU |"
    )
    yield "|---|---|---|---|---|---|---|"
    for variant in _variants(rows):
        ours, peer = (_of(rows, provider, variant) for provider in (OURS, PEER))
        if ours is None:
            continue
        for masked in (False, True):
            mine = _loop(ours, masked)
            other = None if peer is None else _loop(peer, masked)
            if mine is None or (masked and other is None):
                continue
            yield _compared(variant, "masked" if masked else "full", mine, other)


def _compared(variant: str, name: str, mine: Row, other: Row | None) -> str:
    per, cycles = mine["per_128_keys"], mine["issue_cycles"]
    cells = [variant, name, f"{per:.0f}"]
    if other is None:
        cells += ["-", "-", f"{cycles}"]
    else:
        cells += [
            f"{other['per_128_keys']:.0f}",
            f"{per / other['per_128_keys']:.2f}",
            f"{cycles}, {other['issue_cycles']} of {mine['mma_cycles']}",
        ]
    cells.append(f"{mine['mufu_per_score']:.2f}")
    return "| " + " | ".join(cells) + " |"


def kernels(rows: list[Row]) -> Iterator[str]:
    """Yield the table of whole kernels, at head dim 128 on sm_100a."""
    yield (
        "| variant | provider | instructions | shared memory | operands of a tile, KB |"
        " tensor memory columns | registers used of those asked for, by role | spilled bytes |"
        " compile, s of processors |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for variant in _variants(rows):
        for provider in (OURS, PEER):
            row = _of(rows, provider, variant)
            if row is not None:
                yield "| " + " | ".join((variant, provider, *_cells(row))) + " |"


def shapes(rows: list[Row]) -> Iterator[str]:
    """Yield the table of other head dims and of sm_103a."""
    yield "| architecture | head dims | variant | FlexFA4 | flash-attn-4 | ratio | spilled bytes |"
    yield "|---|---|---|---|---|---|---|"
    known = dict.fromkeys((row["arch"], tuple(row["sizes"][4:])) for row in rows)
    for arch, dims in known:
        for variant in ("full", "causal"):
            found = [_of(rows, name, variant, arch, dims) for name in (OURS, PEER)]
            if None in found:
                continue
            mine, other = (row["loops"][0]["per_128_keys"] for row in found if row)
            spills = ", ".join(str(row["spills"]) for row in found if row)
            cells = (arch, f"{dims[0]}, {dims[1]}", variant, f"{mine:.0f}", f"{other:.0f}")
            yield "| " + " | ".join((*cells, f"{mine / other:.2f}", spills)) + " |"


def model(rows: list[Row]) -> Iterator[str]:
    """Yield the table of what the performance model says of our kernels."""
    yield (
        "| architecture | head dims | variant | emulated | cycles of a full tile, of a masked one |"
        " bound | tensor cores | MUFU | issue slots | shared memory: cycles, KB |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        found = row.get("model")
        if found is None:
            continue
        busy = found["resources"]
        cells = (
            row["arch"],
            "{}, {}".format(*row["sizes"][4:]),
            row["variant"],
            f"{found['emulated']:.1%}",
            f"{found['cycles']}, {found['masked']}",
            found["bound"],
            *(str(busy[name]) for name in ("tensor", "mufu", "issue")),
            f"{busy['shared']}, {found['shared_bytes'] // 1024}",
        )
        yield "| " + " | ".join(cells) + " |"


def _cells(row: Row) -> tuple[str, ...]:
    used = ", ".join(f"{used} of {asked}" for asked, used in row["registers"] if used)
    columns = row["tensor_memory"]
    return (
        str(row["instructions"]),
        str(row["shared_memory"]),
        str(row["operand_bytes"] // 1024),
        "?" if columns is None else str(columns),
        used,
        str(row["spills"]),
        f"{row['seconds']:.1f}",
    )


def _variants(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(row["variant"] for row in rows))


def _of(
    rows: list[Row],
    provider: str,
    variant: str,
    arch: str = "sm_100a",
    dims: tuple[int, ...] = (128, 128),
) -> Row | None:
    """Return the row with the shortest loop; of those that do not spill, if there are any."""
    wanted = (provider, variant, arch, dims)
    found = [
        row
        for row in rows
        if (row["provider"], row["variant"], row["arch"], tuple(row["sizes"][4:])) == wanted
    ]
    order = sorted(found, key=lambda r: (r["spills"] > 0, r["loops"][0]["per_128_keys"]))
    return order[0] if order else None


def _loop(row: Row, masked: bool) -> Row | None:
    """Return the loop over full or masked tiles; None where a kernel has no such loop."""
    loops: list[Row] = row["loops"]
    only_masked = row["provider"] == PEER and row["variant"] in _MASKED_ONLY
    if only_masked:
        return loops[0] if masked else None
    if not masked:
        return loops[0]
    return loops[1] if len(loops) > 1 else None


_MASKED_ONLY: Final = ("documents", "prefix-2048")
"""Variants whose mask is a function of the peer: it is compiled without lists of blocks, so that
its one loop is that over masked tiles; its loop over full tiles is that of `full`."""
