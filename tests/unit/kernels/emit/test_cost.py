"""Instructions of mods for each score, where the emitted code is known (see `program`)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flexfa4.frontend.analysis.bounds import premises
from flexfa4.frontend.sizes import Sizes
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.emit.captures import CapturePlan, capture_plan
from flexfa4.kernels.emit.cost import (
    Fragment,
    Instructions,
    cost_of_mask,
    cost_of_score,
    loads_in_a_row,
)
from flexfa4.kernels.emit.places import Columns
from flexfa4.kernels.emit.program import (
    ScoreProgram,
    prepare_mask,
    prepare_score,
    score_promises,
)

SIZES = Sizes(1, 2, 2, 4096, 4096)
COLUMNS = Columns(tuple(i // 2 * 8 + i % 2 for i in range(32)), 2)  # of a tile of 128 keys
FRAGMENT = Fragment(COLUMNS, (0, 8))
PACKED = Fragment(COLUMNS, (None, None), frozenset({"q", "h"}))
WHOLE_ROW = Fragment(Columns(tuple(range(128)), 128), (0,), pairs=True)

SLOPE, BIAS = torch.rand(2), torch.rand(2, 4096)
PAIR = torch.rand(2, 4096, 4096, dtype=torch.float16)
TABLE, BUCKETS = torch.rand(32, 2), torch.randint(0, 32, (4096,))


def program_of(mod: Any, sizes: Sizes = SIZES) -> tuple[ScoreProgram, CapturePlan]:
    bound = resolve(mod, "score")
    promises = score_promises(bound.graph, premises(bound, sizes).domain(), 0.125)
    return prepare_score(bound.graph, promises), capture_plan(bound, sizes)


def cost(mod: Any, fragment: Fragment = FRAGMENT, **options: Any) -> Instructions:
    return cost_of_score(*program_of(mod), fragment, **options)


def mask_cost(mask: Any, sizes: Sizes = SIZES) -> Instructions:
    bound = resolve(mask, "mask")
    return cost_of_mask(prepare_mask(bound.graph), capture_plan(bound, sizes), FRAGMENT)


def t5(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return score + TABLE[BUCKETS[(q - kv).clamp(min=0)], h]


# Mods -> what each pipe has to do for a score: fma, alu, mufu, load.
KNOWN: dict[str, tuple[Any, tuple[float, float, float, float]]] = {
    "nothing": (lambda s, b, h, q, kv: s, (0, 0, 0, 0)),
    "of the row": (lambda s, b, h, q, kv: s * 0.5 + BIAS[h, q], (0, 0, 0, 0)),
    "alibi": (lambda s, b, h, q, kv: s + SLOPE[h] * (kv - q), (1, 0, 0, 0)),
    "symmetric alibi": (lambda s, b, h, q, kv: s - SLOPE[h] * (q - kv).abs(), (1.5, 0.5, 0, 0)),
    "softcap": (lambda s, b, h, q, kv: 30 * torch.tanh(s / 30), (1, 0, 1, 0)),
    "bias of keys": (lambda s, b, h, q, kv: s + BIAS[h, kv], (1, 0, 0, 0.25)),
    "bias of pairs": (lambda s, b, h, q, kv: s + PAIR[h, q, kv], (1, 0, 0, 0.5)),
    "T5": (t5, (1, 5, 0, 1)),
    "in place of the score": (lambda s, b, h, q, kv: BIAS[h, kv], (0, 0, 0, 0.25)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_mods_take_what_they_are_known_to_take(name: str) -> None:
    mod, expected = KNOWN[name]
    found = cost(mod)
    shown = (found.fma, found.alu, found.mufu, found.load)
    assert shown == pytest.approx(expected, abs=0.35)  # what is shared by rows or done per tile
    assert found.all == pytest.approx(sum(shown))


# The same for a whole row, on pairs: of fma, how many are issued two at a time.
KNOWN_ON_PAIRS: dict[str, tuple[float, float, float, float, float]] = {
    "nothing": (0, 0, 0, 0, 0),
    "alibi": (1, 0, 0, 0, 1),
    "symmetric alibi": (2, 1, 0, 0, 1),
    "softcap": (1, 0, 1, 0, 1),
    "bias of keys": (1, 0, 0, 0.25, 1),
    "bias of pairs": (1, 0, 0, 0.125, 1),
}


@pytest.mark.parametrize("name", KNOWN_ON_PAIRS)
def test_instructions_on_pairs_are_shared_by_two_scores(name: str) -> None:
    found = cost(KNOWN[name][0], WHOLE_ROW)
    shown = (found.fma, found.alu, found.mufu, found.load, found.paired)
    assert shown == pytest.approx(KNOWN_ON_PAIRS[name], abs=0.05)
    assert found.all == pytest.approx(sum(shown[:4]) - found.paired / 2)


def test_precise_functions_cost_more_than_the_hardwares() -> None:
    softcap = KNOWN["softcap"][0]
    assert cost(softcap, fast=False).mufu > 4 * cost(softcap).mufu


def test_packed_heads_share_nothing_between_rows() -> None:
    assert cost(t5, PACKED).load == 2 > cost(t5).load


def test_integers_that_may_leave_32_bits_cost_twice_as_much() -> None:
    mask = lambda b, h, q, kv: (q + 2 * kv) % 5 == 0  # noqa: E731
    far = Sizes(1, 2, 2, 1 << 40, 1 << 40)
    assert mask_cost(mask, far).alu > 1.5 * mask_cost(mask).alu


def test_a_mask_takes_its_comparisons_and_a_selection() -> None:
    window = mask_cost(lambda b, h, q, kv: (q >= kv) & (q - kv < 100))
    assert 2 < window.alu <= 4 and window.load == 0
    ids = torch.zeros(4096, dtype=torch.int32)
    assert mask_cost(lambda b, h, q, kv: ids[q] == ids[kv]).load == 0.25


def test_reads_that_wait_for_reads_are_a_chain() -> None:
    assert [loads_in_a_row(program_of(KNOWN[name][0])[0]) for name in KNOWN] == [
        0, 0, 0, 0, 0, 1, 1, 2, 1,
    ]  # fmt: skip
