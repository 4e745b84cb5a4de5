"""The chapter of the error catalogue for torch's FlexAttention."""

from __future__ import annotations

from flexfa4.errors import FlexFA4Error


class FlexCompileError(FlexFA4Error, RuntimeError):
    """torch.compile did not get through a call; the cause is kept."""

    found = "torch's compiled FlexAttention fails: {reason}{mods}"
    allowed = "what the mods say was accepted; this is a limit, or a bug, of torch"
    instead = 'backend="cpu", which runs every mod on any device'
