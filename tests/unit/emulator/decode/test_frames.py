"""What functions get of local, call and shared memory."""

from __future__ import annotations

from flexfa4.emulator.decode.frames import Frames
from flexfa4.emulator.decode.reachable import reachable
from flexfa4.emulator.ptx import parse

HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n"


def frames(text: str, kernel: str | None = None) -> Frames:
    module = parse(HEAD + text)
    return Frames.of(reachable(module, module.kernel(kernel)))


CALLS = """
.func (.param .b32 result) twice(.param .b32 value)
{
    .reg .b32 r;
    .local .align 4 .b8 mine[20];
    ld.param.b32 r, [value];
    st.local.b32 [mine], r;
    st.param.b32 [result], r;
    ret;
}
.entry kernel()
{
    .reg .b32 r;
    .local .align 8 .b8 depot[24];
    .param .b32 given;
    .param .b32 back;
    st.local.b32 [depot], r;
    st.param.b32 [given], r;
    call (back), twice, (given);
    ret;
}
"""


def test_frames_lie_behind_each_other_and_do_not_overlap() -> None:
    found = frames(CALLS)
    assert found.local == {"kernel": 0, "twice": 32}
    assert found.local_size == 64
    assert found.call == {"kernel": 0, "twice": 16}
    assert found.call_size == 32


SHARED = """
.shared .align 16 .b8 first[1000];
.shared .align 128 .b8 second[64];
.extern .shared .align 64 .b8 dynamic[];
.entry one() { .reg .b32 r; mov.u32 r, second; mov.u32 r, dynamic; ret; }
.entry both() { .reg .b32 r; mov.u32 r, first; mov.u32 r, second; ret; }
.entry none() { ret; }
"""


def test_a_kernel_gets_the_shared_variables_that_it_names_and_no_others() -> None:
    one, both = frames(SHARED, "one"), frames(SHARED, "both")
    assert {v.name: offset for v, offset in one.shared.items()} == {"second": 0, "dynamic": 64}
    assert one.shared_size == 64
    assert {v.name: offset for v, offset in both.shared.items()} == {"first": 0, "second": 1024}
    assert both.shared_size == 1088
    assert frames(SHARED, "none").shared_size == 0


def test_arrays_without_size_begin_at_their_alignment_behind_all_others() -> None:
    found = frames(
        ".shared .b8 flag; .extern .shared .align 1024 .b8 dynamic[];"
        " .entry k() { .reg .b32 r; mov.u32 r, flag; mov.u32 r, dynamic; ret; }"
    )
    assert found.shared_size == 1024
    assert {v.name: offset for v, offset in found.shared.items()} == {"flag": 0, "dynamic": 1024}
