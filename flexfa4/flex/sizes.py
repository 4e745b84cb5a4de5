"""Lengths and block sizes of a block mask: their checks, and the block size to compute with.

Knows numbers only, neither lists nor masks.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch

from flexfa4.errors import ArgumentError, describe

BLOCK_SIZE: Final = 128
_LARGEST_NATIVE: Final = 256  # kernels take at least one block at a time: larger ones only cost


def native_block_size(size: tuple[int, int]) -> tuple[int, int]:
    """Return the block size to compute with: the given one where kernels take it, else 128."""
    q, kv = (n if n % 16 == 0 and n <= _LARGEST_NATIVE else BLOCK_SIZE for n in size)
    return (q, kv)


def block_size_pair(size: Any) -> tuple[int, int]:
    """Return queries and keys in a block.

    Raises:
        ArgumentError: it is neither a positive integer nor a pair of them.
    """
    return _pair_of(
        size if isinstance(size, (tuple, list)) else (size, size), "BLOCK_SIZE", 1, "128"
    )


def length_pair(lengths: Any) -> tuple[int, int]:
    """Return the numbers of queries and keys.

    Raises:
        ArgumentError: it is no pair of integers.
    """
    return _pair_of(lengths, "seq_lengths", 0, "(query.shape[2], key.shape[2])")


def _pair_of(given: Any, name: str, low: int, example: str) -> tuple[int, int]:
    if isinstance(given, (tuple, list)) and len(given) == 2:
        q, kv = map(_integer, given)
        if q is not None and kv is not None and q >= low and kv >= low:
            return (q, kv)
    raise ArgumentError(
        name=name,
        found_value=repr(given) if isinstance(given, (tuple, list)) else describe(given),
        expected=f"a pair of integers, at least {low}: queries and keys",
        rewrite=f"{name}={example}",
    )


def _integer(number: Any) -> Any:
    """Return an integer of any library as Python's, a symbolic one as it is, None for others."""
    if isinstance(number, bool):
        return None
    if isinstance(number, (int, torch.SymInt)):
        return number
    try:
        return operator.index(number)
    except TypeError:
        return None
