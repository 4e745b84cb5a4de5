"""Every tcgen05 instruction of the table has code; and what makes the issue of a product fail."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from flexfa4.emulator.errors import EmulationError
from flexfa4.emulator.failures.matrices import (
    MixedGroupsError,
    NotOneThreadError,
    ScaleDError,
)
from flexfa4.emulator.kernel import load
from flexfa4.emulator.ptx.forms import Access, Form, Role
from flexfa4.emulator.ptx.table import READER
from tests.tensor_core_programs import (
    B_AT,
    Layout,
    Program,
    instruction_descriptor,
    mma,
    product,
    window,
)

TARGETS = ("sm_100a", "sm_103a")


def opcodes(form: Form) -> Iterator[str]:
    """All texts of a row."""
    choices = []
    for group, required in form.modifiers:
        words = list(itertools.product(*(READER.values(slot) for slot in group)))
        choices.append(words if required else [(), *words])
    for chosen in itertools.product(*choices):
        yield ".".join([form.name, *itertools.chain(*chosen)])


def operand(role: Role) -> str:
    if role.access is Access.ADDRESS:
        return "[%d1]" if role.space == "generic" else "[%r1]"
    if role.access is Access.NUMBER:
        return "1"
    assert role.type is not None
    register = {1: "%p1", 16: "%h1", 32: "%r1", 64: "%d1"}[role.type.bits]
    return "{" + ", ".join([register] * role.count) + "}" if role.count else register


@pytest.mark.parametrize("target", TARGETS)
def test_every_tcgen05_instruction_has_code(target: str) -> None:
    forms = [f for f in READER.forms if f.name.startswith("tcgen05.") and target in f.targets]
    texts = {text for form in forms for text in opcodes(form)}
    lines = [
        f"{text} {', '.join(operand(role) for role in operation.roles)};"
        for text in sorted(texts)
        for operation in READER.operations(text)
        if target in operation.form.targets
    ]
    assert len(lines) > 500
    text = "\n".join(lines)
    load(f"""
.version 9.0
.target {target}
.address_size 64
.visible .entry all()
{{
    .reg .pred %p<2>;
    .reg .b16 %h<2>;
    .reg .b32 %r<2>;
    .reg .b64 %d<2>;
{text}
    ret;
}}
""")


# ---- mistakes at the issue ----------------------------------------------------------------------

F16 = (Layout.compact(2, False, 128, 2), Layout.compact(2, False, 32, 2))


def failure(body: str, **program: Any) -> EmulationError:
    with pytest.raises(EmulationError) as caught:
        Program(body, **program).run(window())
    return caught.value


def f16_product(after: str = "", group: int = 1) -> str:
    idesc = instruction_descriptor(128, 32)
    return product(mma("f16", group), idesc, (F16[0], 0), (F16[1], B_AT), False, after=after)


def test_one_thread_issues_a_product() -> None:
    error = failure(f16_product(), leader="    setp.gt.u32 %p0, %r0, 31;")
    assert isinstance(error, NotOneThreadError)
    assert "32 threads execute it" in str(error)


def test_d_is_scaled_by_at_most_15_bits() -> None:
    assert isinstance(failure(f16_product(", 16")), ScaleDError)


def test_products_of_a_kernel_are_all_of_one_block_or_all_of_pairs() -> None:
    error = failure(f16_product(group=2))
    assert isinstance(error, MixedGroupsError)
    assert "cta_group::2 after instructions with cta_group::1" in str(error)
