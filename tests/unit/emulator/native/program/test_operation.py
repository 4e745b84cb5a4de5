"""Every operation that the table of instructions reads has code in the core."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flexfa4.emulator.decode.encoding import OperationRecord, encode_operation
from flexfa4.emulator.errors import EmulationError
from flexfa4.emulator.failures.program import UnreadModifierError, UnsupportedOperationError
from flexfa4.emulator.native.library import bind
from flexfa4.emulator.ptx.forms import Form, Operation, Slot, form_of
from flexfa4.emulator.ptx.forms import Reader as FormReader
from flexfa4.emulator.ptx.slots import SLOTS
from flexfa4.emulator.ptx.table import READER


def texts(form: Form) -> Iterator[str]:
    """Yield opcodes of a form in which each modifier stands once, with the fewest and the most."""

    def text(chosen: dict[str, str], groups: list[tuple[str, ...]]) -> str:
        slots = [slot for group, _ in form.modifiers if group in groups for slot in group]
        values = [chosen.get(slot, READER.values(slot)[0]) for slot in slots]
        return ".".join([form.name, *values])

    every = [group for group, _ in form.modifiers]
    required = [group for group, needed in form.modifiers if needed]
    for group in every:
        for groups in ([g for g in every if g in required or g == group], every):
            for slot in group:
                yield from (text({slot: value}, groups) for value in READER.values(slot))
    yield text({}, required)
    yield text({}, every)


def operations(form: Form) -> Iterator[Operation]:
    """Yield the operations of a form, each once."""
    for text in dict.fromkeys(texts(form)):
        yield from (o for o in READER.operations(text) if o.form is form)


def complaint(operation: Operation) -> str:
    """Return why the core does not bind an operation; nothing if it does."""
    try:
        bind(encode_operation(OperationRecord(operation, operation.name, operation.roles)))
    except EmulationError as error:
        return str(error).splitlines()[0]
    return ""


NAMES = sorted({form.name for form in READER.forms})


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_of_the_table_has_its_code(name: str) -> None:
    forms = [form for form in READER.forms if form.name == name]
    found = [operation for form in forms for operation in operations(form)]
    assert found
    assert not [said for operation in found if (said := complaint(operation))]


def test_each_modifier_is_among_the_operations_that_are_tried() -> None:
    (form,) = (f for f in READER.forms if f.name == "add" and "rnd" in f.slots and "sat" in f.slots
               and "narrow" not in f.slots)  # fmt: skip
    tried = {operation.text for operation in operations(form)}
    assert {"add.f32", "add.rp.f32", "add.ftz.f32", "add.sat.f32", "add.rn.ftz.sat.f32"} <= tried


def test_a_modifier_that_no_code_reads_is_an_error_that_names_it() -> None:
    slots = {**SLOTS, "strange": Slot(("odd", "even"))}
    reader = FormReader(
        (form_of("not", "{.strange}.logic", "d=logic, a:logic", frozenset()),), slots
    )
    (plain,) = reader.operations("not.b32")
    assert complaint(plain) == ""
    (odd,) = reader.operations("not.odd.b32")
    with pytest.raises(UnreadModifierError, match=r"modifier \.odd of `not\.odd\.b32`"):
        bind(encode_operation(OperationRecord(odd, odd.name, odd.roles)))


def test_a_modifier_that_is_a_hint_need_not_be_read() -> None:
    slots = {**SLOTS, "strange": Slot(("odd", "even"), no_effect="it says nothing")}
    reader = FormReader(
        (form_of("not", "{.strange}.logic", "d=logic, a:logic", frozenset()),), slots
    )
    (odd,) = reader.operations("not.odd.b32")
    assert complaint(odd) == ""


def test_an_operation_that_no_code_is_registered_for_is_an_error() -> None:
    (operation,) = READER.operations("not.b32")
    with pytest.raises(UnsupportedOperationError, match=r"`not\.b32` is not executed"):
        bind(encode_operation(OperationRecord(operation, "unheard.of", operation.roles)))
