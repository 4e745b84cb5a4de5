"""The net below `captures`: Python code that a mod runs although it was not rebuilt is refused.

Whatever is captured is rebuilt or wrapped, so every function of the user's that runs while a mod is
traced has globals that record what is read.  A function that has not was reached by a way that
tracing does not see, such as a method of an enum's member or a callback kept in compiled code: the
values that it reads would become constants.  `Net` watches the calls that the mod makes and raises
for the first of them.  So it does where a mod asks for a setting of torch, which a trace would
freeze, or stops gradients, which a graph cannot express.
"""

from __future__ import annotations

import sys
from types import BuiltinFunctionType, FrameType
from typing import Any, Final, Literal, NoReturn

import torch

from flexfa4.errors import CaptureError, UnsupportedFunctionError
from flexfa4.frontend.tracing import locate
from flexfa4.frontend.tracing.contract import Kind
from flexfa4.frontend.tracing.proxies import Operators
from flexfa4.frontend.tracing.recording import is_rebuilt

_Event = Literal["call", "return", "c_call", "c_return", "c_exception"]


# Settings of torch that a mod may ask for or change; some are Python code, most are compiled.
_SETTINGS: Final = (
    torch.is_grad_enabled, torch.is_inference_mode_enabled, torch.get_default_dtype,
    torch.set_default_dtype, torch.get_default_device, torch.set_default_device,
    torch.get_num_threads, torch.set_num_threads, torch.get_num_interop_threads,
    torch.is_autocast_enabled, torch.is_autocast_cpu_enabled, torch.get_autocast_dtype,
    torch.initial_seed, torch.seed, torch.manual_seed, torch.get_rng_state, torch.set_rng_state,
    torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms,
    torch.is_anomaly_enabled, torch.get_float32_matmul_precision,
    torch.set_float32_matmul_precision, torch.is_warn_always_enabled,
    torch.cuda.current_device,
)  # fmt: skip
_QUESTIONS: Final = (torch.is_tensor,)
_GRADIENT_MODES: Final = (
    torch.no_grad, torch.enable_grad, torch.set_grad_enabled, torch.inference_mode,
)  # fmt: skip


def _plain(function: Any) -> Any:
    return getattr(function, "__wrapped__", function)


_COMPILED_SETTINGS: Final = {f: f.__name__ for f in _SETTINGS if not hasattr(_plain(f), "__code__")}
_MODES: Final = {kind.__name__ for kind in _GRADIENT_MODES}
# by id, for the hash of a code is slow
_WATCHED_CODES: Final = {
    **{
        id(_plain(f).__code__): f.__name__
        for f in (*_SETTINGS, *_QUESTIONS)
        if hasattr(_plain(f), "__code__")
    },
    **{
        id(getattr(kind, method).__code__): kind.__name__
        for kind in _GRADIENT_MODES
        for method in ("__new__", "__init__", "__enter__", "__call__")
        if method in vars(kind) and hasattr(getattr(kind, method), "__code__")
    },
}


class Net:
    """Watches calls in a ``with`` block.

    A profiling function that is set goes on seeing them; `cProfile` before Python 3.12, which is
    none, pauses.
    """

    def __init__(self, kind: Kind) -> None:
        self._has_gradient = kind == "score"

    def __enter__(self) -> None:
        self._root = sys._getframe(1)
        self._previous = sys.getprofile()
        getattr(self._previous, "disable", _nothing)()
        sys.setprofile(self._event)

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(self._previous if callable(self._previous) else None)
        getattr(self._previous, "enable", _nothing)()

    def _event(self, frame: FrameType, event: _Event, arg: Any) -> None:
        if event == "c_call":
            if type(arg) is BuiltinFunctionType and arg in _COMPILED_SETTINGS and is_rebuilt(frame):
                refuse_setting(_COMPILED_SETTINGS[arg])
        elif event == "call" and id(frame.f_code) in _WATCHED_CODES:
            self._refuse_watched(frame)
        if event == "call" and _is_users(frame) and self._is_called_by_mod(frame):
            name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
            raise CaptureError(
                where=locate.call(frame),
                name=f"`{name}`",
                kind="reached in a way that hides the values it reads",
                rewrite="call it outside the mod and capture the result, or write it as a function "
                "that the mod calls by its name",
            )
        if callable(self._previous):
            self._previous(frame, event, arg)

    def _refuse_watched(self, frame: FrameType) -> None:
        if frame.f_back is not None and is_rebuilt(frame.f_back):  # torch itself may ask
            name = _WATCHED_CODES[id(frame.f_code)]
            if name == "is_tensor":
                _refuse_question(frame)
                return
            if name not in _MODES:
                refuse_setting(name)
            if self._has_gradient:
                refuse_gradient_mode(name)

    def _is_called_by_mod(self, frame: FrameType) -> bool:
        caller = frame.f_back
        while caller is not None and caller is not self._root:
            if is_rebuilt(caller):
                return True
            if _is_users(caller) or _module(caller).startswith("flexfa4."):
                return False  # the tracer itself reads what the user's code computes
            caller = caller.f_back
        return caller is self._root


def refuse_setting(name: str) -> NoReturn:
    """Refuse a question to torch whose answer may be another on the next call."""
    raise CaptureError(
        where=locate.here(),
        name=f"`torch.{name}()`",
        kind="a setting of torch, which would be that of the first call for ever",
        rewrite="call it outside the mod and capture the value",
    )


def _refuse_question(frame: FrameType) -> None:
    """Refuse ``torch.is_tensor`` of what stands for a tensor, of which it says no."""
    if isinstance(frame.f_locals["obj"], Operators):
        raise UnsupportedFunctionError(
            where=locate.here(),
            name="`torch.is_tensor`",
            names="isinstance, which takes the values of a mod for tensors",
            rewrite="isinstance(x, torch.Tensor)",
        )


def refuse_gradient_mode(name: str) -> NoReturn:
    """Refuse to stop gradients in a part of a mod."""
    raise UnsupportedFunctionError(
        where=locate.here(),
        name=f"`torch.{name}`",
        names="functions that have a gradient: a mod cannot stop the gradient of a part of it",
        rewrite="the mod without it; detach captured tensors outside: t = t.detach()",
    )


def _nothing() -> None:
    """Do nothing."""


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_users(frame: FrameType) -> bool:
    """Return whether a frame runs the user's code as it is; making an exception is harmless."""
    if is_rebuilt(frame) or locate.is_library(_module(frame)):
        return False
    first = frame.f_code.co_varnames[:1]
    return not (first and isinstance(frame.f_locals.get(first[0]), BaseException))
