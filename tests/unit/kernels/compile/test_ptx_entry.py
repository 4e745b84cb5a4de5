"""Entries of PTX texts."""

from __future__ import annotations

import pytest

from flexfa4.kernels.compile.ptx_entry import EntryParameter, entries

HEAD = """//
// Cuda compilation tools, release 13.4, V13.4.59
//
.version 8.8
.target sm_90a
.address_size 64

.extern .shared .align 1024 .b8 dynamic[];
"""
FORWARD = """
.visible .entry forward_0(
	.param .align 64 .b8 forward_0_param_0[128],
	.param .u64 .ptr .global .align 16 forward_0_param_1,
	.param .u32 forward_0_param_2,
	.param .f32 forward_0_param_3
)
.reqntid 384, 1, 1
.minnctapersm 1
{
	setmaxnreg.dec.sync.aligned.u32 24;
	setmaxnreg.inc.sync.aligned.u32 240;
	setmaxnreg.inc.sync.aligned.u32 240;
	ret;
}
"""
BARE = ".visible .entry other() { ret; }"


def test_an_entry_says_what_a_launch_needs() -> None:
    (entry,) = entries(HEAD + FORWARD)
    assert (entry.name, entry.target, entry.tools) == ("forward_0", "sm_90a", "V13.4.59")
    assert entry.block == (384, 1, 1)
    assert entry.parameters == (
        EntryParameter(".b8", 128, 64),
        EntryParameter(".u64", 8, 8),
        EntryParameter(".u32", 4, 4),
        EntryParameter(".f32", 4, 4),
    )


def test_register_budgets_are_in_the_order_of_the_text_without_repetition() -> None:
    (entry,) = entries(HEAD + FORWARD)
    assert entry.budgets == (24, 240)


def test_what_an_entry_does_not_say_is_empty() -> None:
    (entry,) = entries(BARE)
    assert (entry.block, entry.parameters, entry.budgets) == (None, (), ())
    assert (entry.target, entry.tools) == ("", "")


def test_budgets_belong_to_the_entry_in_which_they_stand() -> None:
    other, forward = entries(HEAD + BARE + FORWARD)
    assert (other.budgets, forward.budgets) == ((), (24, 240))


@pytest.mark.parametrize(("text", "block"), [("96", (96, 1, 1)), ("32, 4", (32, 4, 1))])
def test_a_block_may_name_fewer_than_three_sizes(text: str, block: tuple[int, ...]) -> None:
    (entry,) = entries(FORWARD.replace("384, 1, 1", text))
    assert entry.block == block
