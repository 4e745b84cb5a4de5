"""Packed sequences: where each begins and ends, checked once, and tables of that for every query.

``cu_seqlens`` hold the cumulative lengths of sequences that lie one behind the other, ``[0, 2, 6]``
for two of 2 and 4 tokens.  They are read by the host once for each content: then their mask has to
be analysed, too.  A repeated call with the same tensors, unchanged, finds everything by their
identity and asks no device.

Not here: what mods become for packed sequences (`frontend.rewriting.packed`).
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import torch
from torch._C._functorch import is_batchedtensor
from torch.utils._python_dispatch import (
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

from flexfa4.errors import (
    ArgumentError,
    DeviceError,
    MappedAxisError,
    TransformError,
    UnsupportedDTypeError,
    describe,
)
from flexfa4.frontend.ir import Graph
from flexfa4.frontend.rewriting.packed import Kind, Table
from flexfa4.frontend.tracing.trace import TextMod
from flexfa4.lru import LruCache
from flexfa4.masks.snapshot import tensor_identity

_INTEGERS: Final = (torch.int32, torch.int64)
# Totals up to this have tables of 4 bytes for each query.
_MOST_INT32: Final = (1 << 31) - 1
_SHOWN: Final = 8


@dataclass(frozen=True, eq=False)
class Sequences:
    """Packed sequences, for queries and for keys.

    Attributes:
        q_ends: 0 and where the queries of each sequence end, ``S + 1`` numbers that never fall.
        kv_ends: likewise of the keys.
        device: where tables are.
        mods: what is kept of mods that capture nothing, by kind and graph.
    """

    q_ends: tuple[int, ...]
    kv_ends: tuple[int, ...]
    device: torch.device
    mods: dict[tuple[Kind, Graph | None], TextMod] = field(default_factory=dict, repr=False)
    _tables: dict[Table, torch.Tensor] = field(default_factory=dict, repr=False)

    @property
    def shared(self) -> bool:
        """Whether queries and keys begin and end at the same places."""
        return self.q_ends == self.kv_ends

    def table(self, name: Table) -> torch.Tensor:
        """Return a table, int32 ``(queries,)`` (int64 beyond its range); always the same tensor."""
        if name not in self._tables:
            # what is kept must outlive the modes of this call, and counts changes
            with torch.inference_mode(False), _without_modes():
                self._tables[name] = self._made(name)
        return self._tables[name]

    def _made(self, name: Table) -> torch.Tensor:
        most = max(self.q_ends[-1], self.kv_ends[-1])
        dtype = torch.int32 if most <= _MOST_INT32 else torch.int64
        q_ends, kv_ends = (
            torch.tensor(ends, dtype=dtype, device=self.device)
            for ends in (self.q_ends, self.kv_ends)
        )
        if name == "sequence":
            numbers = torch.arange(len(self.q_ends) - 1, dtype=dtype, device=self.device)
            counts = q_ends.diff()
            return numbers.repeat_interleave(counts, output_size=self.q_ends[-1])
        if name == "q_position":
            here = torch.arange(self.q_ends[-1], dtype=dtype, device=self.device)
            return here - self.table("q_begin")
        ends = kv_ends if name.startswith("kv") else q_ends
        each = {"begin": ends[:-1], "end": ends[1:], "length": ends.diff()}
        return each[name.split("_")[1]][self.table("sequence")]


def _without_modes() -> contextlib.AbstractContextManager[Any]:
    has_modes = torch._C._len_torch_dispatch_stack() > 0
    return _disable_current_modes() if has_modes else contextlib.nullcontext()


# ---- from the tensors of a call ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Known:
    """Sequences with the tensors that they were read from, whose ids stay taken therefore."""

    sequences: Sequences
    given: tuple[torch.Tensor, ...]
    copies: tuple[torch.Tensor, ...]

    @property
    def holds(self) -> bool:
        """Whether the tensors have their content; asks no device."""
        return all(
            copy.device.type != "cpu" or torch.equal(copy, tensor)  # numpy's changes go uncounted
            for copy, tensor in zip(self.copies, self.given, strict=True)
        )


# Enough for the layers of a model with a few packings at once, and few, for tables take memory.
_KNOWN: Final[LruCache[_Known]] = LruCache(16)
_BY_CONTENT: Final[LruCache[Sequences]] = LruCache(8)


def sequences_of(
    cu_seqlens_q: Any, cu_seqlens_k: Any, totals: tuple[int, int], device: torch.device
) -> Sequences:
    """Return the packed sequences of a call.

    Args:
        cu_seqlens_q: ``(S + 1,)``, int32 or int64.
        cu_seqlens_k: likewise, or None for those of the queries.
        totals: queries and keys of the call.
        device: the call's.

    Raises:
        ArgumentError: they are no cumulative lengths, or do not end at the totals.
        UnsupportedDTypeError: they are of another dtype.
        DeviceError: they are on another device than the call.
        TransformError, MappedAxisError: their content cannot be read here.
    """
    both = checked_ends(cu_seqlens_q, cu_seqlens_k, device)
    _check_readable(both)
    with _without_modes():  # which may compare the steps of this call with those of another
        return _found(both, totals)


def checked_ends(
    cu_seqlens_q: Any, cu_seqlens_k: Any, device: torch.device
) -> tuple[torch.Tensor, ...]:
    """Return the cumulative lengths of a call as tensors, one that serves both or two.

    Their content is not looked at.  Raises as `sequences_of`.
    """
    alike = cu_seqlens_k is None or cu_seqlens_k is cu_seqlens_q
    both = (cu_seqlens_q,) if alike else (cu_seqlens_q, cu_seqlens_k)
    for name, value in zip(("cu_seqlens_q", "cu_seqlens_k"), both, strict=False):
        _check_tensor(name, value, device)
    return both


def _found(given: tuple[torch.Tensor, ...], totals: tuple[int, int]) -> Sequences:
    """Return the sequences of one or two tensors of a call, which can be read."""
    identities = tuple([tensor_identity(tensor) for tensor in given])
    key = (identities, totals)
    known = None if None in identities else _KNOWN.get(key)
    if known is not None and known.holds:
        return known.sequences
    ends = [tuple(tensor.tolist()) for tensor in given]
    _check_contents(ends, totals)
    content = (ends[0], ends[-1], given[0].device)
    found = _BY_CONTENT.get(content)
    if found is None:
        found = Sequences(*content)
        _BY_CONTENT.put(content, found)
    if None not in identities:
        _KNOWN.put(key, _Known(found, given, tuple([tensor.clone() for tensor in given])))
    return found


# ---- checks --------------------------------------------------------------------------------------


def _check_tensor(name: str, value: Any, device: torch.device) -> None:
    if not isinstance(value, torch.Tensor) or value.dim() != 1 or not value.shape[0]:
        as_tensor = f"{name} = torch.tensor([0, *lengths], device=query.device).cumsum(0)"
        raise ArgumentError(
            name=name,
            found_value=describe(value),
            expected="a tensor (sequences + 1,): 0, then where each of the sequences ends",
            rewrite=f"{as_tensor}, with the length of each sequence",
        )
    if value.dtype not in _INTEGERS:
        raise UnsupportedDTypeError(
            name=name,
            dtype=str(value.dtype).removeprefix("torch."),
            dtypes="int32, int64",
            rewrite=f"{name} = {name}.int()",
        )
    if value.device != device:
        raise DeviceError(
            name=name,
            device=value.device,
            other="query",
            other_device=device,
            rewrite=f"{name} = {name}.to(query.device)",
        )


def _check_readable(tensors: tuple[torch.Tensor, ...]) -> None:
    """Refuse what has no content now, or whose content a graph would hold for constant."""
    for tensor in tensors:
        if is_batchedtensor(tensor):
            raise MappedAxisError(
                what="cu_seqlens", rewrite="pack the sequences of all elements into one call"
            )
        if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            _refuse_recording()
    if torch._C._len_torch_dispatch_stack() and any(
        mode.is_infra_mode() for mode in _get_current_dispatch_mode_stack()
    ):
        _refuse_recording()


def _refuse_recording() -> NoReturn:
    raise TransformError(
        transform="flexfa4.attention_varlen in a graph that is recorded, or on fake tensors,"
        " where cu_seqlens have no values",
        expected="flexfa4.attention there, with a mask that captures tensors",
        rewrite="attention(query, key, value, block_mask=lambda b, h, q_idx, kv_idx:"
        " ids[q_idx] == ids[kv_idx])",
    )


def _check_contents(ends: list[tuple[int, ...]], totals: tuple[int, int]) -> None:
    """Refuse numbers that do not begin at 0, fall, or do not end at the totals."""
    names = ("cu_seqlens_q", "cu_seqlens_k")
    for name, numbers in zip(names, ends, strict=False):
        if numbers[0] != 0 or any(b < a for a, b in itertools.pairwise(numbers)):
            raise ArgumentError(
                name=name,
                found_value=_shown(numbers),
                expected="0, then where each of the sequences ends, never falling",
                rewrite=f"{name} = torch.tensor([0, *lengths], device=query.device).cumsum(0)"
                ", with the length of each sequence",
            )
    if len(ends[0]) != len(ends[-1]):
        raise ArgumentError(
            name="cu_seqlens_k",
            found_value=f"of {len(ends[-1]) - 1} sequences beside {len(ends[0]) - 1} of queries",
            expected="as many sequences of keys as of queries; they may be empty",
            rewrite="repeat an end for each sequence without keys: [0, 5, 5, 9]",
        )
    for name, numbers, tensor, total in zip(
        names, (ends[0], ends[-1]), ("query", "key"), totals, strict=True
    ):
        if numbers[-1] != total:
            advice = f"{tensor}[:{numbers[-1]}], if what follows is padding"
            if len(ends) == 1 and tensor == "key":
                name, advice = "cu_seqlens_q, which serves keys, too,", "cu_seqlens_k=..."
            elif numbers[-1] > total:
                advice = f"{name} of the lengths in this {tensor}"
            raise ArgumentError(
                name=name,
                found_value=f"{_shown(numbers)}, beside {total} tokens in {tensor}",
                expected=f"the end of the last sequence at the end of {tensor}, {total}",
                rewrite=advice,
            )


def _shown(numbers: tuple[int, ...]) -> str:
    if len(numbers) <= _SHOWN:
        return f"[{', '.join(map(str, numbers))}]"
    return f"[{', '.join(map(str, numbers[: _SHOWN - 2]))}, ..., {numbers[-1]}]"
