"""The net below `captures`: Python code that a mod runs although it was not rebuilt is refused.

Whatever is captured is rebuilt or wrapped, so every function of the user's that runs while a mod is
traced has globals that record what is read.  A function that has not was reached by a way that
tracing does not see, such as a method of an enum's member or a callback kept in compiled code: the
values that it reads would become constants.  `Net` watches the calls that the mod makes and raises
for the first of them.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Literal

from flexfa4.errors import CaptureError
from flexfa4.frontend.tracing import locate
from flexfa4.frontend.tracing.recording import is_rebuilt

_Event = Literal["call", "return", "c_call", "c_return", "c_exception"]


class Net:
    """Watches calls in a ``with`` block.

    A profiling function that is set goes on seeing them; `cProfile` before Python 3.12, which is
    none, pauses.
    """

    def __enter__(self) -> None:
        self._root = sys._getframe(1)
        self._previous = sys.getprofile()
        getattr(self._previous, "disable", _nothing)()
        sys.setprofile(self._event)

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(self._previous if callable(self._previous) else None)
        getattr(self._previous, "enable", _nothing)()

    def _event(self, frame: FrameType, event: _Event, arg: Any) -> None:
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

    def _is_called_by_mod(self, frame: FrameType) -> bool:
        caller = frame.f_back
        while caller is not None and caller is not self._root:
            if is_rebuilt(caller):
                return True
            if _is_users(caller) or _module(caller).startswith("flexfa4."):
                return False  # the tracer itself reads what the user's code computes
            caller = caller.f_back
        return caller is self._root


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
