"""What is said of a plan for Blackwell: where it is from, what lies where, how long it takes."""

from __future__ import annotations

from typing import Any

import torch

from flexfa4.ahead_of_time import Call, plan_of
from flexfa4.api import Options
from flexfa4.kernels.architectures import named


def told(arch: str = "sm_100a", score_mod: Any = None, **call: Any) -> dict[str, str]:
    plan = plan_of(score_mod, "q >= kv", Call(**call), arch)
    return dict(named(arch).describe(plan, arch))


def test_the_row_of_the_table_is_named() -> None:
    text = told()["tiling"]
    assert text.startswith("row of the table: sm_100a, head dimensions 128, 128, plain\n")
    assert "12.5% by polynomials of degree 3" in text and "tau 8" in text
    assert "emulated: none" in told("sm_103a")["tiling"]
    assert "a function" in told(score_mod="30 * tanh(score / 30)")["tiling"]


def test_head_dims_without_a_row_and_tiles_of_the_user_are_told_apart() -> None:
    assert told(head_dim=80)["tiling"].startswith("found by the model: sm_100a")
    chosen = told(options=Options(tile=(256, 64)))
    assert "the tile is the user's choice" in chosen["tiling"]
    assert "256 queries by 64 keys" in chosen["tile"]
    for tuned in ("score + q - kv", "score + sin(q - kv) + cos(q + kv)"):
        assert "the user's choice" not in told(score_mod=tuned)["tiling"]
    crowded = told(score_mod="score + sin(q - kv) + cos(q + kv)")
    assert "fewer keys than its 128" in crowded["tiling"] and "96 keys" in crowded["tile"]
    linear = told(score_mod="score + q - kv", head_dim=64)["tiling"]
    assert "fewer exponentials emulated than its 12.5%" in linear and "emulated: 6.2%" in linear
    share = told(options=Options(emulated_exponentials=0.5))["tiling"]
    assert "the tile is" not in share and "exponentials is the user's choice" in share


def test_why_so_many_blocks_compute_a_product_is_told() -> None:
    def about(mask: str | None, **call: Any) -> str:
        plan = plan_of(None, mask, Call(**call), "sm_100a")
        lines = dict(named("sm_100a").describe(plan, "sm_100a"))["tiling"].splitlines()
        return next(line for line in lines if line.startswith("a product"))

    assert "1 block: two take 1.00 of the time of one by the model" in about(None)
    assert "1 block: two share tiles of keys only where" in about("q >= kv")
    assert "1 block: two cannot halve 48 columns" in about(None, head_dim=(64, 48))
    pairs = Options(tile=(512, 128))
    assert about(None, options=pairs) == "a product of 2 blocks: the user's choice"


def test_both_memories_are_laid_out() -> None:
    rows = told(head_dim=(192, 128), dtype=torch.float16)
    assert rows["tensor memory"].startswith("512 columns of 512\nscores 0 0-127, scores 1 128-255")
    assert "probabilities 0 0-63" in rows["tensor memory"]
    assert "of 232448\nq 0-98303" in rows["shared memory"]


def test_cycles_and_their_bound_are_told() -> None:
    text = told()["model"]
    for words in ("cycles a tile", "bound: tensor cores", "special functions 1792", "on a B200"):
        assert words in text
    assert "on a B300" in told("sm_103a")["model"]
