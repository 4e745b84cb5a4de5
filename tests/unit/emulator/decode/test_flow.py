"""What instructions do with registers, and blocks."""

from __future__ import annotations

from flexfa4.emulator.decode.flow import Block, Effect, as_bits, blocks_of
from tests.kernel_texts import read_kernel


def effects(code: str) -> tuple[list[str], list[Effect]]:
    """Return the names of a kernel's registers by number, and what its instructions do."""
    function = read_kernel(code)
    numbers = {register: number for number, register in enumerate(function.registers)}
    found = [Effect.of(instruction, numbers) for instruction in function.instructions]
    return [register.name for register in function.registers], found


def test_a_guarded_instruction_reads_its_predicate_and_writes_for_some_threads_only() -> None:
    names, (effect, _) = effects("@%p1 add.u32 %r1, %r2, %r3; ret;")
    assert {names[number] for number in effect.reads} == {"%p1", "%r2", "%r3"}
    assert [names[number] for number in effect.writes] == ["%r1"]
    assert not effect.certain and effect.passes


def test_blocks_begin_at_labels_and_behind_jumps() -> None:
    _, code = effects("mov.u32 %r1, 0; LOOP: add.u32 %r1, %r1, 1; @%p1 bra LOOP; ret;")
    assert blocks_of(code) == [Block(0, 1, (1,)), Block(1, 3, (1, 2)), Block(3, 4, ())]


def test_a_jump_without_a_guard_goes_nowhere_else() -> None:
    _, code = effects("bra END; mov.u32 %r1, 0; END: ret;")
    assert [block.successors for block in blocks_of(code)] == [(2,), (2,), ()]


def test_a_set_has_a_bit_for_each_number() -> None:
    assert as_bits((0, 3, 70)) == 1 + 8 + 2**70
