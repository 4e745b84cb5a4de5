"""Checks of `flex_attention` where Dynamo traces it (``torch.compile``, strict export).

Dynamo cannot follow the making of a message, so Python itself runs these functions on constants,
and what they raise reaches the user.  `row_maxima` leaves the graph: it reads mods anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flexfa4.flex import kernel_options
from flexfa4.flex import row_maxima as eager
from flexfa4.frontend.tracing.dynamo import constant, refuse

__all__ = ["check_kernel_options", "refuse", "row_maxima"]

_outside: Callable[..., Any] = torch.compiler.disable


@constant
def check_kernel_options(options: Any) -> None:
    """See `kernel_options.check_kernel_options`."""
    kernel_options.check_kernel_options(options)


row_maxima: Callable[..., torch.Tensor] = _outside(
    eager.row_maxima,
    reason="flexfa4.flex: max_scores are computed outside the graph; ask for them in a call that is"
    " not compiled, or compile without fullgraph=True",
)
