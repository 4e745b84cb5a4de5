"""What autocast means for attention: query, key and value are cast as for a matrix product.

What mods capture, and sinks, stay as they are: scores are fp32 whatever the operands.  The backends
compute with autocast switched off.
"""

from __future__ import annotations

from typing import Any

import torch


def operand_dtype(query: Any) -> torch.dtype | None:
    """Return the dtype to which autocast casts the operands of a product, None where it is off."""
    if not torch._C._is_any_autocast_enabled() or not isinstance(query, torch.Tensor):
        return None
    kind = query.device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def cast_operand(tensor: Any, dtype: torch.dtype) -> Any:
    """Cast an operand as autocast does for a matrix product: fp64 stays."""
    floating = isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    return tensor.to(dtype) if floating and tensor.dtype is not torch.float64 else tensor
