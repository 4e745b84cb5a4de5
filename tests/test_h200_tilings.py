"""What of the search for tilings on an H200 needs no GPU: candidates, the choice, the tables."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import h200_tilings
import pytest
from hopper import tilings, variants
from hopper.tiling_calls import shape_for
from hopper.tilings import DECIDING, PRESENT, VARIANTS, Measured, Search, Tiling, searches
from rich.console import Console

from flexfa4.kernels.sm90.backward import storage
from flexfa4.kernels.sm90.backward.storage import Tiling as BackwardTiling
from flexfa4.kernels.sm90.forward.plan import Tiling as ForwardTiling
from flexfa4.kernels.sm90.forward.storage import SHARED_MEMORY
from flexfa4.primitives.exponentials import EmulatedFraction

FORWARD = Search("forward", (128, 128))

# ---- candidates ----------------------------------------------------------------------------------


@pytest.mark.parametrize("search", searches().values(), ids=lambda search: search.name)
def test_candidates_begin_with_the_present_tiling_are_different_and_fit(search: Search) -> None:
    found = search.first()
    assert found[0] == search.present and len(set(found)) == len(found) > 1
    assert {t for table in search.presents.values() for t in table.values()} <= set(found)
    for tiling in found:
        assert search.nbytes(tiling) <= SHARED_MEMORY
        assert isinstance(tiling, ForwardTiling if search.way == "forward" else BackwardTiling)


def test_backward_candidates_differ_in_every_field_that_a_tiling_of_the_table_sets() -> None:
    for head_dims in PRESENT["backward"]:
        found = Search("backward", head_dims).first()
        assert len({t.early for t in found if isinstance(t, BackwardTiling)}) == 2
    narrow = Search("backward", (64, 64)).first()
    for name in ("queries", "kv_stages", "staged", "lagged", "finishes"):
        assert len({getattr(tiling, name) for tiling in narrow}) == 2, name
    wide = Search("backward", (192, 128)).first()
    for name in ("by_keys", "dp_parts"):
        assert len({getattr(tiling, name) for tiling in wide}) == 2, name


def test_results_of_more_keys_take_more_registers_and_parts_of_them_fewer() -> None:
    tiling = BackwardTiling(64, 128)
    assert tilings.held_registers(tiling, (128, 128)) == 128 + 32 + 32 + 32 + 16
    assert (
        tilings.held_registers(replace(tiling, queries=128), (128, 128)) == 128 + 64 + 64 + 64 + 32
    )
    late = replace(tiling, early=False)
    assert tilings.held_registers(late, (128, 128)) == 128 + 32 + 32 + 32
    halves = replace(tiling, in_registers=False, dp_parts=2)
    assert tilings.held_registers(halves, (128, 128)) == 128 + max(32 + 16, 32)
    columns = storage.Tiling(64, 64, by_keys=False)
    assert tilings.held_registers(columns, (128, 128)) == 64 + 16 + 16 + 32 + 8


def test_those_near_the_best_are_measured_again_with_other_exponentials() -> None:
    near, nearer, far = (ForwardTiling(2, keys) for keys in (112, 96, 64))
    times: dict[Tiling, float] = {FORWARD.present: 1.1, near: 1.02, nearer: 1.0, far: 1.2}
    found = FORWARD.second(times)
    assert found[:3] == [FORWARD.present, near, nearer] and far not in found
    for tiling in (near, nearer):
        assert {replace(tiling, early=early) for early in (0.0, 0.25, 0.5)} <= set(found)
        assert replace(tiling, early=0.5, emulated=EmulatedFraction(1, 8)) in found
    assert not FORWARD.second({})
    assert not Search("backward", (64, 64)).second({BackwardTiling(64, 128): 1.0})


def test_calls_take_about_as_long_at_all_head_dims_and_with_both_masks() -> None:
    for search in searches().values():
        for variant in search.variants:
            shape = shape_for(search, variant)
            scores = variants.VARIANTS[variant].visible(shape)
            flops = shape.flops if search.way == "forward" else shape.backward_flops
            assert 0.7e12 < flops(scores) < 2.8e12, search.name


# ---- the choice ----------------------------------------------------------------------------------


def timed(tiling: Tiling, full: float, causal: float, nbytes: int = 1000) -> Measured:
    return Measured(tiling, nbytes, {"full": [full] * 3, "causal": [causal] * 3})


PRESENT_ONE, OTHER, THIRD = FORWARD.present, ForwardTiling(2, 112), ForwardTiling(2, 96)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([timed(PRESENT_ONE, 2.0, 1.0), timed(OTHER, 1.99, 0.995)], PRESENT_ONE),
        ([timed(PRESENT_ONE, 2.0, 1.0), timed(OTHER, 1.9, 0.95)], OTHER),
        ([timed(PRESENT_ONE, 2.0, 1.0), timed(OTHER, 1.6, 1.1)], OTHER),
        ([timed(PRESENT_ONE, 2.0, 1.0), timed(OTHER, 1.9, 1.06)], PRESENT_ONE),
        (
            [timed(PRESENT_ONE, 2, 1), timed(OTHER, 1.9, 0.95), timed(THIRD, 1.91, 0.955, 900)],
            THIRD,
        ),
        ([timed(OTHER, 1.9, 1.0), timed(THIRD, 1.8, 1.0)], THIRD),  # the present one failed
    ],
)
def test_the_best_of_both_variants_is_chosen_if_it_is_worth_it(
    found: list[Measured], expected: Tiling
) -> None:
    assert tilings.chosen(found, PRESENT_ONE, ("full", "causal")) == expected


def test_each_table_is_decided_by_its_own_variants() -> None:
    found = [timed(PRESENT_ONE, 2.0, 1.0), timed(OTHER, 1.6, 1.1), timed(THIRD, 2.1, 0.9)]
    assert tilings.chosen(found, PRESENT_ONE, ("full",)) == OTHER
    assert tilings.chosen(found, PRESENT_ONE, ("causal",)) == THIRD
    assert set().union(*DECIDING.values()) == set().union(*VARIANTS.values())


def entry(tiling: Tiling, full: float, causal: float) -> dict[str, Any]:
    ms = {"full": [full] * 3, "causal": [causal] * 3, "window-1024": [causal] * 3}
    return {"tiling": tilings.as_json(tiling), "bytes": FORWARD.nbytes(tiling), "ms": ms}


def results() -> dict[str, Any]:
    failed = {"tiling": {"warpgroups": 3, "keys": 80}, "bytes": 1, "ms": {"full": [1.0]}}
    emulated = replace(OTHER, early=0.5, emulated=EmulatedFraction(1, 8))
    first = [entry(PRESENT_ONE, 2.0, 1.0), entry(THIRD, 1.0, 0.5)]
    last = [entry(PRESENT_ONE, 2.0, 1.0), entry(emulated, 1.5, 0.8)]
    last.append({**failed, "failed": "causal: spills 24 bytes"})
    card = {"name": "NVIDIA H200"}
    return {
        "runs": [{"date": "2026-01-31", "card": card}],
        "searches": {FORWARD.name: {"search": FORWARD.name, "stages": [first, last], "run": 0}},
    }


def test_the_table_has_what_was_measured_last_and_keeps_the_rest() -> None:
    made = h200_tilings.tables(results())
    emulated = replace(OTHER, early=0.5, emulated=EmulatedFraction(1, 8))
    assert made["backward"] == PRESENT["backward"]
    assert made["forward"] == {**PRESENT["forward"], (128, 128): emulated}
    others = {dims: tiling for dims, tiling in PRESENT["unmasked"].items() if dims != (128, 128)}
    assert made["unmasked"] == others  # the row is that of calls with a mask


def test_calls_without_a_mask_have_a_row_of_their_own_where_it_is_another() -> None:
    given, plain = results(), ForwardTiling(3, 80)
    entries = given["searches"][FORWARD.name]["stages"][-1]
    entries[-1] = entry(plain, 1.2, 1.1)
    made = h200_tilings.tables(given)
    assert made["unmasked"][128, 128] == plain != made["forward"][128, 128]


def test_the_results_are_shown_the_fastest_first() -> None:
    written = io.StringIO()
    h200_tilings.show(results(), Console(file=written, width=200))
    lines = [line for line in written.getvalue().splitlines() if "warpgroups" in line]
    assert ["chosen for forward" in line for line in lines] == [True, False, False]
    assert "0.800" in lines[0] and "0.750" in lines[0] and "present" in lines[1]
    assert "causal: spills 24 bytes" in lines[2]


# ---- the tables ----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", VARIANTS)
def test_the_tables_are_as_they_are_written(way: str) -> None:
    path = h200_tilings.KERNELS / way / "tilings.py"
    assert path.read_text(encoding="utf-8") == tilings.source(way, PRESENT)


def test_the_command_line_writes_the_tables_from_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "results.json"
    h200_tilings.keep(results(), kept)
    for way in VARIANTS:
        (tmp_path / way).mkdir()
    monkeypatch.setattr(h200_tilings, "KERNELS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["h200_tilings.py", "--results", str(kept), "--write"])
    h200_tilings.main()
    assert "forward-128-128, 2026-01-31, NVIDIA H200" in capsys.readouterr().out
    made = h200_tilings.tables(results())
    for way in VARIANTS:
        assert (tmp_path / way / "tilings.py").read_text() == tilings.source(way, made)


def test_searches_that_do_not_exist_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["h200_tilings.py", "--only", "forward-80-*"])
    with pytest.raises(SystemExit, match=r"forward-80-.*there are forward-64-64"):
        h200_tilings.main()


def test_a_table_with_emulated_exponentials_can_be_read() -> None:
    table: dict[tuple[int, int], Tiling] = {
        (64, 64): ForwardTiling(2, 96, early=0.5, emulated=EmulatedFraction(1, 8))
    }
    written: dict[str, Any] = {}
    text = tilings.source("forward", {"forward": table, "unmasked": {}})
    exec(compile(text, "tilings", "exec"), written)
    assert written["FORWARD"] == table and written["UNMASKED"] == {}


@pytest.mark.parametrize("search", searches().values(), ids=lambda search: search.name)
def test_a_tiling_comes_back_from_the_results(search: Search) -> None:
    for tiling in [*search.first(), *search.second(dict.fromkeys(search.first(), 1.0))]:
        assert tilings.tiling_of(search.way, tilings.as_json(tiling)) == tiling
