"""`create_block_mask` and `create_mask` with torch's parameters.

The mask function is traced and its blocks are found by `flexfa4.create_block_mask`; this module
gives the result torch's form: blocks of any size, whose lists are written when they are read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4 import block_mask as native_masks
from flexfa4.checks import check_mod
from flexfa4.errors import ArgumentError, MaskReadsBatchError
from flexfa4.flex.block_mask import BlockMask, found_by
from flexfa4.flex.found_blocks import Layout, is_deferred, kinds_in_graph
from flexfa4.flex.masks import MaskFunction, callable_mask
from flexfa4.flex.sizes import BLOCK_SIZE as DEFAULT_BLOCK_SIZE
from flexfa4.flex.sizes import block_size_pair, native_block_size
from flexfa4.frontend.masks.grid import EMPTY
from flexfa4.frontend.tracing.contract import kind_of
from flexfa4.frontend.tracing.trace import Mod, resolve
from flexfa4.masks.spec import GivenSizes, Spec, reads


def create_block_mask(
    mask_mod: MaskFunction | str,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: Any = None,
    BLOCK_SIZE: int | tuple[int, int] = DEFAULT_BLOCK_SIZE,
    _compile: bool = False,
    separate_full_blocks: bool = True,
    compute_dq_write_order: bool = False,
    dq_kv_order: bool = True,
) -> BlockMask:
    """Find the partial and full blocks of a mask.

    Args:
        mask_mod: ``mask_mod(b, h, q_idx, kv_idx) -> bool`` (True = attend), its text or a `Mod`.
        B: number of batches; None if the mask does not read ``b``.
        H: number of query heads; None if the mask does not read ``h``.
        Q_LEN: number of queries.
        KV_LEN: number of keys.
        device: of the lists; None: where captured tensors live, else torch's current accelerator or
            the CPU.
        BLOCK_SIZE: queries and keys in a block, or one number for both: any positive numbers.
        _compile: without effect, for the mask is always compiled.
        separate_full_blocks: list full blocks apart from partial ones.
        compute_dq_write_order: without effect, for gradients are deterministic always.
        dq_kv_order: without effect, likewise.

    Returns:
        The block mask, with lists as torch makes them.

    Raises:
        ArgumentError: an argument is wrong by itself.
        MaskReadsBatchError: the mask reads ``b`` or ``h`` and `B` or `H` is None.
        DeviceError, OutOfRangeError, TraceError, TextError: see `flexfa4.create_block_mask`.
    """
    size = block_size_pair(BLOCK_SIZE)
    wanted = MaskSizes(B, H, Q_LEN, KV_LEN)
    native = _native(mask_mod, wanted, device, native_block_size(size))
    layout = Layout(
        (native.q_len, native.kv_len),
        size,
        _lists_device(native, device),
        separate_full=separate_full_blocks,
    )
    return found_by(native, layout, callable_mask(mask_mod))


def create_mask(
    mod_fn: MaskFunction | str,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: Any = None,
) -> torch.Tensor:
    """Return a mask as a tensor: ``Q_LEN * KV_LEN`` elements for each batch and head.

    Args:
        mod_fn: a mask function; or a score mod, whose mask is where it leaves a score of 0 above
            minus infinity.  Texts and `Mod` too.
        B: as in `create_block_mask`, like the others.
        H: number of query heads, or None.
        Q_LEN: number of queries.
        KV_LEN: number of keys.
        device: where the result lies.

    Returns:
        Bool ``(B, H, Q_LEN, KV_LEN)``, True = attend; 1 for a B or H of None.

    Raises:
        ArityError: `mod_fn` takes the parameters of neither kind of mod.
        MaskReadsBatchError, DeviceError, OutOfRangeError, TraceError, TextError: as above.
    """
    mod = callable_mask(mod_fn)
    kind = mod.kind if isinstance(mod, Mod) else kind_of(mod)
    mask = _Kept(mod) if kind == "score" else mod
    native = _native(
        mask, MaskSizes(B, H, Q_LEN, KV_LEN), device, (DEFAULT_BLOCK_SIZE, DEFAULT_BLOCK_SIZE)
    )
    one = (1, 1)  # blocks of one score each
    tokens = kinds_in_graph(native, one) != EMPTY if is_deferred(native) else native.to_dense()
    return tokens.to(_lists_device(native, device))


# Of a size in FlexFA4, the name here.
_NAMES: Final = {"batch": "B", "heads": "H", "q_len": "Q_LEN", "kv_len": "KV_LEN"}


@dataclass(frozen=True)
class MaskSizes:
    """The sizes in torch's names; None where the mask is the same for all."""

    B: int | None
    H: int | None
    Q_LEN: int
    KV_LEN: int


@dataclass(frozen=True, eq=False)
class _Kept:
    """The mask of a score mod: where it leaves a score of 0 above minus infinity."""

    score_mod: MaskFunction

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        zero = q_idx * 0.0  # a float of the kind of the index
        return self.score_mod(zero, b, h, q_idx, kv_idx) != -math.inf


def _native(
    mask: Any, sizes: MaskSizes, device: Any, block_size: tuple[int, int]
) -> native_masks.BlockMask:
    """Return the block mask of FlexFA4, with errors in the names of this module."""
    for name in ("Q_LEN", "KV_LEN"):
        if getattr(sizes, name) is None:
            source = "query" if name == "Q_LEN" else "key"
            raise ArgumentError(
                name=name,
                found_value="None",
                expected="an integer",
                rewrite=f"{name}={source}.shape[2]",
            )
    if not torch.compiler.is_dynamo_compiling():
        _check_counts(sizes)
        _check_reads(mask, sizes)
    return native_masks.create_block_mask(
        mask,
        batch=sizes.B,
        heads=sizes.H,
        q_len=sizes.Q_LEN,
        kv_len=sizes.KV_LEN,
        device=device,
        block_size=block_size,
    )


def _check_counts(sizes: MaskSizes) -> None:
    """Refuse what are no sizes, in the names of this module."""
    try:
        Spec.checked(GivenSizes(sizes.B, sizes.H, sizes.Q_LEN, sizes.KV_LEN), DEFAULT_BLOCK_SIZE)
    except ArgumentError as error:
        name = error.fields["name"]
        value = error.fields["rewrite"].removeprefix(name)
        fields = {**error.fields, "name": _NAMES[name], "rewrite": f"{_NAMES[name]}{value}"}
        raise ArgumentError(**fields) from None


def _check_reads(mask: Any, sizes: MaskSizes) -> None:
    """Refuse a mask that reads what was not given, in the names of this module."""
    check_mod("mask_mod", mask, "mask")
    read = reads(resolve(mask, "mask").graph)
    rows = (("b", "B", sizes.B, "batch", 0), ("h", "H", sizes.H, "head", 1))
    for letter, argument, given, what, axis in rows:
        if letter in read and given is None:
            raise MaskReadsBatchError(
                name=letter,
                argument=argument,
                what=what,
                rewrite=f"create_block_mask(mask_mod, {argument}=query.shape[{axis}], ...)",
            )


def _lists_device(native: native_masks.BlockMask, device: Any) -> torch.device:
    if device is not None or native.captures_tensors:
        return native.device
    return torch.accelerator.current_accelerator() or torch.device("cpu")
