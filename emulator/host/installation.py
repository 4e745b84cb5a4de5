"""The changes to CuTe-DSL while an emulated device is open, and their undoing.

All of it is in `Installation`: for the time of a ``with`` block, CuTe-DSL compiles for the device's
architecture, binds what it compiles (`binding.py`), finds one device where it would ask the
driver, and raises the emulator's own exceptions instead of CUDA error numbers.  Two of its caches
are set aside, since a function bound to the emulator must not reach a real GPU, nor the other way
round: that of compiled functions in memory is replaced by an empty one, and that of modules in
files is switched off.

The changes are the process's, as CuTe-DSL's settings are.  A name that is not where it is expected
is an error before anything is changed.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from flexfa4.emulator.errors import EmulationError
from flexfa4.emulator.host.architectures import Architecture
from flexfa4.emulator.host.binding import bind, unfitting, with_ptx_dump
from flexfa4.emulator.host.cuda_calls import RUNTIME, unsupported
from flexfa4.emulator.host.errors import (
    CompiledElsewhereError,
    ExportError,
    LoadedModuleError,
    MissingCutlassError,
)

Wrap = Callable[..., Callable[..., Any]]
BOUND: Final = "_flexfa4_emulated"  # attribute of the compiled functions that were bound
_ABSENT: Final = object()


class Installation:
    """CuTe-DSL changed for one device; a context manager."""

    def __init__(self, device: Architecture) -> None:
        self._device = device
        self._undo = ExitStack()

    def __enter__(self) -> Installation:
        """Change CuTe-DSL, importing it where it is not imported yet.

        Raises:
            MissingCutlassError: when it is not installed.
            UnfittingCutlassError: when it lacks a name that is changed here.
        """
        with ExitStack() as undo:
            folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="flexfa4-ptx-")))
            for owner, name, wrap in _methods(self._device, folder):
                undo.enter_context(_replaced(owner, name, wrap(_found(owner, name))))
            for dsl in _dsls():
                undo.enter_context(_set_up(dsl, self._device.name))
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._undo.close()


def raise_failure() -> None:
    """Raise the exception that host code of this thread could not let through, if there is one."""
    failure = RUNTIME.take_failure()
    if failure is not None:
        raise failure from None  # the error number that host code made of it says less


# ---- what is changed ----------------------------------------------------------------------------


def _methods(device: Architecture, folder: Path) -> Iterator[tuple[Any, str, Wrap]]:
    """Yield each changed attribute of a class, and what makes the new value of the old one."""
    try:
        importlib.import_module("cutlass")
    except ModuleNotFoundError as error:
        raise MissingCutlassError() from error
    try:
        from cutlass.base_dsl.compiler import Compiler
        from cutlass.base_dsl.dsl import BaseDSL
        from cutlass.base_dsl.export.external_binary_module import ExternalBinaryModule
        from cutlass.base_dsl.jit_executor import JitExecutor
        from cutlass.base_dsl.runtime import cuda as driver
        from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitCompiledFunction
        from cutlass.utils.hardware_info import HardwareInfo
    except ImportError as error:
        raise unfitting(error.name or str(error)) from error

    yield Compiler, "compile", functools.partial(_binding_compile, folder)
    yield BaseDSL, "compile_and_jit", _reporting(lambda _dsl: True)
    yield BaseDSL, "_build_jit_function", _marking
    yield ExternalBinaryModule, "__init__", _constant(_refuse_module)
    yield CudaDialectJitCompiledFunction, "num_devices", _constant(1)
    yield CudaDialectJitCompiledFunction, "_load_cuda_library", _loading
    yield JitExecutor, "run_compiled_program", _reporting(_executor_is_bound)
    for name, answer in _hardware(device).items():
        yield HardwareInfo, name, _constant(answer)
    yield driver, "get_device_attribute", _constant(_attribute_of(device))
    if importlib.util.find_spec("tvm_ffi"):
        from cutlass.cutlass_dsl import tvm_ffi_provider as provider

        for name in ("TVMFFIJitCompiledFunction", "TVMFFIJitCompiledFunctionWithKwargs"):
            yield _found(provider, name), "__call__", _reporting(_is_bound)


def _hardware(device: Architecture) -> dict[str, Callable[..., Any]]:
    """Return the methods of cutlass.utils.HardwareInfo as this device answers them.

    Clusters are counted as if SMs were not grouped; the driver may count fewer of the large ones.
    """

    def start(self: Any, device_id: int = 0) -> None:
        self.device_id = device_id

    def clusters(_self: Any, cluster_size: int, _stream: Any = None) -> int:
        return max(device.sms // cluster_size, 1)

    def sms(_self: Any) -> int:
        return device.sms

    def cache(_self: Any) -> int:
        return device.l2_cache

    return {
        "__init__": start,
        "get_max_active_clusters": clusters,
        "get_device_multiprocessor_count": sms,
        "get_l2_cache_size_in_bytes": cache,
    }


def _attribute_of(device: Architecture) -> Callable[..., int]:
    def get_device_attribute(attribute: Any, _device_id: int = 0) -> int:
        value = device.attribute(int(attribute))
        if value is None:
            raise unsupported(f"cuDeviceGetAttribute({attribute})")
        return value

    return get_device_attribute


def _binding_compile(folder: Path, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap Compiler.compile: every module it lowers is bound."""
    numbers = itertools.count()

    def compile_and_bind(self: Any, module: Any, pipeline: str, *args: Any, **options: Any) -> Any:
        pipeline, dump = with_ptx_dump(pipeline, folder / f"kernel-{next(numbers)}")
        dump.unlink(missing_ok=True)  # of an earlier compilation, if the user keeps PTX
        lowered = original(self, module, pipeline, *args, **options)
        ptx = dump.read_text() if dump.exists() else ""
        if dump.parent == folder:
            dump.unlink(missing_ok=True)
        bind(lowered, ptx)
        return lowered

    @functools.wraps(original)
    def compile(*args: Any, **options: Any) -> Any:
        try:
            return compile_and_bind(*args, **options)
        except EmulationError as error:  # which CuTe-DSL would call an internal error of its own
            RUNTIME.fail(error)
            raise

    return compile


def _marking(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap BaseDSL._build_jit_function: compiled functions carry a mark, and are not exported."""

    @functools.wraps(original)
    def build(*args: Any, **options: Any) -> Any:
        function = original(*args, **options)
        setattr(function, BOUND, True)
        function.export_to_c = functools.partial(_refuse_export, function.function_name)
        return function

    return build


def _refuse_export(name: str, *_args: Any, **_options: Any) -> None:
    raise ExportError(name=name)


def _refuse_module(_self: Any, file_path: str, *_args: Any, **_options: Any) -> None:
    raise LoadedModuleError(path=file_path)


def _loading(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap CudaDialectJitCompiledFunction._load_cuda_library."""

    @functools.wraps(original)
    def load(self: Any) -> list[Any]:
        if not _is_bound(self):
            raise CompiledElsewhereError(name=self.function_name)
        try:
            original(self)
        except Exception:
            raise_failure()
            raise
        return []  # nothing that the real driver should unload

    return load


def _reporting(bound: Callable[[Any], bool]) -> Wrap:
    """Return a wrap for methods that run host code: failures in it are raised after it."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run(self: Any, *args: Any, **options: Any) -> Any:
            if not bound(self):
                raise CompiledElsewhereError(name=getattr(self, "function_name", "that is called"))
            try:
                result = original(self, *args, **options)
            except Exception:
                raise_failure()
                raise
            raise_failure()
            return result

        return run

    return wrap


def _is_bound(function: Any) -> bool:
    # a function without kernels touches no device
    return getattr(function, BOUND, False) or not function.has_gpu_module


def _executor_is_bound(executor: Any) -> bool:
    # `_load_cuda_library`, as it is while a device is open, leaves no library behind
    return not getattr(executor.jit_module, "cuda_library", ())


@contextmanager
def _set_up(dsl: Any, arch: str) -> Iterator[None]:
    """Set one DSL's settings for a device."""
    from cutlass.base_dsl.cache_helpers import JitCacheDict

    settings = dsl.envar
    with ExitStack() as undo:
        _found(settings, "_arch")
        for owner, name, value in (
            (settings, "_arch", arch),  # `arch` reads it, and asks the driver where it is None
            (settings, "disable_file_caching", True),
            (dsl, "jit_cache", JitCacheDict(max_elems=settings.jit_cache_max_elems)),
        ):
            _found(owner, name)
            undo.enter_context(_replaced(owner, name, value))
        yield


def _dsls() -> list[Any]:
    """Return the instances of all DSLs; there is one of each, made at import."""
    from cutlass.base_dsl.dsl import DSLSingletonMeta

    return list(_found(DSLSingletonMeta, "_instances").values())


# ---- how it is changed --------------------------------------------------------------------------


def _found(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError as error:
        owners = getattr(owner, "__name__", type(owner).__name__)
        raise unfitting(f"{owners}.{name}") from error


def _constant(value: Any) -> Wrap:
    return lambda _original: value


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute for a while; one that was inherited is deleted again."""
    before = vars(owner).get(name, _ABSENT)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
