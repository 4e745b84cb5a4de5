"""What a block mask is made for: sizes, block size and device, their checks, and the call as text.

Knows which sizes a mask's graph reads, and so which of them must be given.  Does not evaluate
masks (`block_mask` does).
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import Any, Final, get_args

import torch

from flexfa4.errors import (
    ArgumentError,
    DeviceError,
    MaskReadsBatchError,
    MaskReadsKeyHeadsError,
    NoValuesError,
    describe,
)
from flexfa4.frontend.analysis.bounds import premises, unproved_loads
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.evaluate import Values
from flexfa4.frontend.ir import Graph, topological
from flexfa4.frontend.masks.grid import MaskSize
from flexfa4.frontend.sizes import LONGEST, Sizes

BLOCK_SIZE: Final = (128, 128)

# What a mask may read -> the argument that must be given then; where users take arguments from.
_NEEDS: Final = {"b": "batch", "h": "heads", "num_heads": "heads"}
READS: Final = {
    argument: " or ".join(f"`{name}`" for name, needed in _NEEDS.items() if needed == argument)
    for argument in ("batch", "heads")
}
_MOST: Final = f"2**{LONGEST.bit_length() - 1}"
_SOURCES: Final = {
    "batch": "query.shape[0]",
    "heads": "query.shape[1]",
    "q_len": "query.shape[2]",
    "kv_len": "key.shape[2]",
    "kv_heads": "key.shape[1]",
}


@functools.lru_cache(maxsize=1024)
def reads(graph: Graph) -> frozenset[str]:
    """Return which of ``b``, ``h``, ``q``, ``kv`` and of the sizes of a call a graph reads."""
    symbols = (node.attr for node in topological(graph.root) if node.op == "symbol")
    return graph.root.depends.union(symbols)


@dataclass(frozen=True)
class GivenSizes:
    """Batch, query heads, lengths and key heads of a call; None where they are not known."""

    batch: int | None
    heads: int | None
    q_len: int
    kv_len: int
    kv_heads: int | None = None


@dataclass(frozen=True)
class Spec:
    """What a block mask is made for."""

    sizes: GivenSizes
    block_size: tuple[int, int]

    @classmethod
    def checked(cls, sizes: GivenSizes, block_size: Any) -> Spec:
        """Return the spec of sizes from users: integers of any library, one block size or two.

        Raises:
            ArgumentError: one of them is no integer in its range.
        """
        known = GivenSizes(
            _checked_count("batch", sizes.batch, 0),
            _checked_count("heads", sizes.heads, 1),
            _checked_int("q_len", sizes.q_len, 0),
            _checked_int("kv_len", sizes.kv_len, 0),
            _checked_count("kv_heads", sizes.kv_heads, 1),
        )
        return cls(known, checked_block_size(block_size))

    def space(self, graph: Graph) -> MaskSize:
        """Return the index space of a mask.

        One batch or head stands for all where the mask does not tell them apart.
        """
        read, sizes = reads(graph), self.sizes
        return MaskSize(
            _known(sizes.batch) if "b" in read else 1,
            _known(sizes.heads) if "h" in read else 1,
            sizes.q_len,
            sizes.kv_len,
        )

    @property
    def known_sizes(self) -> Sizes:
        """The sizes, with 1 for a count that was not given and so is not read."""
        sizes = self.sizes
        heads, kv_heads = _known(sizes.heads), _known(sizes.kv_heads)
        return Sizes(_known(sizes.batch), heads, kv_heads, sizes.q_len, sizes.kv_len)

    def values(self, kept: BoundGraph, device: torch.device) -> Values:
        """Return what a mask is evaluated with; `kept` holds tensors that nobody changes.

        Floats are fp32, as in kernels, and fp64 where the mask captures such a tensor: times in
        seconds, compared in fp32, would be equal for minutes.
        """
        known = self.known_sizes
        unproved = unproved_loads(premises(kept, known))
        wide = any(t.dtype is torch.float64 for t in kept.tensors)
        dtype = torch.float64 if wide else torch.float32
        return Values.of(kept, known, device=device, dtype=dtype, unproved=unproved)

    def check_known(self, graph: Graph) -> None:
        """Refuse a mask that needs a batch or head count which was not given.

        Raises:
            MaskReadsBatchError: `batch` or `heads` is missing.
            MaskReadsKeyHeadsError: the number of key heads is, which only a call knows.
        """
        read, sizes = reads(graph), self.sizes
        missing = {name: argument for name, argument in _NEEDS.items()
                   if name in read and getattr(sizes, argument) is None}  # fmt: skip
        for name, argument in missing.items():
            given = {needed: _SOURCES[needed] for needed in missing.values()}
            raise MaskReadsBatchError(
                name=name,
                argument=argument,
                what="batch" if argument == "batch" else "head",
                rewrite=self.call_text(**given),
            )
        if sizes.kv_heads is None and "num_kv_heads" in read:
            raise MaskReadsKeyHeadsError

    def call_text(self, **changed: Any) -> str:
        """Return the call that makes a block mask, for messages that tell users to write it."""
        sizes = self.sizes
        given = {
            "batch": sizes.batch,
            "heads": sizes.heads,
            "q_len": sizes.q_len,
            "kv_len": sizes.kv_len,
            "block_size": None if self.block_size == BLOCK_SIZE else self.block_size,
            **changed,
        }
        arguments = [f"{name}={value}" for name, value in given.items() if value is not None]
        return f"create_block_mask({', '.join(['mask', *arguments])})"


def _known(number: int | None) -> int:
    """Return a count, 1 where it is not known (and, as has been checked, not read)."""
    return 1 if number is None else number


def capture_device(bound: BoundGraph, device: torch.device | None) -> torch.device:
    """Return the one device of the captures and of `device`, the CPU where there are none.

    Raises:
        DeviceError: there are several.
        NoValuesError: it is the meta device.
    """
    wanted = device
    for buffer, tensor in zip(bound.graph.buffers, bound.tensors, strict=True):
        if wanted is None:
            wanted = tensor.device
        elif tensor.device != wanted:
            raise DeviceError(
                name=f"captured tensor `{buffer.name}`",
                device=tensor.device,
                other="the mask",
                other_device=wanted,
                rewrite=f"{buffer.name} = {buffer.name}.to({str(wanted)!r})",
            )
    if wanted is None:
        return torch.device("cpu")
    if wanted.type == "meta":
        raise NoValuesError(
            what="the mask is",
            rewrite='make it under torch.device("cpu"), captured tensors included',
        )
    return wanted


def checked_device(device: Any) -> torch.device:
    """Return the device with its index, as tensors on it have it.

    Raises:
        ArgumentError: torch cannot use it here.
    """
    try:
        return torch.empty(0, device=device).device
    except (AssertionError, NotImplementedError, RuntimeError, TypeError) as error:
        raise ArgumentError(
            name="device",
            found_value=f"{device!r}, which torch cannot use here",
            expected="a device of this machine, or None for where the captured tensors live",
            rewrite="device=None",
        ) from error


def checked_choice(name: str, value: Any, choices: Any) -> None:
    """Check that an argument is one of the words of a ``Literal``.

    Raises:
        ArgumentError: it is not.
    """
    words = get_args(choices)
    if not isinstance(value, str) or value not in words:
        raise ArgumentError(
            name=name,
            found_value=describe(value),
            expected=" or ".join(map(repr, words)),
            rewrite=f"{name}={words[0]!r}",
        )


def _checked_count(name: str, value: Any, low: int) -> int | None:
    return None if value is None else _checked_int(name, value, low)


def _checked_int(name: str, value: Any, low: int) -> int:
    if isinstance(value, torch.SymInt):  # asking for its value would fix it
        return value  # type: ignore[return-value]
    number = _index(value)
    if not low <= number <= LONGEST:
        most = f" and at most {_MOST}" if number > LONGEST else ""
        raise ArgumentError(
            name=name,
            found_value=describe(value),
            expected=f"an integer, at least {low}{most}",
            rewrite=f"{name}={_SOURCES[name]}",
        )
    return number


def checked_block_size(value: Any) -> tuple[int, int]:
    """Return the queries and keys of a block, from one number or two.

    Raises:
        ArgumentError: one of them is no multiple of 16, or longer than any sequence.
    """
    q, kv = value if isinstance(value, tuple) and len(value) == 2 else (value, value)
    pair = (_index(q), _index(kv))
    for size in pair:
        if size < 16 or size % 16 or size > LONGEST:
            most = f" and at most {_MOST}" if size > LONGEST else ""
            raise ArgumentError(
                name="block_size",
                found_value=describe(value),
                expected=f"a multiple of 16{most}, or a pair of them (queries, keys)",
                rewrite="block_size=128",
            )
    return pair


def _index(value: Any) -> int:
    """Return an integer of any library as Python's, -1 for what is none."""
    number = integer(value)
    return -1 if number is None else number


def integer(value: Any) -> int | None:
    """Return an integer of any library as Python's, None for what is none, bools among it."""
    if isinstance(value, bool) or getattr(value, "dtype", None) is torch.bool:
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
