"""What values vary with, how loads are made, which integers are narrow, what follows from what."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.frontend.ir import Node, topological
from flexfa4.frontend.sizes import Sizes
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.emit.access import Access, access, constant_slope
from flexfa4.kernels.emit.captures import capture_plan, loads_of
from flexfa4.kernels.emit.structure import Structure
from flexfa4.kernels.emit.widths import Ranges

SIZES = Sizes(2, 4, 2, 32, 64)


class Prepared:
    """A mask, and what is found out about it."""

    def __init__(
        self, mod: Any, rows: tuple[str, ...] = ("q",), sizes: Sizes = SIZES, exact: bool = True
    ) -> None:
        bound = resolve(mod, "mask" if exact else "score")
        self.root = bound.graph.root
        plan = capture_plan(bound, sizes)
        self.accesses: dict[Node, Access] = {
            load: access(load, known)
            for load, known in zip(loads_of(bound.graph), plan.loads, strict=True)
        }
        self.ranges = Ranges(bound.graph, plan)
        self.structure = Structure(self.ranges, self.accesses, frozenset(rows), exact)

    def nodes(self, op: str) -> list[Node]:
        return [node for node in topological(self.root) if node.op == op]

    @property
    def load(self) -> Access:
        """The last load: the outermost."""
        return list(self.accesses.values())[-1]


def mask(text: str, *rows: str, **captures: Any) -> Prepared:
    return Prepared(flexfa4.parse(text, **captures), rows or ("q",))


# ---- axes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rows", "axes"),
    [
        ("b > h", ("q",), set()),
        ("q > h", ("q",), {"row"}),
        ("kv > h", ("q",), {"column"}),
        ("kv > h", ("q", "h"), {"row", "column"}),
        ("kv > q", ("q",), {"row", "column"}),
    ],
)
def test_a_value_varies_with_what_it_reads(
    text: str, rows: tuple[str, ...], axes: set[str]
) -> None:
    found = mask(text, *rows)
    assert found.structure.axes(found.root) == axes


# ---- shortcuts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["q >= kv", "q - kv < 10", "kv + 3 == 2 * q", "3 * kv < q"])
def test_a_comparison_follows_from_the_difference_at_the_origin(text: str) -> None:
    found = mask(text)
    shortcut = found.structure.shortcut(found.root)
    assert shortcut is not None and shortcut.slope.op == "const"


@pytest.mark.parametrize("text", ["abs(q - kv) < 10", "kv // 4 == q // 4", "kv * q < 10"])
def test_a_comparison_of_what_is_not_linear_does_not(text: str) -> None:
    found = mask(text)
    assert found.structure.shortcut(found.root) is None


def test_a_comparison_that_may_wrap_around_does_not() -> None:
    ids = torch.zeros(64, dtype=torch.int64)
    found = mask("kv + ids[q] > ids[q]", ids=ids)
    assert found.structure.shortcut(found.root) is None
    narrow = mask("kv + ids[q] > ids[q]", ids=ids.int())
    assert narrow.structure.shortcut(narrow.root) is not None or narrow.root.op != "gt"


def test_in_a_mask_floats_follow_only_where_they_are_exact() -> None:
    found = mask("f32(q - kv) * 0.1 < 1.0")
    (converted,) = found.nodes("to_f32")
    (product,) = found.nodes("mul")
    assert found.structure.shortcut(converted) is not None
    assert found.structure.shortcut(product) is None
    far = Prepared(flexfa4.parse("f32(q - kv) * 0.1 < 1.0"), sizes=SIZES._replace(kv_len=1 << 26))
    assert far.structure.shortcut(far.nodes("to_f32")[0]) is None


def test_in_a_score_they_follow_in_any_case() -> None:
    found = Prepared(flexfa4.parse("score + tanh((q - kv) * 0.1)"), exact=False)
    assert found.structure.shortcut(found.nodes("mul")[0]) is not None


# ---- order, and what is fixed --------------------------------------------------------------------


def test_operands_come_before_users_and_not_below_a_shortcut() -> None:
    found = mask("(q - kv) * (q - kv) < 50")
    order = found.structure.order(found.root, False, False)
    assert [node.op for node in order] == ["sub", "mul", "const", "lt"]
    at_origin = found.structure.order(found.root, True, False)
    assert [node.op for node in at_origin][:3] == ["input", "input", "sub"]


def test_the_largest_parts_that_do_not_vary_with_the_column_are_fixed() -> None:
    found = mask("(q * 3 + h) * kv > h * h")
    fixed = found.structure.fixed_parts(found.root)
    assert {part.op for part in fixed} <= {"add", "mul", "neg"}
    assert any(part.depends == {"q", "h"} for part in fixed)


# ---- diagonals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rows", "shared"),
    [
        ("q - kv < 10", ("q",), True),
        ("q - kv < 10 * h", ("q",), True),
        ("q - kv < 10 * h", ("q", "h"), False),
        ("t[q - kv + 64] > 0.5", ("q",), False),
        ("t[max(q - kv, 0)] > 0.5", ("q",), True),
        ("t[kv] > 0.5", ("q",), False),
        ("q + kv < 10", ("q",), False),
    ],
)
def test_rows_share_what_is_the_same_along_a_diagonal(
    text: str, rows: tuple[str, ...], shared: bool
) -> None:
    found = mask(text, *rows, **({"t": torch.rand(128)} if "t[" in text else {}))
    assert found.structure.diagonal(found.root) is shared


# ---- loads ---------------------------------------------------------------------------------------


def test_a_load_whose_index_moves_with_kv_is_steady() -> None:
    table = torch.rand(4, 64)
    load = mask("t[h, kv] > 0.5", t=table).load
    assert load.steps == {1: 1} and load.distance == 0 and not load.diagonal
    assert not any(load.needs_size(axis) for axis in range(2))


def test_a_load_at_a_distance_knows_it() -> None:
    load = mask("t[kv + 3] > 0.5", t=torch.rand(128)).load
    assert load.steps == {0: 1} and load.distance == 3
    behind = mask("t[kv - q + 64] > 0.5", t=torch.rand(128)).load
    assert behind.steps == {0: 1} and behind.distance is None


@pytest.mark.parametrize("text", ["t[-1 - kv] > 0.5", "t[kv * 3] > 0.5", "t[abs(q - kv)] > 0.5"])
def test_an_index_that_has_to_be_looked_at_needs_the_size(text: str) -> None:
    load = mask(text, t=torch.rand(64)).load
    assert load.steps is None and load.needs_size(0)


def test_slopes_are_those_of_kv_alone() -> None:
    (difference,) = mask("(q - 2 * kv) * (q - 2 * kv) > 5").nodes("sub")
    assert constant_slope(difference) == -2
    assert constant_slope(difference.args[0]) is None


# ---- widths --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "captures", "width"),
    [
        ("q - kv < n", {"n": 5}, 32),
        ("q - kv < n", {"n": 1 << 40}, 64),
        ("(q - kv) * 100 < 1000", {}, 32),
        ("(q - kv) * (q + kv) < 1000", {}, 64),
        ("ids[kv] + 1 < 5", {"ids": torch.zeros(64, dtype=torch.int64)}, 64),
        ("ids[kv] + 1 < 5", {"ids": torch.zeros(64, dtype=torch.int16)}, 32),
        ("ids[kv] + 1 < 5", {"ids": torch.zeros(64, dtype=torch.int32)}, 64),
    ],
)
def test_integers_are_narrow_where_that_is_proved(
    text: str, captures: dict[str, Any], width: int
) -> None:
    found = mask(text, **captures)
    wholes = [node for arg in found.root.args for node in topological(arg)]
    assert max(found.ranges.width(node) for node in wholes) == width


def test_lengths_decide_the_widths_of_positions() -> None:
    text = flexfa4.parse("q * 64 + kv < 9")
    near, far = (
        Prepared(text, sizes=SIZES._replace(kv_len=length)) for length in (1 << 20, 1 << 29)
    )
    assert near.ranges.width(near.nodes("mul")[0]) == 32
    assert far.ranges.width(far.nodes("mul")[0]) == 64


# ---- pairs ---------------------------------------------------------------------------------------


def on_pairs(text: str, **captures: Any) -> set[str]:
    """Return the ops of the nodes that are computed for two columns at once."""
    found = Prepared(flexfa4.parse(text, **captures), exact=False)
    order = found.structure.order(found.root, False, False)
    return {node.op for node in order if found.structure.packs(node)}


@pytest.mark.parametrize(
    ("text", "ops"),
    [
        ("3.0 * tanh(score * 0.5)", {"mul"}),
        ("score * score + bias[h, kv]", {"mul", "add"}),
        ("score + bias[h, q]", {"add"}),
        ("where(kv > q, score, 0.0) * score", {"mul"}),
        ("score * 0.5 + max(score, 0.0)", {"mul", "add"}),
        ("score + gate[h] * abs(f32(kv - q))", {"to_f32"}),  # exact: an integer
    ],
)
def test_arithmetic_of_floats_that_vary_along_a_row_is_on_pairs(text: str, ops: set[str]) -> None:
    shapes = {"bias": (4, 64), "gate": (4,)}
    captures = {name: torch.rand(shape) for name, shape in shapes.items() if name in text}
    assert on_pairs(text, **captures) == ops


@pytest.mark.parametrize(
    "text",
    [
        "tanh(gate[h] * f32(kv - q))",  # linear, but not exactly
        "score + gate[h] * abs(score)",  # a magnitude is free for single numbers only
        "tanh(score)",
    ],
)
def test_what_would_take_more_instructions_on_pairs_is_not(text: str) -> None:
    captures = {"gate": torch.rand(4)} if "gate" in text else {}
    assert not on_pairs(text, **captures)
