"""Results of operations are the same objects by our casters, and CuTe-DSL's are back behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("cutlass")

from cutlass._mlir import ir
from cutlass._mlir.dialects import arith, vector
from cutlass._mlir_helpers.arith import ArithValue
from cutlass.cutlass_dsl import T

from flexfa4.kernels.compile import casters
from flexfa4.kernels.compile.casters import quick_casters

NUMBERS = {"f32": T.f32, "i1": T.bool, "i8": T.i8, "i32": T.i32, "i64": T.i64}
VECTORS = {"f32": T.f32, "f16": T.f16, "bf16": T.bf16, "f64": T.f64, "i32": T.i32}


@pytest.fixture(autouse=True)
def module() -> Iterator[None]:
    with ir.Context(), ir.Location.unknown():
        made = ir.Module.create()
        with ir.InsertionPoint(made.body):
            yield


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that grows by what CuTe-DSL's own caster makes."""
    made: list[Any] = []
    before = ArithValue.__init__

    def watched(self: Any, *arguments: Any, **more: Any) -> None:
        made.append(self)
        before(self, *arguments, **more)

    monkeypatch.setattr(ArithValue, "__init__", watched)
    return made


def number(kind: str) -> Any:
    return arith.constant(NUMBERS[kind](), 1.0 if kind == "f32" else 1)


def vector_of(kind: str) -> Any:
    element = VECTORS[kind]()
    one = arith.constant(element, 1 if kind == "i32" else 1.0)
    return vector.from_elements(ir.VectorType.get([2], element), [one, one])


def facts(value: Any) -> tuple[Any, ...]:
    return type(value), str(value.type), vars(value)


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_are_the_same_objects(kind: str) -> None:
    by_them = facts(number(kind))
    with quick_casters():
        assert facts(number(kind)) == by_them


@pytest.mark.parametrize("kind", VECTORS)
def test_vectors_are_the_same_objects(kind: str) -> None:
    by_them = facts(vector_of(kind))
    with quick_casters():
        assert facts(vector_of(kind)) == by_them


def test_what_is_made_inside_is_an_operand_behind() -> None:
    with quick_casters():
        one, pair = number("f32"), vector_of("f32")
    assert str((one + one).type) == "f32" and str((pair + pair).type) == "vector<2xf32>"


def test_their_casters_are_back_behind(theirs: list[Any]) -> None:
    with quick_casters():
        number("f32"), number("i32"), vector_of("f32")
    assert not theirs
    with pytest.raises(KeyError), quick_casters():
        raise KeyError
    made = [number("f32"), number("i32")]
    assert len(theirs) == len(made)
    vector_of("f32")
    assert len(theirs) == len(made) + 2


def test_another_release_keeps_its_own(theirs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(casters, "RELEASE", "5.0.0")
    with quick_casters():
        number("f32")
    assert len(theirs) == 1
