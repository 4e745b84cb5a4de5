"""Which calls the Hopper kernels serve, as far as device, dtype and head dimensions decide it.

What is too much in a mod is refused where a program is made of it
(`flexfa4.kernels.emit.program.check_limits`).
"""

from __future__ import annotations

from typing import Final

import torch

from flexfa4.kernels.launch.target import Target
from flexfa4.kernels.refusal import Refusal
from flexfa4.kernels.sm90.forward.call import ELEMENTS
from flexfa4.kernels.sm90.tuning import HEAD_DIM_STEP, MOST_HEAD_DIM, serves

CAPABILITY: Final = (9, 0)
"""The compute capability that the kernels are for."""

_GPUS: Final = "tensors on a GPU of compute capability 9.0, such as an H100 or H200"


def refused_device(device: torch.device, target: Target | None) -> Refusal | None:
    """Return why the kernels do not serve tensors on a device; None where they do.

    Args:
        device: where the tensors are.
        target: where kernels for them are launched; None where they cannot be.
    """
    if target is None:
        rewrite = "query, key, value = query.cuda(), key.cuda(), value.cuda()"
        return Refusal(f"tensors on {device}", _GPUS, rewrite)
    if target.capability != CAPABILITY:
        found = "{}.{}".format(*target.capability)
        return Refusal(f"{target.name}, of compute capability {found}", _GPUS, 'backend="auto"')
    return None


def refused_tensors(dtype: torch.dtype, head_dims: tuple[int, int]) -> Refusal | None:
    """Return why the kernels do not serve tensors on any device; None where they do.

    Args:
        dtype: of query, key and value.
        head_dims: of query and key, and of value.
    """
    if dtype not in ELEMENTS:
        return Refusal(
            f"query, key and value of {_name(dtype)}",
            " and ".join(map(_name, ELEMENTS)),
            "query, key, value = (x.bfloat16() for x in (query, key, value))",
        )
    if not serves(head_dims):
        return Refusal(
            f"head dimensions {head_dims[0]} of query and key, {head_dims[1]} of value",
            f"multiples of {HEAD_DIM_STEP} up to {MOST_HEAD_DIM}",
            _padded(head_dims),
        )
    return None


def _padded(head_dims: tuple[int, int]) -> str:
    """Return how other head dimensions are made of some that the kernels have."""
    if max(head_dims) > MOST_HEAD_DIM:
        return f"heads of at most {MOST_HEAD_DIM}"
    d, dv = (-dim % HEAD_DIM_STEP for dim in head_dims)
    parts = []
    if d:
        parts.append(f"query and key from torch.nn.functional.pad(x, (0, {d})),")
        parts.append(f"scale={head_dims[0]} ** -0.5,")
    if dv:
        parts.append(f"value from torch.nn.functional.pad(x, (0, {dv})),")
        parts.append(f"and out[..., :{head_dims[1]}]")
    return " ".join(parts).rstrip(",")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
