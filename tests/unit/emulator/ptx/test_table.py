"""The table of instructions: it agrees with itself, and reads what compilers write."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flexfa4.emulator.ptx.architectures import ALL
from flexfa4.emulator.ptx.forms import Form
from flexfa4.emulator.ptx.slots import SLOTS
from flexfa4.emulator.ptx.table import READER
from flexfa4.emulator.ptx.types import TYPES

SPACES = {"generic", "global", "shared", "shared::cluster", "call", "tensor"}


def texts(form: Form) -> Iterator[str]:
    """Yield the form's opcode with required modifiers only, and with all."""
    for optional in (False, True):
        words = [form.name]
        for group, required in form.modifiers:
            if required or optional:
                words += [READER.values(slot)[0] for slot in group]
        yield ".".join(words)


def test_every_row_is_read_by_its_own_text() -> None:
    lost = [
        text
        for form in READER.forms
        for text in texts(form)
        if form not in [operation.form for operation in READER.operations(text)]
    ]
    assert not lost


@pytest.mark.parametrize(
    "opcode",
    [
        "cvt.rni.sat.s16.bf16",  # of bf16 only without .sat, as its results are clamped anyway
        "cvt.rzi.sat.s64.bf16",
        "cvt.rzi.u8.bf16",
        "cvt.rn.bf16.s8",
        "cvt.sat.u64.u32",  # nothing to clamp
        "cvt.sat.s32.u16",
    ],
)
def test_a_conversion_that_ptxas_refuses_is_not_in_the_table(opcode: str) -> None:
    assert not READER.operations(opcode)


def test_every_name_in_a_row_means_something() -> None:
    lost = []
    for form in READER.forms:
        slots = set(form.slots)
        for spec in form.operands:
            type_ = spec.type.removeprefix("wide(").removesuffix(")")
            if type_ and type_ not in slots | set(TYPES):
                lost.append((form.name, "type", spec.type))
            if spec.condition and spec.condition not in slots:
                lost.append((form.name, "condition", spec.condition))
            if spec.space and spec.space not in slots | SPACES:
                lost.append((form.name, "space", spec.space))
    assert not lost


def test_every_slot_is_used_and_holds_no_modifier_twice() -> None:
    used = {slot for form in READER.forms for slot in form.slots}
    assert not set(SLOTS) - used
    assert not [name for name, slot in SLOTS.items() if len(set(slot.values)) < len(slot.values)]


def test_no_two_rows_read_one_instruction() -> None:
    twice = []
    for form in READER.forms:
        for text in texts(form):
            operations = READER.operations(text)
            roles = [(o.roles, t) for o in operations for t in sorted(o.form.targets)]
            if len(set(roles)) < len(roles):
                twice.append(text)
    assert not twice


def test_rows_are_of_architectures_that_are_emulated() -> None:
    assert all(form.targets and form.targets <= ALL for form in READER.forms)


def test_only_hints_and_promises_are_without_effect() -> None:
    words = {v for slot in SLOTS.values() if slot.no_effect for v in slot.values}
    kinds = {word.split("::")[0] for word in words}
    caches = {"L1", "L2", "ca", "cg", "cs", "lu", "cv", "wb", "wt"}
    scopes = {"cta", "cluster"}
    the_only_choice = {"tile", "mbarrier", "bulk_group"}
    assert kinds == caches | scopes | the_only_choice | {"collector", "uni"}


@pytest.mark.parametrize(
    ("text", "operands"),
    [
        ("setp.ltu.f32", "p q a b"),
        ("selp.b32", "d a b c"),
        ("fma.rn.ftz.f32x2", "d a b c"),
        ("cvt.rn.satfinite.e4m3x2.f32", "d a b"),
        ("cvt.rn.bf16x2.f32", "d a b"),
        ("shfl.sync.bfly.b32", "d p a b c members"),
        ("elect.sync", "d p members"),
        ("bar.sync", "a b"),
        ("ld.global.L1::no_allocate.L2::cache_hint.v4.b32", "d a policy"),
        ("ld.global.nc.v4.f32", "d a"),
        ("red.relaxed.gpu.global.add.f32", "a b"),
        ("atom.shared.cta.max.s32", "d a b"),
        ("mbarrier.arrive.expect_tx.shared::cluster.b64", "_ a bytes"),
        ("mbarrier.try_wait.parity.acquire.cta.shared::cta.b64", "done a parity nanoseconds"),
        (
            "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
            ".multicast::cluster.L2::cache_hint.cta_group::2",
            "d tensor barrier ctas policy",
        ),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32", "d a size"),
        ("tensormap.replace.tile.global_stride.shared::cta.b1024.b64", "a axis value"),
        ("clusterlaunchcontrol.query_cancel.is_canceled.pred.b128", "p response"),
        ("griddepcontrol.wait", ""),
    ],
)
def test_a_text_of_compilers_is_read(text: str, operands: str) -> None:
    (operation,) = READER.operations(text)
    assert [role.name for role in operation.roles] == operands.split()


@pytest.mark.parametrize(
    "text",
    [
        "add.rn.s32",
        "cvt.rn.f32.f16",
        "cp.async.bulk.shared::cta.global.bulk_group",
        "setp.ltu.s32",
        "setp.lo.f32",
        "setp.lt.b32",
        "cvt.u32.f32",
        "cvt.f32.s32",
        "cvt.f16.f32",
        "ld.v4.b64x",
        "ld.shared.v8.b32",
        "atom.global.and.f32",
        "atom.global.add.b32",
        "mbarrier.arrive.release.shared.b64",
        "wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.bf16",
        "tcgen05.ld.sync.aligned.16x256b.x128.b32",
        "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale",
        "max.xorsign.f32",
    ],
)
def test_modifiers_that_do_not_go_together_are_refused(text: str) -> None:
    assert not READER.operations(text)
