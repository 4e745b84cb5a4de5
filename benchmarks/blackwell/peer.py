"""flash-attn-4's forward kernel of a case, compiled without a GPU, as ours are.

Its own front end chooses tiles, clusters and the share of emulated exponentials, on tensors without
memory; what it would compile is handed to our way of compiling instead, so that both have the same
options and the same release.  Mods are written for it by hand, in CuTe, in the way that makes its
loop shortest: several lengths of vectors are tried, and what does not vary is kept out.

A benchmark's dependency only.  CUTE_DSL_ARCH has to be set before the first import of cutlass.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any, Final
from unittest import mock

import cutlass
import cutlass.utils
import torch
from blackwell.peer_mods import Peer
from cutlass import cute
from torch._subclasses.fake_tensor import FakeTensorMode

from flexfa4.kernels.compile.cute import Compilation, compile_with_cute

NAME: Final = "flash-attn-4"
MULTIPROCESSORS: Final = 148  # of a B200
L2_BYTES: Final = 126 << 20


def _front_end() -> Any:
    """Return flash-attn-4's interface, with a stand-in for a module of tuning that needs triton."""
    module: Any = types.ModuleType("quack.autotuner")
    module.AutotuneConfig = mock.Mock
    module.autotune = lambda *_args, **_options: lambda function: function
    sys.modules.setdefault("quack.autotuner", module)
    from flash_attn.cute import interface

    return interface


class _Caught(BaseException):
    """Ends a call where it would compile."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self.arguments = arguments


class _Cute:
    """`cutlass.cute`, but for `compile`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(cute, name)

    def compile(self, *arguments: Any, **_options: Any) -> Any:
        raise _Caught(arguments)


class _Hardware:
    """`cutlass.utils.HardwareInfo` of a B200, without a driver."""

    def __init__(self, *_args: Any) -> None: ...

    def get_max_active_clusters(self, blocks: int) -> int:
        return MULTIPROCESSORS // blocks

    def get_device_multiprocessor_count(self) -> int:
        return MULTIPROCESSORS

    def get_l2_cache_size_in_bytes(self) -> int:
        return L2_BYTES


def compiled(
    peer: Peer, sizes: tuple[int, int, int, int, int, int], arch: str, width: int = 1
) -> Compilation:
    """Return the kernel of a case.

    Args:
        peer: what is computed.
        sizes: batch, heads, key heads, length, and head dims of q and v.
        arch: ``sm_100a`` or ``sm_103a``.
        width: of its mods' vectors.
    """
    with mock.patch.object(cutlass.utils, "HardwareInfo", _Hardware):
        jit, *example = _arguments(peer, sizes, arch, width)
        return compile_with_cute(jit, example, arch)


def _arguments(
    peer: Peer, sizes: tuple[int, int, int, int, int, int], arch: str, width: int
) -> tuple[Any, ...]:
    """Return what would be given to `cute.compile`."""
    batch, heads, kv_heads, length, dim, dim_v = sizes
    mods = {
        name: _vectorized(make, width)
        for name, make in (("score_mod", peer.score), ("mask_mod", peer.mask))
        if make is not None
    }
    interface = _front_end()
    with (
        FakeTensorMode(),
        mock.patch.object(interface, "cute", _Cute()),
        mock.patch.object(interface, "get_num_sms_for_selection", lambda *_: MULTIPROCESSORS),
    ):
        shapes = ((heads, dim), (kv_heads, dim), (kv_heads, dim_v))
        q, k, v = (torch.empty(batch, length, h, d, dtype=torch.bfloat16) for h, d in shapes)
        captured = [torch.empty(shape, dtype=dtype) for shape, dtype in peer.captured]
        try:
            interface._flash_attn_fwd(
                q, k, v, aux_tensors=captured or None, _arch=_NUMBERS[arch], **mods, **peer.options
            )
        except _Caught as caught:
            return caught.arguments
    raise RuntimeError(f"{NAME} compiled nothing")


_NUMBERS: Final = {"sm_100a": 100, "sm_103a": 103}


def _vectorized(make: Callable[[int], Callable[..., Any]], width: int) -> Callable[..., Any]:
    """Return a mod that is called with vectors of a length: Python that is run while tracing."""
    made: Any = make(width)
    made.__vec_size__ = width
    return made
