"""Each kind of comparison, solved for an index, holds exactly where it did."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.frontend.evaluate import Program, Values, mask_tile
from flexfa4.frontend.ir import const
from flexfa4.frontend.masks.grid import MaskSize
from flexfa4.frontend.masks.solving.inversion import quoted
from flexfa4.frontend.masks.solving.solve import ClosedForm, closed_form
from flexfa4.frontend.masks.solving.solved import Solved, ends_of, solved
from flexfa4.frontend.ops import apply
from flexfa4.frontend.sizes import Sizes
from tests.leaves import Q

RELATIONS = ("<", "<=", ">", ">=", "==", "!=")
SIZE = MaskSize(1, 1, 10, 13)
CAPTURED: dict[str, Any] = {
    "w": 3,
    "table": torch.tensor([-3, -3, 0, 1, 1, 1, 4, 6, 6, 9, 9, 12, 20]),
    "level": torch.tensor([-2.5, -2.5, 0.0, 0.0, 0.5, 1.0, 1.0, 3.0, 3.0, 5.0, 9.0, 9.5, 30.0]),
}


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    "text",
    [
        "kv {} q",
        "2 - kv {} q - 9",
        "3 * kv - q {} kv + 4",
        "-5 * kv {} 7 - 11 * q",
        "kv * w {} q",
        "kv // 3 {} q // 2",
        "kv // -3 {} 2 - q",
        "(kv - q) // w {} 1",
        "(kv >> 2) * 3 {} q",
        "(kv << 1) {} q",
        "abs(kv - q) {} w",
        "5 - abs(2 * kv - q) {} w",
        "min(kv, w) {} q",
        "max(kv, q) - kv {} w",
        "kv - min(q, kv) {} 2",
        "where(kv < 5, kv, 9 - kv) {} q",
        "where(q < 5, kv, 3) {} q",
        "i32(kv > q) + i32(kv < 8) {} 1",
        "table[kv] {} q",
        "q - 2 * table[kv] {} 1",
        "table[kv // 2] {} table[q]",
        "table[min(kv, 6)] {} q",
        "level[kv] {} 1.0",
        "level[q] {} level[kv]",
        "kv - q {} 0.5",
        "f32(kv) {} f32(q)",
        "f32(q) * 0.75 {} kv",
        "kv {} inf",
    ],
)
def test_comparisons(text: str, relation: str) -> None:
    source = text.format(relation)
    read = re.findall(r"\w+", source)
    names = {name: value for name, value in CAPTURED.items() if name in read}
    bound = flexfa4.parse(source, **names).bind()
    sizes = Sizes(1, 1, 1, SIZE.q_len, SIZE.kv_len)
    values = Values.of(bound, sizes, device=torch.device("cpu"))
    dense = mask_tile(Program((bound.graph.root,)), values, SIZE.lanes())
    dense = dense.expand(1, 1, SIZE.q_len, SIZE.kv_len)[0, 0]
    form = closed_form(bound.graph, "kv")
    assert isinstance(form, ClosedForm), form
    holds = solved(form, values, SIZE)
    assert isinstance(holds, Solved), holds
    start, stop = ends_of(holds, 0, 0, range(SIZE.q_len))
    at = torch.arange(SIZE.kv_len)
    seen = (at >= start[..., None]) & (at < stop[..., None])
    assert torch.equal(seen.any(0), dense)


def test_long_expressions_are_quoted_in_part() -> None:
    long = Q
    for i in range(1, 30):
        long = apply("mul", apply("add", long, const(i)), Q)
    assert quoted(Q) == "`q`"
    assert len(quoted(long)) < 70
    assert quoted(long).endswith("...`")
