"""What a kernel cannot compute although the IR can say it; other backends can."""

from __future__ import annotations

from flexfa4.errors import FlexFA4Error


class KernelLimitError(FlexFA4Error, NotImplementedError):
    """Something in a mod that the GPU kernels have no code for."""

    found = "{found}"
    allowed = "in a GPU kernel: {allowed}"
    instead = '{rewrite}, or backend="cpu", which runs any mod on any device'
