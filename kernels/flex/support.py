"""What torch's compiled FlexAttention can do: a row for each kind of device, as of torch 2.13.

What is too much in a mod is refused where it is written as a function (`elements`, `source`).
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from typing import Final

import torch

from flexfa4.kernels.flex.compiled import chosen_compiler
from flexfa4.kernels.refusal import Refusal
from flexfa4.kernels.request import Inputs

_DTYPES: Final = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Row:
    """What is compiled for a kind of device.

    Attributes:
        shortest: the least head dimension.
        most: the most batches, and heads: they are axes of a grid.
        lse: it is returned, and there are gradients.
        any_shape: one function serves other shapes after the first ones.
    """

    shortest: int
    most: int
    lse: bool
    any_shape: bool


_ROWS: Final = {
    "cuda": Row(shortest=16, most=65535, lse=True, any_shape=True),
    # C++, for inference; with symbolic shapes the code that reads captures does not compile
    "cpu": Row(shortest=1, most=1 << 31, lse=False, any_shape=False),
}
_WHOLE: Final = Row(shortest=1, most=1 << 31, lse=True, any_shape=True)  # uncompiled


def row_of(device: torch.device) -> Row | None:
    """Return what is compiled for a device; None where nothing is."""
    return _ROWS.get(device.type) if chosen_compiler() is None else _WHOLE


def refused_inputs(inputs: Inputs, lse: bool) -> Refusal | None:
    """Return why torch does not serve a call, whatever its mods are; None where it does.

    Args:
        inputs: of which no element is read.
        lse: it is wanted, or needed for gradients or a sink.
    """
    q, _, v, _ = inputs
    row = row_of(q.device)
    if row is None:
        rewrite = "query, key, value = query.cuda(), key.cuda(), value.cuda()"
        return Refusal(f"tensors on {q.device}", f"tensors on {' or '.join(_ROWS)}", rewrite)
    if q.dtype not in _DTYPES:
        return Refusal(
            f"query, key and value of {_name(q.dtype)}",
            ", ".join(map(_name, _DTYPES)),
            "query, key, value = (x.float() for x in (query, key, value))",
        )
    least = min(q.shape[3], v.shape[3])
    if least < row.shortest:
        return Refusal(
            f"a head dimension of {least}",
            f"head dimensions of at least {row.shortest}",
            f"torch.nn.functional.pad(x, (0, {row.shortest - least})), and the scale of {least}",
        )
    most = max(q.shape[:2])
    if most > row.most:
        return Refusal(f"{most} batches or heads", f"at most {row.most} each", "fewer in a call")
    if lse and not row.lse:
        return Refusal(
            f"a call on {q.device.type} that returns lse, has a sink or is differentiated",
            f"on {q.device.type} the output alone",
            'backend="cpu"',
        )
    return _lacking(q.device.type) if chosen_compiler() is None else None


@functools.cache
def _lacking(kind: str) -> Refusal | None:
    """Return what the compiler for a kind of device lacks; None where it is complete."""
    from torch._dynamo.eval_frame import is_dynamo_supported

    if not is_dynamo_supported():
        version = "Python {}.{}".format(*sys.version_info[:2])
        return Refusal(version, "a Python that torch.compile supports", "another one", True)
    if kind == "cuda":
        from torch.utils._triton import has_triton

        if not has_triton():
            return Refusal(
                "no Triton that supports this GPU",
                "GPUs of compute capability 7.0 and later, and Triton",
                "pip install triton",
                lacking=True,
            )
    elif sys.platform == "darwin" or not torch.cpu._is_avx2_supported():
        return Refusal(
            "a CPU without AVX2, or macOS", "x86 with AVX2 on Linux or Windows", 'backend="cpu"'
        )
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
