"""The core as Python sees it."""

from __future__ import annotations

import ctypes
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import flexfa4.emulator.native
from flexfa4.emulator import load
from flexfa4.emulator.errors import Place
from flexfa4.emulator.failures.program import UnnamedFailureError
from flexfa4.emulator.native import library
from flexfa4.emulator.native.library import exception
from tests.ptx_programs import run_program

INTERFACE = (Path(flexfa4.emulator.native.__file__).parent / "interface.cpp").read_text()
HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n"
COUNTING = (  # without end
    HEAD + ".entry k(.param .u64 p) { .reg .u64 a; ld.param.u64 a, [p];"
    " AGAIN: red.global.add.u32 [a], 1; bra AGAIN; }"
)


def test_every_function_that_the_core_exports_has_its_declaration() -> None:
    exported = re.findall(r"^EXPORTED [\w:* ]*?\*?(flexfa4_\w+)\(", INTERFACE, re.MULTILINE)
    assert set(exported) == set(library._FUNCTIONS)
    for name in exported:
        arguments = re.search(rf"\b{name}\(([^)]*)\)", INTERFACE)
        assert arguments
        assert len(arguments[1].split(",")) == len(library._FUNCTIONS[name][1])


def test_the_structure_of_a_launch_has_the_fields_that_the_core_has() -> None:
    body = re.search(r"struct Launch {(.*?)\n};", INTERFACE, re.DOTALL)
    assert body
    declared = re.sub(r"//.*", "", body[1])
    names = re.findall(r"(\w+)(?:\[3\])?(?=[,;])", declared)
    assert names == [name for name, *_ in library._Launch._fields_]


def test_a_run_counts_instructions_by_warp_and_traffic() -> None:
    _, run = run_program("add.u32 d, d, 1; @p add.u32 d, d, 1;", outputs="d:u32", threads=64,
                         inputs={"p:pred": False}, active=0x1)  # fmt: skip
    assert len(run.by_warp) == 2
    assert run.by_warp[0]["add.u32"] == run.by_warp[1]["add.u32"]
    assert run.executed["st.global.b32"] == 2  # by a warp, however many lanes
    assert run.traffic.global_written == 64 * 4
    assert run.instructions == sum(run.executed.values())
    assert run.seconds > 0


def test_failures_without_a_text_are_told_with_all_that_is_known() -> None:
    error = exception("NoSuchError", Place(3, "ret;"), {"size": "7"})
    assert isinstance(error, UnnamedFailureError)
    assert "NoSuchError: size 7" in str(error) and "PTX line 3" in str(error)


def test_a_failure_that_lacks_a_field_of_its_text_is_still_told() -> None:
    error = exception("UnreadModifierError", None, {"text": "add.x"})
    assert "UnreadModifierError: text add.x" in str(error)


def test_a_failed_run_tells_what_had_been_done() -> None:
    with pytest.raises(flexfa4.emulator.EmulationError) as caught:
        run_program("ld.global.u32 d, [a];", inputs={"a:u64": 8}, outputs="d:u32")
    assert caught.value.where is not None
    assert "ld.global.u32 d, [a]" in str(caught.value)
    assert caught.value.run is not None and caught.value.run.executed["mov.b64"] == 1


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT interrupt, which a process started in the background ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_of_the_main_thread_ends_a_run() -> None:
    kernel = load(COUNTING)
    count = torch.zeros(1, dtype=torch.int32)
    main = threading.main_thread().ident
    assert main is not None
    for times in (1, 3):  # once, and by someone impatient
        timers = [
            threading.Timer(0.2 + 0.01 * i, signal.pthread_kill, (main, signal.SIGINT))
            for i in range(times)
        ]
        with pytest.raises(KeyboardInterrupt):
            for timer in timers:
                timer.start()
            try:
                kernel.run(grid=4, block=1, workers=2, args=[count])
            finally:
                reached = count.item()
                for timer in timers:
                    timer.join()
        time.sleep(0.05)
        assert count.item() == reached > 0  # nothing writes there any more


def test_runs_of_several_threads_do_not_meet() -> None:
    text = (
        HEAD
        + """
    .entry k(.param .u64 p, .param .u32 n)
    {
        .reg .u64 a; .reg .u32 i, n; .reg .pred more;
        ld.param.u64 a, [p]; ld.param.u32 n, [n]; mov.u32 i, 0;
    AGAIN:
        add.u32 i, i, 1; setp.lt.u32 more, i, n;
        @more bra AGAIN;
        st.global.u32 [a], i;
    }
    """.replace("[n];", "[count];").replace(".param .u32 n", ".param .u32 count")
    )
    kernel = load(text)
    outs = [torch.zeros(1, dtype=torch.int32) for _ in range(4)]
    threads = [
        threading.Thread(
            target=lambda i=i: kernel.run(grid=1, block=1, args=[outs[i], 1000 * (i + 1)])
        )
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [out.item() for out in outs] == [1000, 2000, 3000, 4000]


def test_the_core_is_loaded_once() -> None:
    assert library.core() is library.core()
    assert isinstance(library.core(), ctypes.CDLL)
