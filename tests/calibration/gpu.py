"""Running PTX on a GPU, with the interface of the emulator's kernels.

`DeviceKernel` takes the place of `flexfa4.emulator.load`: CPU tensors are copied to the GPU before
a launch and back after it.  Tensor maps among the arguments are given the addresses of the copies.
It needs torch with CUDA, and the driver's library.

What this module deliberately does not do: check anything; a kernel that goes wrong makes the GPU
unusable for the process.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from flexfa4.emulator.results import Run

LOG = 1 << 16
ERROR_LOG, ERROR_LOG_SIZE = 5, 6  # CU_JIT_ERROR_LOG_BUFFER and its size
CLUSTER = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
DYNAMIC_SHARED, NON_PORTABLE = 8, 14  # CUfunction_attribute
MAP_BYTES = 128


class PtxRefusedError(Exception):
    """The driver does not take the text: it says why."""


class GpuError(Exception):
    """A launch failed."""


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("_", ctypes.c_int), ("value", ctypes.c_uint32 * 16)]


class _Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    ]


@functools.cache
def _driver() -> ctypes.CDLL:
    torch.zeros(1, device="cuda")  # makes the context
    return ctypes.CDLL("libcuda.so.1")


def _check(code: int, what: str) -> None:
    if code:
        raise GpuError(f"{what}: CUDA error {code}")


def _sizes(value: int | Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*((value,) if isinstance(value, int) else value), 1, 1)[:3]
    return x, y, z


class DeviceKernel:
    """A kernel on the GPU: the one of its module."""

    def __init__(self, ptx: str, kernel: str | None = None) -> None:
        """Load a module for the GPU's architecture, whatever its text says."""
        text = re.sub(r"\.target sm_10\da", ".target sm_90a", ptx)
        name = kernel or re.findall(r"\.entry\s+(\w+)", text)[0]
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        log = ctypes.create_string_buffer(LOG)
        keys = (ctypes.c_int * 2)(ERROR_LOG, ERROR_LOG_SIZE)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), LOG)
        code = _driver().cuModuleLoadDataEx(
            ctypes.byref(self._module), text.encode() + b"\0", 2, keys, values
        )
        if code:
            raise PtxRefusedError(f"CUDA error {code}: {log.value.decode()[:400]}")
        _check(
            _driver().cuModuleGetFunction(
                ctypes.byref(self._function), self._module, name.encode()
            ),
            "cuModuleGetFunction",
        )

    def __del__(self) -> None:
        """Unload the module."""
        if self._module.value:
            _driver().cuModuleUnload(self._module)

    def run(
        self,
        *,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        cluster: int | Sequence[int] = 1,
        shared_memory: int = 0,
        args: Sequence[Any] = (),
        allocations: Iterable[torch.Tensor] = (),
        **_: Any,
    ) -> Run:
        """Launch it as `flexfa4.emulator.Kernel.run` does; options of the emulator are ignored."""
        tensors = [*(a for a in args if isinstance(a, torch.Tensor)), *allocations]
        copies = {id(tensor): _copied(tensor) for tensor in tensors}
        moved = {t.data_ptr(): _address(t, copies[id(t)]) for t in tensors}
        values: list[Any] = []
        for argument in args:
            if isinstance(argument, torch.Tensor):
                _redirect(argument, copies[id(argument)], moved)
                values.append(ctypes.c_uint64(_address(argument, copies[id(argument)])))
            elif isinstance(argument, bytes):
                start = int.from_bytes(argument[:8], "little")
                if len(argument) == MAP_BYTES and start in moved:
                    argument = moved[start].to_bytes(8, "little") + argument[8:]
                values.append(ctypes.create_string_buffer(argument, len(argument)))
            else:
                values.append(ctypes.c_int64(argument))
        torch.cuda.synchronize()
        self._launch(_sizes(grid), _sizes(block), _sizes(cluster), shared_memory, values)
        for tensor in tensors:
            if not _is_map(tensor, moved):
                _restore(tensor, copies[id(tensor)])
        return Run()

    def launch_on(self, out: torch.Tensor, first: int, count: int) -> None:
        """Launch a thread for each number from `first` on, with memory that is on the GPU."""
        words = [ctypes.c_uint64(out.data_ptr()), ctypes.c_uint32(first), ctypes.c_uint32(count)]
        torch.cuda.synchronize()
        self._launch((-(-count // 256), 1, 1), (256, 1, 1), (1, 1, 1), 0, words)

    def _launch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        cluster: tuple[int, int, int],
        shared_memory: int,
        values: list[Any],
    ) -> None:
        driver = _driver()
        if shared_memory > 48 << 10:
            driver.cuFuncSetAttribute(self._function, DYNAMIC_SHARED, shared_memory)
        driver.cuFuncSetAttribute(self._function, NON_PORTABLE, 1)
        pointers = (ctypes.c_void_p * max(len(values), 1))(*map(ctypes.addressof, values))
        attribute = _Attribute(CLUSTER, 0, (ctypes.c_uint32 * 16)(*cluster))
        config = _Config(
            (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block), shared_memory, None,
            ctypes.pointer(attribute), int(cluster != (1, 1, 1)),
        )  # fmt: skip
        code = driver.cuLaunchKernelEx(ctypes.byref(config), self._function, pointers, None)
        _check(code, "cuLaunchKernelEx")
        _check(driver.cuCtxSynchronize(), "the kernel")


# ---- tensors on the GPU -------------------------------------------------------------------------


def _storage(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of the memory that a tensor is a view of."""
    return torch.tensor([], dtype=torch.uint8).set_(tensor.untyped_storage())


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Copy the memory so that an address is aligned on the GPU as it is on the CPU."""
    whole = _storage(tensor)
    offset = whole.data_ptr() % 256
    room = torch.empty(len(whole) + 256, dtype=torch.uint8, device="cuda")
    room[offset : offset + len(whole)] = whole.cuda()
    return room[offset : offset + len(whole)]


def _address(tensor: torch.Tensor, copy: torch.Tensor) -> int:
    return copy.data_ptr() + tensor.data_ptr() - tensor.untyped_storage().data_ptr()


def _is_map(tensor: torch.Tensor, moved: dict[int, int]) -> bool:
    """Whether bytes are a tensor map: they begin with the address of another tensor."""
    if tensor.dtype != torch.uint8 or tensor.numel() < MAP_BYTES or tensor.data_ptr() % 64:
        return False
    return int.from_bytes(bytes(tensor.flatten()[:8].tolist()), "little") in moved


def _redirect(tensor: torch.Tensor, copy: torch.Tensor, moved: dict[int, int]) -> None:
    if _is_map(tensor, moved):
        old = int.from_bytes(bytes(tensor.flatten()[:8].tolist()), "little")
        start = tensor.data_ptr() - tensor.untyped_storage().data_ptr()
        new = moved[old].to_bytes(8, "little")
        copy[start : start + 8] = torch.tensor(list(new), dtype=torch.uint8, device="cuda")


def _restore(tensor: torch.Tensor, copy: torch.Tensor) -> None:
    _storage(tensor).copy_(copy.cpu())
