"""Boxes: what is proved of a mask in a box holds on all its lanes."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.frontend.analysis.bounds import Leaf, Load, bound
from flexfa4.frontend.analysis.intervals import Interval
from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import I32, Buffer, Node, Scalar, const, load, scalar, size, symbol
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.masks.grid import EMPTY, FULL, PARTIAL, MaskSize
from flexfa4.frontend.masks.search import boxes as module
from flexfa4.frontend.masks.search.boxes import Boxes, verdicts
from flexfa4.frontend.masks.search.zones import Zones
from flexfa4.frontend.ops import apply
from tests.leaves import KV, B, H, Q

IDS, STEPS = Buffer("ids", I32, (None, None)), Buffer("steps", I32, (None,))
W = Scalar("w", I32)
LENGTH = 60
_seeded = torch.Generator().manual_seed(0)
VALUES = Values(
    tensors={
        IDS: torch.randint(0, 5, (2, LENGTH), generator=_seeded).sort().values,
        STEPS: torch.tensor([3, 9, 30]),
    },
    scalars={W: 13},
    symbols={"q_len": LENGTH, "kv_len": LENGTH},
)
KNOWN = MaskSize(2, 3, LENGTH, LENGTH).domain(VALUES).leaf
AWAY = apply("sub", Q, KV)
EITHER = functools.partial(apply, "or")
BOTH = functools.partial(apply, "and")
MASKS = {
    "nothing": const(False),
    "everything": const(True),
    "window": BOTH(apply("ge", AWAY, const(0)), apply("lt", AWAY, scalar(W))),
    "documents": apply("eq", load(IDS, (B, Q)), load(IDS, (B, KV))),
    "by head": apply("le", apply("abs", AWAY), load(STEPS, (H,))),
    "from the end": apply("ge", load(IDS, (B, apply("sub", Q, symbol("q_len")))), const(2)),
    "prefix": EITHER(apply("lt", KV, size(STEPS, 0)), apply("ge", Q, KV)),
    "tiles": apply(
        "eq",
        apply("floordiv", Q, const(8)),
        apply("mod", apply("floordiv", KV, const(4)), const(5)),
    ),
    "queries": apply("gt", Q, const(31)),
}


def judged(root: Node, ends: Sequence[tuple[int, ...]]) -> torch.Tensor:
    boxes = Boxes(*torch.tensor(ends).T)
    return verdicts(root, KNOWN, Zones(VALUES, (1, 1), KNOWN), boxes)


def of_lanes(root: Node, ends: tuple[int, ...]) -> int:
    """Return the kind of a box by evaluating it."""
    b, h, *ranges = ends
    lanes = Lanes((b, b + 1), (h, h + 1), tuple(ranges[:2]), tuple(ranges[2:]))  # type: ignore[arg-type]
    mask = torch.as_tensor(Program((root,)).run(VALUES, lanes)[0])
    return FULL if mask.all() else PARTIAL if mask.any() else EMPTY


@st.composite
def a_box(draw: st.DrawFn) -> tuple[int, ...]:
    ranges = [sorted(draw(st.integers(0, LENGTH - 1)) for _ in "ab") for _ in "qk"]
    starts_and_stops = [end + i for pair in ranges for i, end in enumerate(pair)]
    return (draw(st.integers(0, 1)), draw(st.integers(0, 2)), *starts_and_stops)


@given(st.lists(a_box(), min_size=1, max_size=12), st.sampled_from(list(MASKS)))
def test_what_is_proved_holds_on_every_lane(ends: list[tuple[int, ...]], name: str) -> None:
    root = MASKS[name]
    found = judged(root, ends)
    assert found.dtype is torch.int8
    for kind, box in zip(found.tolist(), ends, strict=True):
        assert kind in (PARTIAL, of_lanes(root, box))


@given(a_box())
def test_masks_of_one_condition_are_proved_wherever_they_hold(box: tuple[int, ...]) -> None:
    for name in ("nothing", "everything", "by head", "documents", "queries"):
        root = MASKS[name]
        assert judged(root, [box]) == of_lanes(root, box)


def test_boxes_are_judged_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [(0, 0, q, q + 3, kv, kv + 5) for q in range(0, 60, 3) for kv in range(0, 60, 5)]
    at_once = judged(MASKS["window"], ends)
    counts: list[int] = []

    def counted(root: Node, leaf: Leaf, load: Load) -> Interval:
        answer = bound(root, leaf, load)
        counts.append(len(answer.lo))
        return answer

    monkeypatch.setattr(module, "_CHUNK", 7)
    monkeypatch.setattr(module, "bound", counted)
    assert torch.equal(at_once, judged(MASKS["window"], ends))
    assert max(counts) == 7 and sum(counts) == len(ends)
    assert at_once.unique().tolist() == [EMPTY, PARTIAL, FULL]
