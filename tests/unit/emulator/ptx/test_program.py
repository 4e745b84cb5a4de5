"""Modules as they are read: asking them for kernels and lines."""

from __future__ import annotations

import pickle

import pytest

from flexfa4.emulator.ptx import parse
from flexfa4.emulator.ptx.errors import MissingKernelError
from tests.kernel_texts import kernel_text, read_instruction

HEADER = ".version 8.8\n.target sm_90a\n.address_size 64\n"


def test_the_only_kernel_needs_no_name() -> None:
    module = parse(kernel_text("ret;"))
    assert module.kernel() is module.kernel("kernel")


@pytest.mark.parametrize(
    ("kernels", "name", "names"),
    [
        ("", None, "the module has no kernel\n"),
        (".entry a() {ret;} .entry b() {ret;}", None, '2 kernels(.|\n)*a, b(.|\n)*kernel="a"'),
        (".entry a() {ret;}", "b", "no kernel named 'b'\n  allowed: a"),
    ],
)
def test_a_kernel_that_is_not_there_is_told_with_those_that_are(
    kernels: str, name: str | None, names: str
) -> None:
    with pytest.raises(MissingKernelError, match=names):
        parse(HEADER + kernels).kernel(name)


def test_a_line_of_the_text_can_be_quoted() -> None:
    module = parse(kernel_text("  bar.sync 0;"))
    place = module.place(module.kernel().instructions[0].line)
    assert str(place) == f"PTX line {place.line}\n    bar.sync 0;"


def test_an_operand_is_found_by_its_name() -> None:
    instruction = read_instruction("bar.sync 3, 64;")
    assert instruction.operand("b") is instruction.operands[1]
    with pytest.raises(KeyError):
        instruction.operand("c")


def test_a_module_can_be_sent_to_another_process() -> None:
    module = parse(kernel_text("bar.sync 0;\nbar.sync 0;"))
    first, second = pickle.loads(pickle.dumps(module)).kernel().instructions
    assert first.operands == module.kernel().instructions[0].operands
    assert first.operation is second.operation
