"""Names by blocks: registers, variables, labels."""

from __future__ import annotations

import pytest

from flexfa4.emulator.errors import Place
from flexfa4.emulator.ptx.errors import DuplicateError, UndefinedLabelError
from flexfa4.emulator.ptx.program import Register
from flexfa4.emulator.ptx.scopes import Block, Registers, nearest
from flexfa4.emulator.ptx.types import TYPES

AT = Place(7, "the line")


@pytest.fixture
def block() -> Block:
    return Block(Block(), Registers())


def find(block: Block, name: str) -> Register:
    found = block.find(name)
    assert isinstance(found, Register)
    return found


def test_registers_get_places_in_the_order_in_which_they_are_named(block: Block) -> None:
    block.declare_register("%r", TYPES["b32"], 100, AT)
    block.declare_register("%p", TYPES["pred"], 4, AT)
    block.declare_register("%f", TYPES["f32"], 4, AT)
    names = ("%r90", "%p3", "%f0", "%r2", "%r90")
    assert [find(block, name).slot for name in names] == [0, 0, 1, 2, 0]
    assert block.registers is not None
    assert block.registers.banks == {32: 3, 1: 1}


@pytest.mark.parametrize("name", ["%r100", "%r", "%r01", "%r1x", "r1"])
def test_only_numbers_below_the_count_are_declared(block: Block, name: str) -> None:
    block.declare_register("%r", TYPES["b32"], 100, AT)
    assert block.find("%r99") and block.find("%r0")
    assert block.find(name) is None


def test_an_inner_block_hides_a_name_and_frees_it_again(block: Block) -> None:
    block.declare_register("x", TYPES["b32"], None, AT)
    outer = find(block, "x")
    inner = block.inner()
    assert find(inner, "x") is outer
    inner.declare_register("x", TYPES["b64"], None, AT)
    assert find(inner, "x").type is TYPES["b64"]
    assert find(block, "x") is outer
    assert find(block.inner(), "x") is outer


def test_each_block_has_its_own_register_of_a_repeated_name(block: Block) -> None:
    slots = []
    for _ in range(2):
        inner = block.inner()
        inner.declare_register("P1", TYPES["pred"], None, AT)
        slots.append(find(inner, "P1").slot)
    assert slots == [0, 1]


def test_a_label_is_found_from_inside_and_not_from_outside(block: Block) -> None:
    block.declare_label("around", 3, AT)
    inner = block.inner()
    inner.declare_label("DONE", 5, AT)
    assert (inner.label("around", AT), inner.label("DONE", AT)) == (3, 5)
    with pytest.raises(UndefinedLabelError, match="no label `DONE`"):
        block.label("DONE", AT)


def test_a_name_is_declared_once_in_a_block(block: Block) -> None:
    block.declare_register("x", TYPES["b32"], None, AT)
    with pytest.raises(DuplicateError, match="the register `x` is declared twice; first in line 7"):
        block.declare_register("x", TYPES["b64"], None, AT)
    block.declare_label("x", 0, AT)
    with pytest.raises(DuplicateError, match="the label `x`"):
        block.declare_label("x", 1, AT)


def test_an_undeclared_name_is_told_with_names_like_it(block: Block) -> None:
    block.declare_register("smem_desc", TYPES["b64"], None, AT)
    assert "nearest: smem_desc" in str(block.inner().undeclared("smem_dsc", AT))
    assert nearest("something", ["else"]) == ""
