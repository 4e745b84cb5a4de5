"""The chapter of the error catalogue for the choice of a backend.

Texts only: the backends decide when a call is not for them.
"""

from __future__ import annotations

from flexfa4.errors import FlexFA4Error


class UnservedCallError(FlexFA4Error, NotImplementedError):
    """A call that the backend which was named does not serve."""

    found = "backend={backend!r} does not serve {found_value}"
    allowed = "{expected}"
    instead = '{rewrite}; or backend="cpu", which serves every call on any device'
