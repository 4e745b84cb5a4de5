"""Instructions in which the lanes of a warp see each other, against rules over whole warps."""

from __future__ import annotations

import functools
import operator
import random
import struct
from collections.abc import Callable

import pytest

from flexfa4.emulator.failures.machine import DeadlockError
from flexfa4.emulator.failures.warps import DifferentMembersError, NotMemberError
from tests.ptx_programs import run_instruction

LANES = list(range(32))
ALL = 0xFFFFFFFF
POISON = 0xFFFFFFFF
NAN = 0x7FFFFFFF


def lanes_of(mask: int) -> list[int]:
    return [lane for lane in LANES if mask >> lane & 1]


def words(seed: int, count: int = 32) -> list[int]:
    generator = random.Random(seed)
    return [generator.getrandbits(32) for _ in range(count)]


# ---- which lanes


def test_activemask_names_the_lanes_that_execute_it() -> None:
    found = run_instruction("activemask.b32 d;", {}, "d:b32", active=0x00F0_0301)
    assert found["d"] == [0x00F0_0301 if 0x00F0_0301 >> lane & 1 else 0 for lane in LANES]


@pytest.mark.parametrize("active", [ALL, 0xFFFFFFF0, 0x8000_0000, 0x0001_0100])
def test_elect_chooses_the_lowest_lane(active: int) -> None:
    found = run_instruction("elect.sync d|p, m;", {"m:b32": active}, "d:b32 p:pred", active=active)
    leader = lanes_of(active)[0]
    assert found["d"] == [leader if active >> lane & 1 else 0 for lane in LANES]
    assert found["p"] == [lane == leader for lane in LANES]


def test_elect_may_write_its_leader_to_nowhere() -> None:
    found = run_instruction("elect.sync _|p, -1;", {}, "p:pred")
    assert found["p"] == [lane == 0 for lane in LANES]


# ---- shfl


def source_lane(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """Return where a lane reads, as the PTX ISA's pseudo code has it."""
    mask, clamp, b = c >> 8 & 31, c & 31, b & 31
    least = lane & mask
    greatest = least | (clamp & ~mask)
    j = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": least | (b & ~mask)}[mode]
    in_range = j >= greatest if mode == "up" else j <= greatest
    return (j if in_range else lane), in_range


# c for warps that are whole, and for groups of 16, 8, 4 and 1 lanes
SEGMENTS = [0x1F, 0x101F, 0x181F, 0x1C1F, 0x1F1F]


@pytest.mark.parametrize("c", [*SEGMENTS, *(c & ~0x1F for c in SEGMENTS), 0x0007, 0x1C03])
@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shfl_reads_the_lane_that_its_mode_says(mode: str, c: int) -> None:
    values = words(1)
    for b in (0, 1, 2, 5, 16, 31, 33, 0xFFFFFFFF):
        found = run_instruction(
            f"shfl.sync.{mode}.b32 d|p, a, b, c, -1;",
            {"a:b32": values, "b:b32": b, "c:b32": c},
            "d:b32 p:pred",
        )
        sources = [source_lane(mode, lane, b, c) for lane in LANES]
        assert found["d"] == [values[source] for source, _ in sources]
        assert found["p"] == [in_range for _, in_range in sources]


def test_shfl_takes_a_source_and_a_segment_from_each_lane() -> None:
    values, b, c = words(2), words(3), words(4)
    found = run_instruction(
        "shfl.sync.idx.b32 a|p, a, b, c, -1;",
        {"a:b32": values, "b:b32": b, "c:b32": c},
        "a:b32 p:pred",
    )
    sources = [source_lane("idx", *row) for row in zip(LANES, b, c, strict=True)]
    assert found["a"] == [values[source] for source, _ in sources]


def test_shfl_without_a_predicate_writes_the_value_only() -> None:
    values = words(5)
    found = run_instruction("shfl.sync.bfly.b32 d, a, 1, 31, -1;", {"a:b32": values}, "d:b32")
    assert found["d"] == [values[lane ^ 1] for lane in LANES]


def test_shfl_gives_poison_where_the_source_takes_no_part() -> None:
    values = words(6)
    found = run_instruction(
        "shfl.sync.idx.b32 d, a, 5, 31, 0xF;", {"a:b32": values}, "d:b32", active=0xF
    )
    assert found["d"] == [POISON] * 4 + [0] * 28
    found = run_instruction(
        "shfl.sync.down.b32 d, a, 1, 31, -1;", {"a:b32": values[:20]}, "d:b32", threads=20
    )
    assert found["d"] == [*values[1:20], POISON]


# ---- vote and match


@pytest.mark.parametrize("votes", [0, ALL, 1, 0x7FFFFFFF, 0x00FF0000])
@pytest.mark.parametrize("negated", ["", "!"])
@pytest.mark.parametrize("members", [ALL, 0x00FF0000, 0x3])
def test_vote_counts_the_members(votes: int, negated: str, members: int) -> None:
    found = run_instruction(
        f"vote.sync.all.pred all, {negated}a, m; vote.sync.any.pred any, {negated}a, m;"
        f" vote.sync.uni.pred uni, {negated}a, m; vote.sync.ballot.b32 d, {negated}a, m;",
        {"a:pred": [bool(votes >> lane & 1) for lane in LANES], "m:b32": members},
        "all:pred any:pred uni:pred d:b32",
        active=members,
    )
    given = (~votes if negated else votes) & members
    for lane in lanes_of(members):
        assert found["all"][lane] == (given == members)
        assert found["any"][lane] == (given != 0)
        assert found["uni"][lane] == (given in (0, members))
        assert found["d"][lane] == given
    assert not any(found["d"][lane] for lane in LANES if lane not in lanes_of(members))


@pytest.mark.parametrize("bits", [32, 64])
def test_match_any_names_the_lanes_with_the_same_value(bits: int) -> None:
    values = [(lane % 5) << (bits - 8) for lane in LANES]
    found = run_instruction(f"match.any.sync.b{bits} d, a, -1;", {f"a:b{bits}": values}, "d:b32")
    assert found["d"] == [
        sum(1 << other for other in LANES if values[other] == values[lane]) for lane in LANES
    ]


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("odd", [None, 0, 31])
def test_match_all_tells_whether_all_values_are_the_same(bits: int, odd: int | None) -> None:
    values = [0x7F << (bits - 8) | (lane == odd) for lane in LANES]
    found = run_instruction(
        f"match.all.sync.b{bits} d|p, a, -1; match.all.sync.b{bits} e, a, -1;"
        f" match.all.sync.b{bits} _|q, a, -1;",
        {f"a:b{bits}": values},
        "d:b32 p:pred e:b32 q:pred",
    )
    same = odd is None
    assert found["d"] == found["e"] == [ALL if same else 0] * 32
    assert found["p"] == found["q"] == [same] * 32


# ---- redux

REDUCTIONS: dict[str, Callable[[int, int], int]] = {
    "add.u32": operator.add,
    "add.s32": operator.add,
    "min.u32": min,
    "max.u32": max,
    "min.s32": min,
    "max.s32": max,
    "and.b32": operator.and_,
    "or.b32": operator.or_,
    "xor.b32": operator.xor,
}


@pytest.mark.parametrize("members", [ALL, 0x0F0F_0000, 0x8000_0000])
@pytest.mark.parametrize("text", REDUCTIONS)
def test_redux_combines_the_values_of_the_members(text: str, members: int) -> None:
    kind = text.split(".")[1]
    values = [v - (v >> 31 << 32) if kind == "s32" else v for v in words(7)]
    found = run_instruction(
        f"redux.sync.{text} d, a, m;",
        {f"a:{kind}": values, "m:b32": members},
        "d:b32",
        active=members,
    )
    result = functools.reduce(REDUCTIONS[text], (values[lane] for lane in lanes_of(members)))
    assert found["d"] == [result & ALL if members >> lane & 1 else 0 for lane in LANES]


def bits_of(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


INFINITY, MINUS = bits_of(float("inf")), 0x80000000


@pytest.mark.parametrize(
    ("text", "values", "result"),
    [
        ("min", [1.5, -2.0, 3.0], bits_of(-2.0)),
        ("max", [1.5, -2.0, 3.0], bits_of(3.0)),
        ("max", [-1.5, -2.0, -3.0], bits_of(-1.5)),
        ("min.abs", [1.5, -1.0, -3.0], bits_of(1.0)),
        ("max.abs", [1.5, -1.0, -3.0], bits_of(3.0)),
        ("max", [0.0, -0.0], 0),
        ("min", [0.0, -0.0], MINUS),
        ("min.abs", [-0.0, -1.0], 0),
        ("max", [float("inf"), 1.0], INFINITY),
        ("min", [1e-45, 1e-38], 1),
        ("max", [float("nan"), 1.0], bits_of(1.0)),
        ("max.NaN", [float("nan"), 1.0], NAN),
        ("min.abs.NaN", [-float("nan"), 1.0], NAN),
        ("min", [float("nan")], NAN),
        ("max.NaN", [1.0, 2.0], bits_of(2.0)),
    ],
)
def test_redux_of_floats_knows_signs_of_zero_and_nan(
    text: str, values: list[float], result: int
) -> None:
    found = run_instruction(
        f"redux.sync.{text}.f32 d, a, -1;", {"a:b32": [bits_of(v) for v in values]}, "d:b32"
    )
    assert found["d"] == [result] * len(values)


# ---- members

DIVERGE = "setp.lt.u32 p, lane, 8; @p bra LOW; {high} bra MEET; LOW: {low} MEET:"


def test_lanes_with_masks_of_their_own_are_collectives_of_their_own() -> None:
    found = run_instruction(
        "shr.u32 m, lane, 3; shl.b32 m, m, 3; shl.b32 m, 0xFF, m;"
        " redux.sync.add.u32 d, lane, m; elect.sync e|q, m; vote.sync.ballot.b32 f, q, m;",
        {"lane:u32": LANES},
        "d:u32 e:b32 f:b32 q:pred m:b32",
    )
    for lane in LANES:
        first = lane & ~7
        assert found["d"][lane] == sum(range(first, first + 8))
        assert found["e"][lane] == first
        assert found["f"][lane] == 1 << first


def test_diverged_lanes_use_collectives_of_their_own() -> None:
    found = run_instruction(
        DIVERGE.format(
            high="redux.sync.add.u32 d, lane, 0xFFFFFF00;", low="redux.sync.max.u32 d, lane, 0xFF;"
        ),
        {"lane:u32": LANES},
        "d:u32",
        registers=".reg .pred p;",
    )
    assert found["d"] == [7] * 8 + [sum(range(8, 32))] * 24


def test_members_wait_for_each_other_behind_a_branch() -> None:
    found = run_instruction(
        DIVERGE.format(high="add.u32 v, lane, 100;", low="add.u32 v, lane, 0;")
        + " bar.warp.sync -1; shfl.sync.idx.b32 d, v, 31, 31, -1;"
        " shfl.sync.idx.b32 e, v, 0, 31, -1;",
        {"lane:u32": LANES},
        "d:u32 e:u32",
        registers=".reg .pred p; .reg .b32 v;",
    )
    assert found["d"] == [131] * 32
    assert found["e"] == [0] * 32


def test_members_that_have_exited_are_not_waited_for() -> None:
    found = run_instruction(
        "setp.ge.u32 p, lane, 8; @p exit; vote.sync.ballot.b32 d, !p, -1; bar.warp.sync -1;",
        {"lane:u32": LANES},
        "d:b32",
        registers=".reg .pred p;",
    )
    assert found["d"] == [0xFF] * 8 + [0] * 24


def test_members_may_meet_at_barriers_in_different_branches() -> None:
    found = run_instruction(
        "setp.lt.u32 p, lane, 8; setp.lt.u32 q, lane, 20; @p bra LOW; @q bra MIDDLE;"
        " bar.warp.sync -1; bar.warp.sync 0xFFFFFF00; bra MEET;"
        " LOW: bar.warp.sync -1; bra MEET;"
        " MIDDLE: bar.warp.sync -1; bar.warp.sync 0xFFFFFF00;"
        " MEET: vote.sync.ballot.b32 d, p, -1;",
        {"lane:u32": LANES},
        "d:b32",
        registers=".reg .pred p, q;",
    )
    assert found["d"] == [0xFF] * 32


def test_a_member_that_never_comes_is_a_deadlock() -> None:
    low = "LOW: bar.warp.sync 0xFF; bar.warp.sync -1; MEET:"
    with pytest.raises(DeadlockError, match="members 0xffffffff of its warp") as caught:
        run_instruction(
            "setp.lt.u32 p, lane, 8; @p bra LOW; vote.sync.any.pred p, p, -1; bra MEET;" + low,
            {"lane:u32": LANES},
            registers=".reg .pred p;",
        )
    assert "lanes 8-31" in str(caught.value)
    assert "lanes 0-7" in str(caught.value)


@pytest.mark.parametrize(
    "code",
    [
        "elect.sync _|p, m;",
        "shfl.sync.idx.b32 d, d, 0, 31, m;",
        "vote.sync.all.pred p, p, m;",
        "vote.sync.ballot.b32 d, p, m;",
        "match.any.sync.b32 d, d, m;",
        "match.all.sync.b32 d, d, m;",
        "redux.sync.add.u32 d, d, m;",
        "redux.sync.min.f32 d, d, m;",
        "bar.warp.sync m;",
    ],
)
def test_a_lane_outside_of_its_own_mask_is_an_error(code: str) -> None:
    with pytest.raises(NotMemberError, match=r"lanes 0x100 .* mask 0xfffffeff") as caught:
        run_instruction(code, {"m:b32": ALL & ~0x100, "d:b32": 0, "p:pred": False})
    assert caught.value.where is not None
    assert caught.value.where.text.strip() == code


def test_members_with_different_masks_are_an_error() -> None:
    with pytest.raises(DifferentMembersError, match=r"0xffffffff contains lane 3,.* 0x8\n"):
        run_instruction("bar.warp.sync m;", {"m:b32": [8 if lane == 3 else ALL for lane in LANES]})
