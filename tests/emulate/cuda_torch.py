"""torch as code for a GPU expects it, over CPU tensors, while an emulated device is open.

    with Device("sm_90a") as device, cuda_torch(device):
        x = torch.randn(64, device="cuda")     # a CPU tensor that says is_cuda
        compiled = cute.compile(kernel, from_dlpack(x))
        compiled(x)

Every tensor says that it lies on a GPU, ``"cuda"`` means the CPU, streams and events do nothing,
and what is handed to CuTe-DSL, by DLPack or as an address, is presented to the device.  So scripts
and libraries run as they are.  Changes are undone at the end, but for the module that quack's
autotuner is replaced by, since it imports triton.

Deliberately only what flash-attn-4 and NVIDIA's examples need.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from flexfa4.emulator import Device
from flexfa4.emulator.host.cuda_tensor import extent

ALIGNMENT = 512  # of torch's allocations on a GPU
CAPABILITIES = {"sm_90a": (9, 0), "sm_100a": (10, 0), "sm_103a": (10, 3)}


class _Devices(TorchFunctionMode):
    """Takes "cuda" for the CPU; what is moved to the GPU is a copy, as it would be."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cuda:
            return _aligned(args[0].clone())
        given = {name: _on_cpu(value) for name, value in (kwargs or {}).items()}
        taken = tuple(map(_on_cpu, args))
        made = func(*taken, **given)
        moved = any(map(_is_cuda, (*args, *(kwargs or {}).values())))
        return _aligned(made) if moved and isinstance(made, torch.Tensor) else made


def _is_cuda(value: Any) -> bool:
    device = value.type if isinstance(value, torch.device) else value
    return isinstance(device, str) and device.startswith("cuda")


def _on_cpu(value: Any) -> Any:
    if not _is_cuda(value):
        return value
    return "cpu" if isinstance(value, str) else torch.device("cpu")


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor, or a copy of it at an address as allocations on a GPU have."""
    if tensor.layout is not torch.strided:
        return tensor
    storage = tensor.untyped_storage()
    if (storage.data_ptr() + tensor.storage_offset() * tensor.element_size()) % ALIGNMENT == 0:
        return tensor
    room = torch.zeros(storage.nbytes() + ALIGNMENT, dtype=torch.uint8)
    first = -room.untyped_storage().data_ptr() % ALIGNMENT
    count = (room.numel() - ALIGNMENT) // tensor.element_size()
    flat = room[first : first + count * tensor.element_size()].view(tensor.dtype)
    return flat.as_strided(tensor.shape, tensor.stride()).copy_(tensor)


class _Stream:
    """A stream or an event: all work is done when it has been given."""

    cuda_stream = stream_id = 0
    device = None

    def __init__(self, *_args: Any, **_options: Any) -> None: ...

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_error: object) -> None: ...

    def synchronize(self) -> None: ...

    def wait_stream(self, _stream: Any) -> None: ...

    def wait_event(self, _event: Any) -> None: ...

    def record(self, *_args: Any) -> None: ...

    def elapsed_time(self, _end: Any) -> float:
        return 1.0


class _Compiled:
    """A compiled function to which tensors are presented as CUDA tensors."""

    def __init__(self, function: Any, present: Callable[[Any], Any]) -> None:
        self._function = function
        self._present = present

    def __call__(self, *args: Any, **options: Any) -> Any:
        given = {name: self._present(value) for name, value in options.items()}
        return self._function(*map(self._present, args), **given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


class _Compile:
    """`cute.compile`, whose functions take CPU tensors."""

    def __init__(self, compile: Any, present: Callable[[Any], Any]) -> None:
        self._compile = compile
        self._present = present

    def __call__(self, *args: Any, **options: Any) -> Any:
        return _Compiled(self._compile(*args, **options), self._present)

    def __getitem__(self, options: Any) -> _Compile:
        return _Compile(self._compile[options], self._present)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compile, name)


_OPEN: list[Device] = []  # the device of now: compiled functions outlive the one they are made for


def _present(value: Any) -> Any:
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(map(_present, value))
    return _OPEN[-1].tensor(value.detach()) if isinstance(value, torch.Tensor) else value


def _address(tensor: torch.Tensor) -> int:
    """`Tensor.data_ptr`, which makes the tensor's memory the device's."""
    address = _data_ptr(tensor)
    if tensor.numel() and tensor.layout is torch.strided:
        with mock.patch.object(torch.Tensor, "data_ptr", _data_ptr):
            start, nbytes = extent(tensor)
        name = f"tensor {len(_OPEN[-1].allocations)}"
        _OPEN[-1].allocations.register(start, nbytes, name, tensor.detach())
    return address


_data_ptr: Callable[[torch.Tensor], int] = torch.Tensor.data_ptr


@contextmanager
def cuda_torch(device: Device) -> Iterator[None]:
    """Let code for a GPU run on a device that is open."""
    with ExitStack() as undo:
        _OPEN.append(device)
        undo.callback(_OPEN.pop)
        for owner, name, value in (*_torch_changes(device), *_cute_changes(device)):
            undo.enter_context(mock.patch.object(owner, name, value))
        undo.enter_context(_Devices())
        yield


def without_triton() -> None:
    """Replace quack's autotuner, which flash-attn imports and does not use here."""
    module: Any = types.ModuleType("quack.autotuner")
    module.AutotuneConfig = mock.Mock
    module.autotune = lambda *_args, **_options: lambda function: function
    sys.modules.setdefault("quack.autotuner", module)


def _torch_changes(device: Device) -> Iterator[tuple[Any, str, Any]]:
    yield torch.Tensor, "is_cuda", property(lambda _tensor: True)
    yield torch.Tensor, "cuda", lambda tensor, *_args, **_options: _aligned(tensor.clone())
    yield torch.Tensor, "data_ptr", _address
    capability = CAPABILITIES[device.architecture.name]
    properties = types.SimpleNamespace(
        multi_processor_count=device.architecture.sms,
        major=capability[0],
        minor=capability[1],
        L2_cache_size=device.architecture.l2_cache,
        name=device.architecture.name,
    )
    constants: dict[str, Any] = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_capability": capability,
        "get_device_properties": properties,
        "get_device_name": device.architecture.name,
        "current_stream": _Stream(),
        "default_stream": _Stream(),
        **dict.fromkeys(("synchronize", "set_device", "empty_cache", "init", "manual_seed")),
    }
    for name, constant in constants.items():
        yield torch.cuda, name, _returning(constant)
    yield torch.cuda, "Stream", _Stream
    yield torch.cuda, "Event", _Stream


def _cute_changes(device: Device) -> Iterator[tuple[Any, str, Any]]:
    import cuda.bindings.driver as driver
    import cutlass
    import cutlass.torch
    from cutlass import cute
    from cutlass.cute import runtime, testing

    compile = _Compile(cute.compile, _present)
    yield cute, "compile", compile
    yield cutlass, "compile", compile
    from_dlpack = runtime.from_dlpack

    def presented(tensor: Any, *args: Any, **options: Any) -> Any:
        return from_dlpack(_present(tensor), *args, **options)

    for module in tuple(sys.modules.values()):
        if getattr(module, "from_dlpack", None) is from_dlpack:
            yield module, "from_dlpack", presented

    def benchmark(call: Any, *_args: Any, **options: Any) -> float:
        """Time nothing, but launch: some examples do so nowhere else."""
        workspace = options.get("workspace_generator")
        arguments = options.get("kernel_arguments") or (workspace and workspace())
        if arguments is not None and not device.launches:
            call(*arguments.args, **getattr(arguments, "kwargs", {}))
        return 1.0

    yield testing, "benchmark", benchmark
    for name, call in vars(driver).items():
        if name.startswith("cu") and callable(call) and not isinstance(call, type):
            yield driver, name, _returning((driver.CUresult.CUDA_SUCCESS, 1))


def _returning(value: Any) -> Callable[..., Any]:
    return lambda *_args, **_options: value
