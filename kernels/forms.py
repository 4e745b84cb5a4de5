"""`Form`: calls whose tensors and choices are alike, found again by one look-up on each call.

What a call's checks, plans and kernels depend on is, mods apart, how its tensors lie in memory and
what was chosen: its form.  Calls of one form have the same `Form` object, compared by identity, so
what was decided for one of them is kept under it and found in no time.  Captured tensors have a
`Layout` likewise.  Does not look at mods, or at whether gradients are wanted.

Those of the last calls are found faster yet, in a third of the time (`Recent`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import torch
from torch.autograd import forward_ad

from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.ir import Buffer
from flexfa4.kernels.request import Choices, Inputs

T = TypeVar("T")

ALIGNMENT: Final = 16  # bytes; more of an address makes no difference to code
_MOST: Final = 1024
_FORMS: Final[dict[Any, Form]] = {}
_dispatch_modes: Final = torch._C._len_torch_dispatch_stack


class Form:
    """What calls have in common.

    Attributes:
        sizes: of these calls.
        scale: of the scores, where none is given.
        checked: their tensors were checked, and go together.
        captures: what is known of the last tensors that score mods captured in these calls: their
            layout, and which of them need gradients.
        repeated: see `Recent.note`.
    """

    __slots__ = ("captures", "checked", "repeated", "scale", "sizes")

    def __init__(self, inputs: Inputs) -> None:
        """Stand for calls like one of them."""
        self.checked = False
        self.captures: Recent[tuple[Layout, frozenset[Buffer]]] = Recent()
        self.repeated = 0
        self.sizes = inputs.sizes
        self.scale = 1.0 / math.sqrt(inputs.q.shape[3] or 1)


def form_of(inputs: Inputs, choices: Choices) -> Form:
    """Return the form of a call.

    Args:
        inputs: tensors that have strides and an address.
        choices: how it runs.

    Raises:
        AttributeError, RuntimeError, TypeError, ValueError: they are no such tensors of four axes.
    """
    q, k, v, sink = inputs
    key = (
        q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype,
        q.device, k.device, v.device,
        q.data_ptr() % ALIGNMENT, k.data_ptr() % ALIGNMENT, v.data_ptr() % ALIGNMENT,
        None if sink is None else (sink.shape, sink.dtype, sink.device, sink.layout), choices,
    )  # fmt: skip
    form = _FORMS.get(key)
    if form is None:
        if len(_FORMS) >= _MOST:
            _FORMS.clear()
        form = _FORMS.setdefault(key, Form(inputs))
    return form


class Layout:
    """What calls have in common whose captured tensors are alike; compared by identity.

    Attributes:
        repeated: see `Recent.note`.
    """

    __slots__ = ("repeated",)

    def __init__(self) -> None:
        self.repeated = 0


_LAYOUTS: Final[dict[Any, Layout]] = {}


def layout_of(score: BoundGraph) -> Layout:
    """Return what tells the captured tensors of a score mod from those of other calls."""
    tensors = score.tensors
    layouts = [(t.dtype, t.shape, t.stride(), t.data_ptr() % ALIGNMENT) for t in tensors]
    key = (score.graph, *layouts)
    layout = _LAYOUTS.get(key)
    if layout is None:
        if len(_LAYOUTS) >= _MOST:
            _LAYOUTS.clear()
        layout = _LAYOUTS.setdefault(key, Layout())
    return layout


class Recent(Generic[T]):
    """What was found for the tensors of the last calls, where nothing of torch's watched.

    Tensors that are alike are recognised by the guards of Dynamo, torch's compiler, which compare
    in one call what is else read bit by bit, and more: types, modes, transforms, autocast, whether
    gradients are required.  So tensors may be missed, such as one that is there twice, but none are
    taken for others.  These guards are no part of torch's interface: nothing is kept by a torch
    that does not make them in this way.
    """

    _KEPT: Final = 4

    def __init__(self) -> None:
        self._seen: tuple[tuple[Callable[..., bool], object, T], ...] = ()

    def get(self, tensors: Sequence[torch.Tensor], given: object) -> T | None:
        """Return what is known of a call, None where nothing is.

        Args:
            tensors: whatever they are.
            given: what it depends on beside, compared by identity.
        """
        # guards do not look at modes of fake tensors and derivatives in forward mode
        if _dispatch_modes() or forward_ad._current_level >= 0:
            return None
        if True in [getattr(tensor, "is_nested", False) for tensor in tensors]:
            return None  # their guards would end the process: such tensors have no strides
        for holds, known, found in self._seen:
            if known is given and holds(*tensors):
                return None if _misaligned(tensors) else found
        return None

    def note(
        self, tensors: Sequence[torch.Tensor], given: object, found: T, counted: Form | Layout
    ) -> None:
        """Keep what `get` did not know; now and then, for it takes microseconds.

        Args:
            tensors: as there; torch may not have to see a call with them.
            given: as there.
            found: for these.
            counted: has the number of times that this was asked for it, which a power of 2 has to
                be: of many that come in turn, none is kept for long.
        """
        counted.repeated += 1
        if counted.repeated & (counted.repeated - 1) or _misaligned(tensors):
            return
        holds = _guard_of(tensors)
        if holds is not None:
            self._seen = ((holds, given, found), *self._seen)[: self._KEPT]


def _guard_of(tensors: Sequence[torch.Tensor]) -> Callable[..., bool] | None:
    """Return what tells whether tensors are like these; None where torch has no such guards."""
    sizes = [list(x.shape) for x in tensors]
    strides = [list(x.stride()) for x in tensors]
    try:
        guards: Any = torch._C._dynamo.guards.TensorGuards
        guard = guards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        holds: Callable[..., bool] = guard.check
        return holds if holds(*tensors) else None
    except (AttributeError, TypeError, ValueError):
        return None


def _misaligned(tensors: Sequence[torch.Tensor]) -> int:
    bits = 0
    for tensor in tensors:
        bits |= tensor.data_ptr()
    return bits % ALIGNMENT
