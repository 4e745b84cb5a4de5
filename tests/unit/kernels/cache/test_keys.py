"""Keys of kernels: equal for equal plans, in every process; different for different ones."""

from __future__ import annotations

import enum
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import flexfa4
from flexfa4.frontend.ir import Graph
from flexfa4.kernels.cache import keys
from flexfa4.kernels.cache.keys import canonical_text, fingerprint_of, key_of, sources_fingerprint

ROOT = Path(__file__).parents[4]


class Mode(enum.Enum):
    ONE = 1
    TWO = 2


@dataclass(frozen=True)
class Tile:
    rows: int
    columns: int


@dataclass(frozen=True)
class Plan:
    """As plans are: numbers, names, graphs, and more such dataclasses."""

    graph: Graph | None = None
    tile: Tile = Tile(128, 128)
    dtype: torch.dtype = torch.bfloat16
    mode: Mode = Mode.ONE
    tau: float = 8.0
    flags: frozenset[str] = frozenset()
    stages: tuple[int, ...] = (2, 3)
    note: str = field(default="", compare=False)


def graph(text: str) -> Graph:
    return flexfa4.trace(flexfa4.parse(text)).graph


DIFFERENT = [
    Plan(),
    Plan(tile=Tile(128, 64)),
    Plan(tile=Tile(64, 128)),
    Plan(dtype=torch.float16),
    Plan(mode=Mode.TWO),
    Plan(tau=0.0),
    Plan(tau=-0.0),
    Plan(tau=float("nan")),
    Plan(tau=float("inf")),
    Plan(tau=0.1),
    Plan(tau=0.1 + 2**-56),
    Plan(flags=frozenset({"a"})),
    Plan(flags=frozenset({"a", "b"})),
    Plan(flags=frozenset({"a,b"})),
    Plan(stages=(2,)),
    Plan(stages=(23,)),
    Plan(stages=()),
]


def test_different_plans_have_different_texts() -> None:
    assert len({canonical_text(plan) for plan in DIFFERENT}) == len(DIFFERENT)


def test_numbers_of_different_types_are_different() -> None:
    values: list[Any] = [1, 1.0, True, "1", b"1", None, (1,), frozenset({1}), {1: 1}]
    assert len({canonical_text(value) for value in values}) == len(values)


def test_sets_and_dicts_are_written_in_one_order() -> None:
    assert canonical_text(frozenset("abcdef")) == canonical_text(frozenset("fedcba"))
    assert canonical_text({"a": 1, "b": 2}) == canonical_text({"b": 2, "a": 1})


def test_what_does_not_tell_plans_apart_is_not_in_their_keys() -> None:
    assert canonical_text(Plan(note="one")) == canonical_text(Plan(note="two"))


@pytest.mark.parametrize(
    "value",
    [[1], object(), Tile, Plan(stages=(object(),))],  # type: ignore[arg-type]
    ids=["list", "object", "class", "inside"],
)
def test_what_has_no_canonical_text_is_refused(value: Any) -> None:
    with pytest.raises(AssertionError, match="has no canonical text"):
        canonical_text(value)


def test_a_mutable_dataclass_is_refused() -> None:
    @dataclass
    class Loose:
        x: int

    with pytest.raises(AssertionError, match="has no canonical text"):
        canonical_text(Loose(1))


# ---- graphs ----


def test_graphs_are_told_apart_by_all_that_is_in_them() -> None:
    slope = torch.ones(4)
    mods = [
        lambda score, b, h, q, kv: score + kv,
        lambda score, b, h, q, kv: score + q,
        lambda score, b, h, q, kv: score * 2.0,
        lambda score, b, h, q, kv: score * 2.5,
        lambda score, b, h, q, kv: score + slope[h],
        lambda score, b, h, q, kv: score + slope[b],
    ]
    texts = {canonical_text(Plan(flexfa4.trace(mod).graph)) for mod in mods}
    assert len(texts) == len(mods)


def test_a_graph_does_not_depend_on_the_function_that_it_came_from() -> None:
    traced = [flexfa4.trace(lambda score, b, h, q, kv: score + kv).graph for _ in range(2)]
    written = graph("score + kv")
    assert {canonical_text(g) for g in traced} == {canonical_text(written)}


def test_a_shared_expression_is_written_once() -> None:
    def doubled(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        for _ in range(40):  # 2**40 nodes, if it were a tree
            score = score * score + 1
        return score

    assert len(canonical_text(flexfa4.trace(doubled).graph)) < 20_000


# ---- keys ----


def test_a_key_depends_on_plan_architecture_and_format() -> None:
    made = {
        key_of(Plan(), "sm_90a", "1"),
        key_of(Plan(), "sm_100a", "1"),
        key_of(Plan(), "sm_90a", "2"),
        key_of(Plan(tau=1.0), "sm_90a", "1"),
    }
    assert len(made) == 4
    assert all(len(key) == 64 for key in made)


@pytest.mark.parametrize("name", ["compiler_release", "sources_fingerprint"])
def test_a_key_depends_on_what_compiles(name: str) -> None:
    before = key_of(Plan(), "sm_90a", "1")
    with mock.patch.object(keys, name, lambda: "another"):
        assert key_of(Plan(), "sm_90a", "1") != before


def test_a_key_is_the_same_in_another_process() -> None:
    code = (
        "from tests.unit.kernels.cache import test_keys as t\n"
        f"t.keys.sources_fingerprint = lambda: {sources_fingerprint()!r}\n"  # if files are edited
        "print(t.key_of(t.Plan(t.graph('score + (kv - q) * 0.5'), flags=frozenset('abcdef')),"
        " 'sm_90a', '1'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "1"},
    )
    plan = Plan(graph("score + (kv - q) * 0.5"), flags=frozenset("abcdef"))
    assert done.stdout.strip() == key_of(plan, "sm_90a", "1")


def test_the_fingerprint_sees_every_source_and_every_change(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    (folder / "inner").mkdir(parents=True)
    seen = {fingerprint_of([folder])}
    for name, text in (
        ("a.py", "1"),
        ("a.py", "2"),
        ("inner/b.py", "2"),
        ("c.py", ""),
        ("d.py", ""),
    ):
        (folder / name).write_text(text)
        seen.add(fingerprint_of([folder]))
    assert len(seen) == 6
    (folder / "notes.txt").write_text("no source")
    assert fingerprint_of([folder]) in seen


def test_the_fingerprint_covers_the_sources_of_kernels() -> None:
    assert len(sources_fingerprint()) == 64
    folders = [keys._folder(name) for name in keys.SOURCES]
    assert Path(keys.__file__).resolve() in {p for f in folders for p in f.rglob("*.py")}
    assert all(any(folder.rglob("*.py")) for folder in folders)
