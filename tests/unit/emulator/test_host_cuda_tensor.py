"""CPU tensors that DLPack's consumers take for CUDA ones."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import pytest
import torch
from torch.utils.dlpack import from_dlpack

from flexfa4.emulator.host.cuda_tensor import CudaTensor, extent
from flexfa4.emulator.host.errors import NotACpuTensorError

KINDS = {None: (b"dltensor", 0), (1, 0): (b"dltensor_versioned", 32)}  # offsets: dlpack.h


class Head(ctypes.Structure):
    """dlpack.h's DLTensor up to its strides."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
    )


def head_of(capsule: Any, max_version: tuple[int, int] | None) -> Head:
    name, offset = KINDS[max_version]
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    address: int = get(capsule, name)
    return Head.from_address(address + offset)


@pytest.mark.parametrize("version", KINDS)
def test_a_capsule_says_cuda_and_is_the_tensors_otherwise(version: Any) -> None:
    tensor = torch.arange(24, dtype=torch.bfloat16).view(4, 6)[1:, ::2]
    presented = CudaTensor(tensor)
    assert presented.__dlpack_device__() == (2, 0)
    capsule = presented.__dlpack__(max_version=version, stream=7, dl_device=(2, 0))
    head = head_of(capsule, version)
    assert (head.device_type, head.device_id) == (2, 0)
    assert (head.data, head.ndim, head.bits) == (tensor.data_ptr(), 2, 16)
    assert (head.shape[:2], head.strides[:2]) == ([3, 3], [6, 2])


def test_the_tensor_itself_still_says_cpu() -> None:
    tensor = torch.zeros(3)
    capsule = CudaTensor(tensor).__dlpack__()
    assert tensor.__dlpack_device__()[0] == 1
    assert torch.equal(from_dlpack(tensor), tensor)
    del capsule
    gc.collect()
    assert tensor.tolist() == [0.0, 0.0, 0.0]


def test_a_capsule_keeps_the_memory() -> None:
    capsule = CudaTensor(torch.full((1000,), 7.0)).__dlpack__()
    gc.collect()
    again = [torch.full((1000,), 1.0) for _ in range(20)]
    head = head_of(capsule, None)
    assert (ctypes.c_float * 1000).from_address(head.data)[:] == [7.0] * 1000
    assert len(again) == 20


def test_questions_are_answered_as_on_a_cuda_device() -> None:
    tensor = torch.zeros(2, 3, dtype=torch.half, requires_grad=True)
    presented = CudaTensor(tensor)
    assert presented.is_cuda and presented.device == torch.device("cuda", 0)
    assert (presented.dtype, presented.shape, presented.ndim) == (torch.half, (2, 3), 2)
    assert (presented.stride(), presented.numel(), presented.element_size()) == ((3, 1), 6, 2)
    assert presented.data_ptr() == presented.cpu.data_ptr() == tensor.data_ptr()
    assert "(2, 3), torch.float16" in repr(presented)
    assert not hasattr(presented, "view")  # torch would return one that says CPU


@pytest.mark.parametrize(
    "other", [[1.0], None, torch.empty(2, device="meta"), torch.zeros(2, 2).to_sparse()]
)
def test_what_has_no_cpu_memory_is_refused(other: Any) -> None:
    with pytest.raises(NotACpuTensorError, match=r"device\.tensor was given a"):
        CudaTensor(other)


@pytest.mark.parametrize(
    ("view", "offset", "nbytes"),
    [
        (lambda t: t, 0, 96),
        (lambda t: t[1:, ::2], 24, (2 * 6 + 2 * 2 + 1) * 4),
        (lambda t: t.t(), 0, 96),
        (lambda t: t[:1].expand(5, 6), 0, 24),
        (lambda t: t[2, 3], 60, 4),
    ],
)
def test_an_extent_reaches_from_the_first_element_to_the_last(
    view: Any, offset: int, nbytes: int
) -> None:
    tensor = torch.zeros(4, 6)
    assert extent(view(tensor)) == (tensor.data_ptr() + offset, nbytes)


def test_a_tensor_without_elements_has_no_extent() -> None:
    assert extent(torch.zeros(4, 6)[2:2]) == (0, 0)


def test_a_tensor_whose_storage_was_given_back_has_no_extent() -> None:
    tensor = torch.zeros(4, 6)
    tensor.untyped_storage().resize_(95)
    assert extent(tensor) == (0, 0)
    assert extent(tensor[:2]) == (tensor.data_ptr(), 48)
    tensor.untyped_storage().resize_(0)
    assert extent(tensor) == (0, 0)
