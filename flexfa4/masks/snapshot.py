"""What a mask captured when its block mask was made, and whether that has changed since.

Tensors are copied, so that a block mask stays what it is; the copies are compared with what the
mask captures now when it is used.  Does not know blocks, sizes or devices.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch

from flexfa4.errors import StaleBlockMaskError
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.tracing.forms import MaskLike
from flexfa4.frontend.tracing.trace import resolve


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A mask function with the values that it captured.

    Attributes:
        mask: the mask function, text or `Mod`.
        bound: its graph, with the captured tensors themselves.
        kept: copies of them, which nobody changes.
        identities: what told the captured tensors (see `tensor_identity`) when they were copied.
    """

    mask: MaskLike
    bound: BoundGraph
    kept: tuple[torch.Tensor, ...]
    identities: tuple[Any, ...]

    @classmethod
    def of(cls, mask: MaskLike, bound: BoundGraph) -> Snapshot:
        """Return a snapshot of a mask that was resolved a moment ago."""
        copies = tuple([t.detach().clone() for t in bound.tensors])
        return cls(mask, bound, copies, tuple(map(tensor_identity, bound.tensors)))

    @classmethod
    def for_good(cls, mask: MaskLike, bound: BoundGraph) -> Snapshot:
        """Return the snapshot of a `Mod` whose tensors are copies already."""
        return cls(mask, bound, bound.tensors, tuple(map(tensor_identity, bound.tensors)))

    @property
    def frozen(self) -> BoundGraph:
        """The graph with the copies."""
        return replace(self.bound, tensors=self.kept) if self.kept else self.bound

    def check_current(self, rewrite: Callable[[], str]) -> None:
        """Raise if a value that the mask reads has changed.

        Tensors are compared by content with the copies; off the CPU by identity and torch's count
        of in-place changes, where that says enough.

        Args:
            rewrite: gives the call that makes the block mask again, for the message.

        Raises:
            StaleBlockMaskError: a captured number, tensor or choice changed.
        """
        made, now = self.bound, resolve(self.mask, "mask")
        if now is made and not made.tensors:  # it captures nothing
            return

        def refuse(name: str) -> NoReturn:
            raise StaleBlockMaskError(name=name, rewrite=rewrite())

        if now.graph != made.graph:
            refuse("a captured value that the mask was specialised for")
        for scalar, old, new in zip(made.graph.scalars, made.scalars, now.scalars, strict=True):
            if number_key(old) != number_key(new):
                refuse(f"`{scalar.name}` ({old} then, {new} now)")
        for buffer, kept, tensor, identity in zip(
            made.graph.buffers, self.kept, now.tensors, self.identities, strict=True
        ):
            counted = identity is not None and tensor_identity(tensor) == identity
            if not _unchanged(kept, tensor, counted=counted):
                refuse(f"the captured tensor `{buffer.name}`")

    def holds(self, tensors: tuple[torch.Tensor, ...]) -> bool:
        """Return whether captured tensors of known identity still have their content."""
        return all(_unchanged(k, t, counted=True) for k, t in zip(self.kept, tensors, strict=True))


def tensor_identity(tensor: torch.Tensor) -> Any:
    """Return what stays equal while a tensor is the same one and unchanged.

    Two views of one tensor that cover the same elements are the same one.  None where torch does
    not count in-place changes.
    """
    if tensor.is_inference():
        return None
    own = (id(tensor), tensor._version, tensor.data_ptr())  # the address: `t.data = other`
    base = tensor._base
    if base is None:
        return own
    return (id(base), *own[1:], tensor.shape, tensor.stride(), tensor.dtype)


def number_key(number: int | float) -> Any:
    """Return what tells numbers apart that compare equal (0.0, -0.0) and keeps NaN equal to NaN."""
    return number if isinstance(number, int) else struct.pack("<d", number)


def _unchanged(kept: torch.Tensor, tensor: torch.Tensor, *, counted: bool) -> bool:
    """Return whether a captured tensor still holds what was copied from it.

    Where torch counts changes and says there were none, the content is compared all the same if
    that needs no transfer: changes through numpy or ``.data`` are not counted.
    """
    if kept is tensor or (counted and tensor.device.type != "cpu"):
        return True
    if (kept.shape, kept.dtype, kept.device) != (tensor.shape, tensor.dtype, tensor.device):
        return False
    if torch.equal(kept, tensor):
        return True
    same = (kept == tensor) | (kept.isnan() & tensor.isnan())
    return bool(same.all())
