"""Signatures of kernels: read from PTX text without reading its instructions."""

from __future__ import annotations

import pytest

from flexfa4.emulator.host.errors import MissingEntryError, UnreadableParametersError
from flexfa4.emulator.host.signatures import Slot, signature

PTX = """\
// .entry commented(
.version 8.8
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 dynamic[];
.shared .align 8 .b8 barriers[24];
.shared .align 4 .b8 others[400];

.visible .entry first$1(
    .param .u64 .ptr .global .align 16 first_param_0, // a pointer
    .param .align 64 .b8 first_param_1[128],
    .param .u32 first_param_2,
    .param .align 4 .b8 first_param_3[12], /* , */
    .param .f64 first_param_4
)
.reqntid 128, 1, 1
{
    .reg .b32 %r<2>;
    .shared .align 16 .b8 inside[40];
    { .reg .pred p; mov.u32 %r1, barriers; }
    ret;
}
.visible .entry second() { ret; }
.entry third { mov.u32 %r1, others; ret; }
"""


def test_parameters_have_sizes_alignments_and_types() -> None:
    read = signature(PTX, "first$1")
    assert (read.entry, read.target) == ("first$1", "sm_100a")
    assert read.slots == (
        Slot("first_param_0", 8, 8, "u64"),
        Slot("first_param_1", 128, 64, "b8"),
        Slot("first_param_2", 4, 4, "u32"),
        Slot("first_param_3", 12, 4, "b8"),
        Slot("first_param_4", 8, 8, "f64"),
    )
    declared = [slot.declared for slot in read.slots]
    assert declared == [".u64", ".b8[128]", ".u32", ".b8[12]", ".f64"]


def test_an_entry_may_have_no_parameters() -> None:
    assert signature(PTX, "second").slots == ()
    assert signature(PTX, "third").slots == ()


def test_static_shared_memory_is_that_which_the_kernel_names() -> None:
    assert signature(PTX, "first$1").static_shared_memory == 32 + 40  # 24 aligned to 16, and 40
    assert signature(PTX, "second").static_shared_memory == 0
    assert signature(PTX, "third").static_shared_memory == 400


@pytest.mark.parametrize("name", ["commented", "first", ""])
def test_a_missing_entry_is_an_error_that_lists_those_there_are(name: str) -> None:
    with pytest.raises(MissingEntryError, match="first\\$1, second, third"):
        signature(PTX, name)
    with pytest.raises(MissingEntryError, match="no entry at all"):
        signature(".version 8.8", name)


@pytest.mark.parametrize("text", [".param .u64", ".param .u64 a b", ".reg .u64 a", ".param .x a"])
def test_an_unreadable_parameter_is_quoted(text: str) -> None:
    with pytest.raises(UnreadableParametersError, match=rf"`{text}`"):
        signature(f".entry k(\n  .param .u32 fine,\n  {text}\n) {{ ret; }}", "k")


def test_a_text_cut_short_is_read_as_far_as_it_goes() -> None:
    cut = signature(PTX[: PTX.index("ret;")], "first$1")
    assert len(cut.slots) == 5
