"""The chapter of the error catalogue for the choice of a backend, and for what a call takes.

Texts only: the backends decide when a call is not for them.
"""

from __future__ import annotations

import torch

from flexfa4.errors import FlexFA4Error


class UnservedCallError(FlexFA4Error, NotImplementedError):
    """A call that the backend which was named does not serve."""

    found = "backend={backend!r} does not serve {found_value}"
    allowed = "{expected}"
    instead = '{rewrite}; or backend="cpu", which serves every call on any device'


class CallMemoryError(FlexFA4Error, torch.OutOfMemoryError):
    """A device that has too little free memory for what a call makes."""

    found = (
        "a call on {device} takes {needed} beside its inputs ({parts}), which is not free: {reason}"
    )
    allowed = "calls whose results, and what is computed on the way, fit the device"
    instead = "{rewrite}"
