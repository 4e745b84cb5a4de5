"""`compile`: the GPU kernel of a variant, compiled without a GPU and before the first call.

The kernel is the one that `flexfa4.attention` would compile for such a call: it is kept in the
cache of compiled kernels, or in a folder that takes the cache's place on another machine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch

from flexfa4.api import Options, choices_of
from flexfa4.block_mask import BlockMask
from flexfa4.checks import check_mod, check_tensors, checked_scale
from flexfa4.errors import ArgumentError, HeadsDoNotDivideError, describe
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.architectures import BACKENDS, named
from flexfa4.kernels.cache.store import KERNELS, KernelCache
from flexfa4.kernels.compile.compiled_kernel import CompiledKernel
from flexfa4.kernels.forward.compiled import compile_plan
from flexfa4.kernels.forward.describe import describe_kernel
from flexfa4.kernels.forward.function import planned
from flexfa4.kernels.forward.plan import VariantPlan
from flexfa4.kernels.refusal import Refusal
from flexfa4.kernels.request import Inputs, Request
from flexfa4.masks.cache import block_mask_for
from flexfa4.masks.spec import GivenSizes

_NAME: Final = re.compile(r"sm_\d{2,3}[af]?")
ARCH: Final = "sm_90a"
"""The architecture that is compiled for where none is named."""

LONG: Final = 8192
"""Queries of a call of which no length is known."""


@dataclass(frozen=True)
class Call:
    """The call that a kernel is compiled for, see `compile`; None for what was left out."""

    head_dim: int | tuple[int, int] = 128
    dtype: torch.dtype = torch.bfloat16
    batch: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    q_len: int | None = None
    kv_len: int | None = None
    scale: float | None = None
    sink: bool = False
    return_lse: bool = False
    options: Options | None = None

    def __post_init__(self) -> None:
        """Refuse sizes and dtypes that are none."""
        for name in ("batch", "heads", "kv_heads", "q_len", "kv_len"):
            size = getattr(self, name)
            if size is not None and not _is_size(size):
                raise ArgumentError(
                    name=name,
                    found_value=describe(size),
                    expected="an int, at least 1, or None",
                    rewrite=f"{name}=8",
                )
        dims: Any = self.head_dim
        pair = isinstance(dims, tuple) and len(dims) == 2
        if not all(map(_is_size, dims if pair else (dims,))):
            raise ArgumentError(
                name="head_dim",
                found_value=describe(dims),
                expected="an int, at least 1, or a tuple of two: of query and key, and of value",
                rewrite="head_dim=128",
            )
        if not isinstance(self.dtype, torch.dtype):
            raise ArgumentError(
                name="dtype",
                found_value=describe(self.dtype),
                expected="torch.bfloat16 or torch.float16",
                rewrite="dtype=torch.bfloat16",
            )

    def with_mask(self, mask: BlockMask) -> Call:
        """Return the call with what a block mask was made for, where nothing else is said."""
        given = {name: getattr(self, name) for name in ("batch", "heads", "q_len", "kv_len")}
        made = {name: getattr(mask, name) if n is None else n for name, n in given.items()}
        return replace(self, **made)

    def inputs(self) -> Inputs:
        """Return tensors of these sizes that take no memory.

        Raises:
            ShapeMismatchError: the sizes do not go together.
        """
        batch, heads, q_len = self.batch or 1, self.heads or self.kv_heads or 1, self.q_len or LONG
        kv_heads, kv_len = self.kv_heads or heads, self.kv_len or q_len
        dim, value_dim = self.head_dims
        if heads % kv_heads:
            raise HeadsDoNotDivideError(
                q_heads=heads,
                kv_heads=kv_heads,
                shapes=f"heads {heads}, kv_heads {kv_heads}",
                rewrite=f"heads={max(heads - heads % kv_heads, kv_heads)}",
            )
        one = torch.empty(1, dtype=self.dtype)
        q = one.expand(batch, heads, q_len, dim)
        k = one.expand(batch, kv_heads, kv_len, dim)
        v = one.expand(batch, kv_heads, kv_len, value_dim)
        sink = torch.empty(heads) if self.sink else None
        check_tensors(q, k, v, sink)
        return Inputs(q, k, v, sink)

    @property
    def head_dims(self) -> tuple[int, int]:
        """Head dimensions of query and key, and of value."""
        dims = self.head_dim
        return dims if isinstance(dims, tuple) else (dims, dims)


def _is_size(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n >= 1


@dataclass(frozen=True, eq=False)
class CompiledAttention:
    """A compiled kernel; `print` says what it does.

    Attributes:
        plan: all that its code depends on.
        kernel: text, machine code and what launching needs.
        path: the file that it is kept in.
    """

    plan: VariantPlan = field(repr=False)
    kernel: CompiledKernel = field(repr=False)
    path: Path

    @property
    def arch(self) -> str:
        """What it is compiled for, such as ``sm_90a``."""
        return self.kernel.arch

    @property
    def ptx(self) -> str:
        """Its text."""
        return self.kernel.ptx

    @property
    def cubin(self) -> bytes:
        """Its machine code, an ELF file."""
        return self.kernel.cubin

    @property
    def registers(self) -> dict[str, int]:
        """Registers of a thread of each warp role."""
        return named(self.arch).registers(self.kernel)

    @property
    def spills(self) -> int:
        """Bytes that each thread spills to local memory."""
        return self.kernel.spills

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a block, in bytes."""
        return self.kernel.smem_bytes

    def rows(self) -> list[tuple[str, str]]:
        """Return what it does and takes, as labels and texts."""
        known = named(self.arch)
        return [*known.describe(self.plan, self.arch), *describe_kernel(known, self.kernel)]

    def __str__(self) -> str:
        width = max(len(label) for label, _ in self.rows())
        indent = "\n" + " " * (width + 2)
        return "\n".join(
            f"{label:<{width}}  " + text.replace("\n", indent) for label, text in self.rows()
        )


def compile(
    *,
    score_mod: Any = None,
    block_mask: Any = None,
    head_dim: int | tuple[int, int] = 128,
    dtype: torch.dtype = torch.bfloat16,
    heads: int | None = None,
    kv_heads: int | None = None,
    scale: float | None = None,
    sink: bool = False,
    return_lse: bool = False,
    options: Options | None = None,
    arch: str = ARCH,
    folder: str | Path | None = None,
) -> CompiledAttention:
    """Compile the kernel of a variant; takes no GPU.

    A kernel serves calls of any batch and lengths, but for few exceptions: positions beyond 2**24
    are computed with care, and how blocks of a mask are found may depend on its sizes.

    Args:
        score_mod: as in `flexfa4.attention`.
        block_mask: likewise; a function is taken to be for one batch of 8192 queries and keys, and
            a `BlockMask` brings its own sizes.
        head_dim: of query and key, and of value; one number for both.
        dtype: of query, key and value.
        heads: query heads; by default those of the block mask, or as many as key heads.
        kv_heads: key heads; by default as many as query heads.
        scale: as in `flexfa4.attention`.
        sink: whether there is one.
        return_lse: whether lse is wanted, as it is for gradients.
        options: as in `flexfa4.attention`.
        arch: the architecture: ``"sm_90a"`` (H100, H200), ``"sm_100a"`` (B200), ``"sm_103a"``
            (B300).
        folder: where to keep it: a folder that ``FLEXFA4_CACHE_DIR`` may name on a machine without
            CuTe-DSL. None is the user's cache.

    Returns:
        The kernel: ``.ptx``, ``.cubin``, ``.registers``, ``.spills``, ``.smem_bytes``, ``.plan``.

    Raises:
        UnservedCallError, KernelLimitError: there is no kernel for such calls.
        ArgumentError: there are no kernels for the architecture; or the folder that was named
            cannot be written.
        CompileError: CuTe-DSL is not installed, or refuses the kernel.
        FlexFA4Error: as `flexfa4.attention`, for what is wrong in the arguments.
    """
    call = Call(
        head_dim,
        dtype,
        heads=heads,
        kv_heads=kv_heads,
        scale=scale,
        sink=sink,
        return_lse=return_lse,
        options=options,
    )
    plan = plan_of(score_mod, block_mask, call, arch)
    if isinstance(plan, Refusal):
        raise plan.error(BACKENDS[arch])
    cache = KERNELS if folder is None else KernelCache(Path(folder) / "kernels")
    kernel = cache.get(plan, arch, lambda: compile_plan(named(arch), plan, arch))
    path = cache.path(plan, arch)
    if folder is not None and not path.exists():
        raise ArgumentError(
            name="folder",
            found_value=f"{str(folder)!r}, which cannot be written",
            expected="a folder that can be written, or None for the user's cache",
            rewrite='folder="kernels"',
        )
    return CompiledAttention(plan, kernel, path)


def is_other_gpu(arch: object) -> bool:
    """Return whether this is an architecture of GPUs that there are no kernels for."""
    return isinstance(arch, str) and arch not in BACKENDS and bool(_NAME.fullmatch(arch))


def plan_of(score_mod: Any, block_mask: Any, call: Call, arch: str) -> VariantPlan | Refusal:
    """Return the plan of the kernel for a call, or why there is none.  Raises as `compile`."""
    if arch not in BACKENDS:
        raise ArgumentError(
            name="arch",
            found_value=describe(arch),
            expected=", ".join(map(repr, BACKENDS)),
            rewrite=f'arch="{ARCH}"',
        )
    if isinstance(block_mask, BlockMask):
        call = call.with_mask(block_mask)
    inputs = call.inputs()
    score = None
    if score_mod is not None:
        check_mod("score_mod", score_mod, "score")
        score = resolve(score_mod, "score")
    request = Request(
        score,
        None if block_mask is None else _blocks(block_mask, inputs),
        checked_scale(call.scale, call.head_dims[0]),
        frozenset(),
        call.return_lse,
        choices_of(BACKENDS[arch], call.options),
    )
    found = planned(named(arch), request, inputs, call.return_lse, arch)
    assert found is not None  # no size is 0
    return found if isinstance(found, Refusal) else found.plan


def _blocks(block_mask: Any, inputs: Inputs) -> MaskBlocks:
    if isinstance(block_mask, BlockMask):
        if block_mask.device == inputs.q.device:
            block_mask.check_fits(inputs.q, inputs.k)
        return block_mask.blocks_on(block_mask.device)
    check_mod("block_mask", block_mask, "mask")
    sizes = inputs.sizes
    given = GivenSizes(sizes.batch, sizes.heads, sizes.q_len, sizes.kv_len, sizes.kv_heads)
    device = inputs.q.device
    return block_mask_for(block_mask, given, device).blocks_on(device)
