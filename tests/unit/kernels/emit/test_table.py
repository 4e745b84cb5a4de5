"""The two tables of ops, held against each other; what the forms compute is in tests/emulate."""

from __future__ import annotations

import pytest

pytest.importorskip("cutlass")

from flexfa4.frontend.ir import BOOL, F32, I32
from flexfa4.frontend.ops import OPS
from flexfa4.kernels.emit.structure import PACKED
from flexfa4.kernels.emit.table import EMISSIONS


def test_every_op_has_a_row_and_every_row_an_op() -> None:
    assert set(EMISSIONS) == set(OPS)


@pytest.mark.parametrize("name", OPS)
def test_a_row_has_a_form_for_every_dtype_that_the_op_takes(name: str) -> None:
    row, emission = OPS[name], EMISSIONS[name]
    forms = {F32: emission.f32, I32: emission.i32, BOOL: emission.bool}
    taken = {dtype for dtype, form in forms.items() if form is not None}
    if row.reduces:
        assert OPS[emission.combine].dtypes.operands >= row.dtypes.operands
    elif name.startswith("to_"):  # the conversion of a type to itself is none
        assert taken == row.dtypes.operands - {row.dtypes.result}
    else:
        assert taken == row.dtypes.operands


@pytest.mark.parametrize("name", EMISSIONS)
def test_a_fast_form_says_how_far_off_it_is(name: str) -> None:
    emission = EMISSIONS[name]
    assert bool(emission.fast) == bool(emission.fast_error)


def test_ops_on_pairs_are_those_that_the_structure_knows() -> None:
    assert {name for name, emission in EMISSIONS.items() if emission.pairs} == PACKED
