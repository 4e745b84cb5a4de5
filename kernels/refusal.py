"""`Refusal`: why a backend does not serve a call, as a value.

A backend that was named raises it; ``"auto"`` takes another backend instead, and `flexfa4.explain`
says it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flexfa4.errors import FlexFA4Error
from flexfa4.kernels.errors import UnservedCallError


class BackendWarning(UserWarning):
    """A GPU runs plain torch code, because kernels for it lack something on this machine."""


@dataclass(frozen=True)
class Refusal:
    """Why a backend does not serve a call.

    Attributes:
        found: what is in the way.
        allowed: what would be served.
        rewrite: the nearest thing that works.
        lacking: this machine lacks something that can be installed; the call itself is served.
        kind: an error of the catalogue that says the same, with its fields.
    """

    found: str
    allowed: str
    rewrite: str
    lacking: bool = False
    kind: tuple[type[FlexFA4Error], dict[str, Any]] | None = None

    @classmethod
    def of(cls, error: FlexFA4Error, *, lacking: bool = False) -> Refusal:
        """Return the refusal that an error of the catalogue is."""
        found, allowed, rewrite = (
            text.format(**error.fields) for text in (error.found, error.allowed, error.instead)
        )
        return cls(found, allowed, rewrite, lacking, (type(error), error.fields))

    def error(self, backend: str) -> FlexFA4Error:
        """Return the error for a backend that was named."""
        if self.kind is not None:
            kind, fields = self.kind
            return kind(**fields)
        return UnservedCallError(
            backend=backend, found_value=self.found, expected=self.allowed, rewrite=self.rewrite
        )
