"""What is said of a plan for Hopper."""

from __future__ import annotations

from typing import Any

import torch

from flexfa4.ahead_of_time import Call, plan_of
from flexfa4.api import Options
from flexfa4.kernels.architectures import named


def told(
    score_mod: Any = None, options: Options | None = None, mask: Any = "q >= kv", **call: Any
) -> dict[str, str]:
    plan = plan_of(score_mod, mask, Call(options=options, **call), "sm_90a")
    return dict(named("sm_90a").describe(plan, "sm_90a"))


def test_emulated_exponentials_are_told_where_there_are_some() -> None:
    assert "exponentials" not in told()
    rows = told(options=Options(emulated_exponentials=0.25))
    assert rows["exponentials"] == "emulated: 25.0% by polynomials of degree 3"
    assert "special functions 768" in rows["model"]


def test_the_row_of_the_table_is_named_or_the_model() -> None:
    assert told()["tiling"] == "row of the table: head dimensions 128, 128"
    assert told(mask=None)["tiling"] == "row of the table: head dimensions 128, 128, without a mask"
    assert told(head_dim=80)["tiling"] == "found by the model: head dimensions 80, 80"


def test_what_changes_a_row_is_told() -> None:
    table = torch.randn(400, 400)
    reads = told(lambda s, b, h, q, kv: s + table[q, kv], head_dim=96)["tiling"]
    assert reads.endswith("; another tile, which leaves registers to the mods")
    chosen = told(options=Options(tile=(64, 64)))["tiling"]
    assert chosen.endswith("; the tile is the user's choice")
    share = told(options=Options(emulated_exponentials=0.5))["tiling"]
    assert share.endswith("128, 128; the share of emulated exponentials is the user's choice")


def test_mods_that_are_evaluated_in_parts_are_told() -> None:
    table, group = torch.randn(400), torch.arange(400) % 3

    def reading(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return s + table[(q - kv).clamp(min=0)]

    def same(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return group[q] == group[kv]

    assert "evaluated" not in told("score * 2")
    shown = "of a thread's 32 columns at once, for its registers"
    assert told(reading)["evaluated"] == f"score mod for 16 {shown}"
    assert (
        told(reading, mask=same, q_len=400, kv_len=400)["evaluated"]
        == f"score mod for 16, mask for 16 {shown}"
    )
