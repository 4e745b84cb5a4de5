"""Answers to host code: called as compiled code calls them, through addresses."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from flexfa4.emulator.host import cuda_calls
from flexfa4.emulator.host.architectures import Architecture, architecture
from flexfa4.emulator.host.cuda_calls import (
    CALLS,
    FROM_THE_LIBRARY,
    LAUNCH_FAILURE,
    NO_DEVICE,
    NOT_SUPPORTED,
    RUNTIME,
    SUCCESS,
    address_of,
    address_of_refusal,
)
from flexfa4.emulator.host.errors import (
    EditedParametersError,
    LaunchAttributeError,
    MissingEntryError,
    UnsupportedCallError,
)
from flexfa4.emulator.host.launch import Launch

PTX = b"""
.target sm_100a
.shared .align 4 .b8 words[256];
.entry scale(.param .u64 out, .param .align 4 .b8 pair[8], .param .u16 factor) {
    mov.u32 %r1, words;
    ret;
}
"""
TYPES = {"ptr": ctypes.c_void_p, "i32": ctypes.c_int32, "i64": ctypes.c_int64}
# an array of words stands for the structures of CUDA's driver_types.h
CONFIG = ctypes.c_uint32 * 14
ATTRIBUTE_NBYTES = 72


class Target:
    """A device that remembers what it was to run."""

    architecture: Architecture = architecture("sm_100a")

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.error: BaseException | None = None
        self.edit = ("%r1", "%r2")

    def edited(self, ptx: str) -> str:
        return ptx.replace(*self.edit)

    def launch(self, launch: Launch) -> None:
        self.launches.append(launch)
        if self.error:
            raise self.error


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    target = Target()
    monkeypatch.setattr(RUNTIME, "target", target)
    yield target
    assert RUNTIME.take_failure() is None


def call(name: str, *args: Any) -> int:
    (row,) = (row for row in CALLS if row.name == name)
    types = [TYPES[kind] for kind in row.arguments.split()]
    status: int = ctypes.CFUNCTYPE(ctypes.c_int32, *types)(address_of(row))(*args)
    return status


def kernel(name: bytes = b"scale") -> int:
    """Load the PTX and return the handle of a kernel of it."""
    library, handle = ctypes.c_void_p(), ctypes.c_void_p()
    image = ctypes.create_string_buffer(PTX)
    kept.append(image)
    loaded = call(
        "_cudaLibraryLoadData", ctypes.addressof(library), ctypes.addressof(image), *[None] * 2,
        0, None, None, 0,
    )  # fmt: skip
    assert loaded == SUCCESS
    at = ctypes.addressof(handle)
    assert call("_cudaLibraryGetKernel", at, library, ctypes.c_char_p(name)) == SUCCESS
    assert handle.value
    return handle.value


kept: list[Any] = []  # images, as compiled code would keep them


def arguments() -> Any:
    values = [
        ctypes.c_uint64(0x1234_5678_9ABC),
        (ctypes.c_uint32 * 2)(3, 5),
        ctypes.c_uint16(7),
    ]
    kept.append(values)
    return (ctypes.c_void_p * 3)(*(ctypes.addressof(value) for value in values))


def config(*attributes: tuple[int, int, int, int], shared: int = 512, stream: int = 9) -> Any:
    block = ctypes.create_string_buffer(ATTRIBUTE_NBYTES * max(len(attributes), 1))
    for position, (number, *values) in enumerate(attributes):
        words = (ctypes.c_uint32 * 3)(*values)
        at = ctypes.addressof(block) + ATTRIBUTE_NBYTES * position
        ctypes.c_int32.from_address(at).value = number
        ctypes.memmove(at + 8, words, 12)
    kept.append(block)
    low, high = ctypes.addressof(block) & 0xFFFF_FFFF, ctypes.addressof(block) >> 32
    return CONFIG(4, 6, 1, 64, 2, 1, shared, 0, stream, 0, low, high, len(attributes), 0)


def test_a_launch_is_copied_out_of_the_callers_memory(target: Target) -> None:
    handle, given = kernel(), arguments()
    plan = config((4, 2, 3, 1), (6, 1, 0, 0))
    assert call("_cudaLaunchKernelEx", ctypes.addressof(plan), handle, given) == SUCCESS
    ctypes.memset(given[1], 0, 8)
    (launch,) = target.launches
    assert launch.entry == "scale"
    assert (launch.grid, launch.block, launch.cluster) == ((4, 6, 1), (64, 2, 1), (2, 3, 1))
    assert (launch.shared_memory, launch.stream) == (512, 9)
    assert (launch.programmatic, launch.cooperative) == (True, False)
    assert [p.data.hex() for p in launch.parameters] == [
        "bc9a785634120000",
        "0300000005000000",
        "0700",
    ]
    assert "%r2" in launch.ptx and "%r1" not in launch.ptx


def test_a_launch_without_attributes_is_one_block_to_a_cluster(target: Target) -> None:
    sizes = (4, 6, 1, 64, 2, 1)
    assert call("_cudaLaunchKernel", kernel(), *sizes, arguments(), 128, None) == SUCCESS
    plan = config((2, 1, 0, 0), (6, 0, 0, 0), stream=0)
    assert call("_cudaLaunchKernelEx", ctypes.addressof(plan), kernel(), arguments()) == SUCCESS
    plain, cooperative = target.launches
    assert (plain.grid, plain.block, plain.cluster) == ((4, 6, 1), (64, 2, 1), (1, 1, 1))
    assert (plain.shared_memory, plain.stream, plain.cooperative) == (128, 0, False)
    assert (cooperative.cooperative, cooperative.programmatic) == (True, False)


def test_exceptions_wait_while_host_code_gets_a_number(target: Target) -> None:
    target.error = KeyboardInterrupt()
    plan, handle = config(), kernel()
    status = call("_cudaLaunchKernelEx", ctypes.addressof(plan), handle, arguments())
    assert status == LAUNCH_FAILURE
    first, target.error = target.error, ValueError()
    call("_cudaLaunchKernelEx", ctypes.addressof(plan), handle, arguments())
    assert RUNTIME.failure() is first  # what came of it later says less
    assert RUNTIME.take_failure() is first
    assert RUNTIME.take_failure() is None


def test_failures_are_those_of_a_thread(target: Target) -> None:
    target.error = ValueError()
    seen: list[BaseException | None] = []

    def launch() -> None:
        plan = config()
        call("_cudaLaunchKernelEx", ctypes.addressof(plan), kernel(), arguments())
        seen.append(RUNTIME.take_failure())

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    assert seen == [target.error]
    assert RUNTIME.failure() is None


@pytest.mark.parametrize(("preferred", "chosen"), [((4, 3, 1), (4, 3, 1)), ((3, 1, 1), (2, 1, 1))])
def test_a_cluster_that_is_preferred_is_taken_where_it_divides_the_grid(
    target: Target, preferred: tuple[int, int, int], chosen: tuple[int, int, int]
) -> None:
    plan = config((4, 2, 1, 1), (11, *preferred))
    assert call("_cudaLaunchKernelEx", ctypes.addressof(plan), kernel(), arguments()) == SUCCESS
    assert target.launches[0].cluster == chosen


def test_an_unknown_launch_attribute_is_an_error(target: Target) -> None:
    plan = config((4, 1, 1, 1), (5, 2, 1, 1))
    status = call("_cudaLaunchKernelEx", ctypes.addressof(plan), kernel(), arguments())
    assert status == LAUNCH_FAILURE
    error = RUNTIME.take_failure()
    assert isinstance(error, LaunchAttributeError) and "attribute 5" in str(error)
    assert not target.launches


def test_an_edit_that_changes_the_parameters_is_refused(target: Target) -> None:
    target.edit = (".param .u16 factor", ".param .u16 factor, .param .u64 more")
    plan = config()
    assert call("_cudaLaunchKernelEx", ctypes.addressof(plan), kernel(), arguments())
    assert isinstance(RUNTIME.take_failure(), EditedParametersError)


def test_a_kernel_that_is_not_in_the_text_is_an_error(target: Target) -> None:
    plan = config()
    missing = kernel(b"other")
    assert call("_cudaLaunchKernelEx", ctypes.addressof(plan), missing, arguments())
    assert isinstance(RUNTIME.take_failure(), MissingEntryError)


def answered(name: str, *args: Any) -> tuple[int, int]:
    out = ctypes.c_int32(-1)
    return call(name, ctypes.addressof(out), *args), out.value


def test_attributes_are_the_devices(target: Target) -> None:
    numbers = {1: 1024, 10: 32, 16: 148, 75: 10, 76: 0, 81: 228 * 1024, 97: 227 * 1024}
    for number, value in numbers.items():
        assert answered("_cudaDeviceGetAttribute", number, 0) == (SUCCESS, value)
    assert answered("_cudaGetDevice") == (SUCCESS, 0)
    assert answered("_cudaGetDeviceCount") == (SUCCESS, 1)
    assert answered("_cuKernelGetAttribute", 1, kernel(), 0) == (SUCCESS, 256)


@pytest.mark.parametrize("attribute", [8, 9, 14])
def test_what_a_launch_may_use_anyway_can_be_allowed(target: Target, attribute: int) -> None:
    assert call("_cudaFuncSetAttribute", kernel(), attribute, 3) == SUCCESS
    assert call("_cudaKernelSetAttributeForDevice", kernel(), attribute, 3, 0) == SUCCESS


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("_cudaDeviceGetAttribute", (None, 9999, 0)),
        ("_cuKernelGetAttribute", (None, 2, 1, 0)),
        ("_cudaFuncSetAttribute", (1, 7, 0)),
    ],
)
def test_what_has_no_answer_is_an_error_that_names_it(
    target: Target, name: str, args: tuple[Any, ...]
) -> None:
    assert call(name, *args) == NOT_SUPPORTED
    error = RUNTIME.take_failure()
    assert isinstance(error, UnsupportedCallError) and str(args[1]) in str(error)


def test_a_function_without_a_row_fails_and_says_so(target: Target) -> None:
    refuse = ctypes.CFUNCTYPE(ctypes.c_int32)(address_of_refusal("_cudaMallocManaged"))
    assert refuse() == NOT_SUPPORTED
    assert "_cudaMallocManaged" in str(RUNTIME.take_failure())


def test_a_library_is_loaded_once() -> None:
    steps: list[str] = []
    library = ctypes.c_void_p()

    @ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
    def initialise(out: int) -> int:
        steps.append("initialise")
        ctypes.c_void_p.from_address(out).value = 77
        return 0

    @ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32)
    def load(out: int, device: int) -> int:
        assert ctypes.c_void_p.from_address(out).value == 77
        steps.append(f"load {device}")
        return 0

    at = ctypes.addressof(library)
    for _ in range(2):
        assert call("cuda_dialect_init_library_once", at, initialise, load, None) == SUCCESS
    assert steps == ["initialise", "load 0"]


def test_without_a_device_a_launch_ends_in_cudas_own_error() -> None:
    plan, handle = config(), kernel()
    assert RUNTIME.target is None
    assert call("_cudaLaunchKernelEx", ctypes.addressof(plan), handle, arguments()) == NO_DEVICE
    assert answered("_cudaDeviceGetAttribute", 97, 0)[0] == NO_DEVICE
    assert RUNTIME.take_failure() is None


def test_the_table_has_each_function_once() -> None:
    names = [row.name for row in CALLS]
    assert len({*names, *FROM_THE_LIBRARY}) == len(names) + len(FROM_THE_LIBRARY)
    assert {kind for row in CALLS for kind in row.arguments.split()} <= set(cuda_calls._TYPES)
