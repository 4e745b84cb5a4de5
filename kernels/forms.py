"""`Form`: calls whose tensors and choices are alike, found again by one look-up on each call.

What a call's checks, plans and kernels depend on is, mods apart, how its tensors lie in memory and
what was chosen: its form.  Calls of one form have the same `Form` object, compared by identity, so
what was decided for one of them is kept under it and found in no time.  Does not look at mods, at
captured tensors, or at whether gradients are wanted.
"""

from __future__ import annotations

import math
from typing import Any, Final

from flexfa4.kernels.request import Choices, Inputs

ALIGNMENT: Final = 16  # bytes; more of an address makes no difference to code
_MOST: Final = 1024
_FORMS: Final[dict[Any, Form]] = {}


class Form:
    """What calls have in common.

    Attributes:
        sizes: of these calls.
        scale: of the scores, where none is given.
        checked: their tensors were checked, and go together.
    """

    __slots__ = ("checked", "scale", "sizes")

    def __init__(self, inputs: Inputs) -> None:
        """Stand for calls like one of them."""
        self.checked = False
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
