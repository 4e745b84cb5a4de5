"""The notation of rows, and how an opcode finds its row."""

from __future__ import annotations

import pytest

from flexfa4.emulator.ptx.forms import Access, Form, Reader, Slot, form_of

TARGETS = frozenset({"sm_90a"})


def form(name: str, modifiers: str, operands: str) -> Form:
    return form_of(name, modifiers, operands, TARGETS)


SLOTS = {
    "rnd": Slot(("rn", "rz")),
    "type": Slot(("f32", "u16", "b32")),
    "to": Slot(("f32", "u16")),
    "space": Slot(("global", "shared", "shared::cta")),
    "sem": Slot(("relaxed", "acquire")),
    "scope": Slot(("cta", "gpu")),
    "dim": Slot(("1d", "2d")),
    "hint": Slot(("L2::cache_hint",), "a hint"),
}
READER = Reader(
    (
        form("add", "{.rnd}{.ftz}.type", "d=type, a:type, b:type"),
        form("cvt", "{.rnd}.to.type", "d=to, a:type"),
        form("mul", ".wide.type", "d=wide(type), a:type"),
        form("ld", "{.sem.scope}{.space}{.hint}.type", "d=type+, [a@space], policy:b64 if hint"),
        form("copy", ".dim", "[tensor@generic,coordinates*dim], n#u32 if given"),
        form("setp", ".type", "p=pred or _|?q=pred, a:type, c:!pred"),
        form("mov", ".type", "d=type, a:type or special or symbol"),
        form("mov", ".type", "{d}=type, a:type"),
        form("go", "", "target->label"),
        form("arrive", "", "_, [a@shared], state+=b64*4"),
    ),
    SLOTS,
)


def test_required_and_optional_modifiers_are_read_in_order() -> None:
    (operation,) = READER.operations("add.rz.ftz.f32")
    assert operation.modifiers == {"rnd": "rz", "ftz": "ftz", "type": "f32"}
    assert READER.operations("add.f32")[0].modifiers == {"type": "f32"}
    assert READER.operations("add.rz") == ()


def test_modifiers_may_stand_in_any_order_and_those_alike_keep_theirs() -> None:
    assert READER.operations("add.f32.ftz.rz")[0].modifiers == {
        "rnd": "rz",
        "ftz": "ftz",
        "type": "f32",
    }
    (operation,) = READER.operations("cvt.u16.rn.f32")
    assert operation.modifiers == {"rnd": "rn", "to": "u16", "type": "f32"}
    assert READER.operations("cvt.b32.f32") == ()
    assert READER.operations("add.rz.rn.f32") == ()


def test_a_group_of_modifiers_is_there_whole_or_not_at_all() -> None:
    assert READER.operations("ld.acquire.gpu.f32")
    assert READER.operations("ld.f32")
    assert not READER.operations("ld.acquire.f32")
    assert not READER.operations("ld.gpu.f32")


def test_operands_take_their_types_from_the_modifiers() -> None:
    (operation,) = READER.operations("add.u16")
    assert [(role.name, str(role.type)) for role in operation.roles] == [
        ("d", ".u16"),
        ("a", ".u16"),
        ("b", ".u16"),
    ]
    (operation,) = READER.operations("mul.wide.u16")
    assert [str(role.type) for role in operation.roles] == [".u32", ".u16"]


@pytest.mark.parametrize(
    ("text", "space"),
    [("ld.f32", "generic"), ("ld.global.f32", "global"), ("ld.shared::cta.f32", "shared")],
)
def test_an_address_takes_its_space_from_the_modifiers(text: str, space: str) -> None:
    (operation,) = READER.operations(text)
    assert operation.roles[1].space == space


def test_an_operand_with_a_condition_is_there_with_its_modifier_only() -> None:
    assert READER.operations("ld.f32")[0].positions == {"d": 0, "a": 1}
    assert READER.operations("ld.L2::cache_hint.f32")[0].positions == {"d": 0, "a": 1, "policy": 2}


def test_modifiers_without_effect_are_known_as_hints() -> None:
    (operation,) = READER.operations("ld.global.L2::cache_hint.f32")
    assert operation.hints == {"hint"}
    assert set(operation.modifiers) == {"space", "hint", "type"}


def test_the_notation_of_operands_is_read() -> None:
    tensor, n = READER.operations("copy.2d")[0].roles
    assert (tensor.access, tensor.rank, n.access, n.optional) == (
        Access.ADDRESS,
        2,
        Access.NUMBER,
        True,
    )
    p, q, _, c = READER.operations("setp.f32")[0].roles
    assert (p.paired, set(p.others), q.paired, q.optional) == (False, {"_"}, True, True)
    assert c.negatable
    sink, _, state = READER.operations("arrive")[0].roles
    assert (sink.access, state.access, state.count) == (Access.SINK, Access.UPDATE, 4)
    assert READER.operations("go")[0].roles[0].access is Access.LABEL


def test_rows_that_differ_in_operands_are_all_found() -> None:
    first, second = READER.operations("mov.b32")
    assert (first.roles[0].split, second.roles[0].split) == (False, True)
    assert first.roles[1].others == {"special", "symbol"}


def test_all_instructions_of_a_text_share_one_operation() -> None:
    assert READER.operations("add.f32")[0] is READER.operations("add.f32")[0]


@pytest.mark.parametrize(
    ("text", "read", "wanted"),
    [
        ("add.rn.sat.f32", 2, {"ftz", "f32", "u16", "b32"}),
        ("add.rn", 2, {"f32", "u16", "b32"}),
        ("add.f32.x", 2, {"rn", "rz", "ftz"}),
        ("mul.wide.f32.x", 3, set()),
        ("ld.acquire.f32", 3, {"cta", "gpu"}),
        ("sub.f32", 0, set()),
    ],
)
def test_an_opcode_without_row_tells_how_far_it_could_be_read(
    text: str, read: int, wanted: set[str]
) -> None:
    assert READER.shortfall(text) == (read, wanted)


@pytest.mark.parametrize(
    ("modifiers", "operands"), [("rnd", ""), (".rnd{", ""), ("", "d=f32,a:f32"), ("", "d?f32")]
)
def test_a_row_that_is_not_in_the_notation_is_refused(modifiers: str, operands: str) -> None:
    with pytest.raises(AssertionError):
        form("add", modifiers, operands)


def test_a_slot_may_stand_once_in_a_row() -> None:
    with pytest.raises(AssertionError, match="twice"):
        Reader((form("add", ".type.type", ""),), SLOTS)
