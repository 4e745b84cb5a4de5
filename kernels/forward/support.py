"""Which calls kernels serve, as far as device and dtype decide it.

Head dimensions are up to the architecture.  What is too much in a mod is refused where a program is
made of it (`flexfa4.kernels.emit.program.check_limits`).
"""

from __future__ import annotations

from typing import Final

import torch

from flexfa4.kernels.architectures import CAPABILITIES
from flexfa4.kernels.forward.architecture import Gpus
from flexfa4.kernels.forward.call import ELEMENTS
from flexfa4.kernels.launch.target import Target
from flexfa4.kernels.refusal import Refusal


def refused_device(gpus: Gpus, device: torch.device, target: Target | None) -> Refusal | None:
    """Return why kernels do not serve tensors on a device; None where they do.

    Args:
        gpus: that the kernels are for.
        device: where the tensors are.
        target: where kernels for them are launched; None where they cannot be.
    """
    if target is None:
        rewrite = "query, key, value = query.cuda(), key.cuda(), value.cuda()"
        return Refusal(f"tensors on {device}", str(gpus), rewrite)
    if target.capability not in gpus.capabilities:
        found = "{}.{}".format(*target.capability)
        serving = CAPABILITIES.get(target.capability)
        rewrite = f'backend="{serving}"' if serving else _OTHERWISE
        return Refusal(f"{target.name}, of compute capability {found}", str(gpus), rewrite)
    return None


_OTHERWISE: Final = 'backend="auto", which takes torch\'s FlexAttention or torch code on this GPU'


def refused_dtype(dtype: torch.dtype) -> Refusal | None:
    """Return why kernels do not serve q, k and v of a dtype on any device; None where they do."""
    if dtype in ELEMENTS:
        return None
    return Refusal(
        f"query, key and value of {_name(dtype)}",
        " and ".join(map(_name, ELEMENTS)),
        "query, key, value = (x.bfloat16() for x in (query, key, value))",
    )


def refused_head_dims(
    head_dims: tuple[int, int], step: int, most: int | None = None
) -> Refusal | None:
    """Return why head dims of q and v are not multiples of `step` up to `most`; None if they are.

    What is said to write instead pads them with zeros, which change nothing.

    Args:
        head_dims: of q and of v.
        step: what they should be multiples of.
        most: None where something else limits them.
    """
    if all(not d % step and 0 < d <= (most or d) for d in head_dims):
        return None
    return Refusal(
        f"head dimensions {head_dims[0]} of query and key, {head_dims[1]} of value",
        f"multiples of {step}" + ("" if most is None else f" up to {most}"),
        _padded(head_dims, step, most),
    )


def _padded(head_dims: tuple[int, int], step: int, most: int | None) -> str:
    """Return how other head dimensions are made of some that there are kernels for."""
    if most is not None and max(head_dims) > most:
        return f"heads of at most {most}"
    d, dv = (-dim % step for dim in head_dims)
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
