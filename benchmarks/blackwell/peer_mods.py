"""The variants as flash-attn-4 is given them: its own options, or mods written for it in CuTe.

A mod there is called with vectors of `width` neighbouring keys.  Each is written so that little is
left to do for a score: what does not vary along keys is computed once for a vector, reads along
keys are as wide as they can be.  Of several widths the one with the shortest loop counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import cutlass
import torch
from cutlass import Float32, Int32, Uint32, cute

Mod = Callable[..., Any]


@dataclass(frozen=True)
class Peer:
    """What computes the same as a variant.

    Attributes:
        options: of flash-attn-4's forward function.
        score: makes a score mod for vectors of a length.
        mask: makes a mask mod likewise.
        captured: shapes and dtypes of the tensors that its mods read.
    """

    options: dict[str, Any]
    score: Callable[[int], Mod] | None = None
    mask: Callable[[int], Mod] | None = None
    captured: tuple[tuple[tuple[int, ...], torch.dtype], ...] = ()


def alibi(width: int) -> Mod:
    """Return ALiBi: the slope of the head times the distance, added."""

    def mod(
        score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, seqlen_info: Any, aux_tensors: Any
    ) -> Any:
        slope = aux_tensors[0][h[0]]
        found = cute.make_rmem_tensor(width, Float32)
        found.store(score)
        first = slope * (kv_idx[0] - q_idx[0]).to(Float32)
        for i in range(width):
            found[i] = found[i] + (first + slope * float(i))
        return found.load()

    return mod


def key_bias(width: int) -> Mod:
    """Return a bias for each head and key, added."""

    def mod(
        score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, seqlen_info: Any, aux_tensors: Any
    ) -> Any:
        return score + _along_keys(aux_tensors[0], (h[0], kv_idx[0]), width, Float32)

    return mod


def t5_table(width: int) -> Mod:
    """Return T5's bias: a table's value for the bucket of the distance, added."""

    def mod(
        score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, seqlen_info: Any, aux_tensors: Any
    ) -> Any:
        table, bucket = aux_tensors
        found = cute.make_rmem_tensor(width, Float32)
        found.store(score)
        for i in range(width):
            distance = cutlass.max(q_idx[0] - (kv_idx[0] + i), 0)
            found[i] = found[i] + table[bucket[distance], h[0]]
        return found.load()

    return mod


def documents(width: int) -> Mod:
    """Return whether a key is not behind the query and of the same document: bits of 32 keys."""

    def mod(b: Any, h: Any, q_idx: Any, kv_idx: Any, seqlen_info: Any, aux_tensors: Any) -> Any:
        ids = aux_tensors[0]
        own = ids[b[0], q_idx[0]]
        words = cute.make_rmem_tensor(max(1, width // 32), Uint32)
        keys = cute.make_rmem_tensor(width, Int32)
        keys.store(_along_keys(ids, (b[0], kv_idx[0]), width, Int32))
        for word in range(max(1, width // 32)):
            bits = Uint32(0)
            for i in range(min(32, width)):
                at = 32 * word + i
                visible = (keys[at] == own) & (q_idx[0] >= kv_idx[0] + at)
                bits = bits | (Uint32(visible) << i)
            words[word] = bits
        return words.load()

    return mod


def prefix(length: int) -> Callable[[int], Mod]:
    """Return whether a key is in the prefix or not behind the query: bits of 32 keys."""

    def make(width: int) -> Mod:
        def mod(b: Any, h: Any, q_idx: Any, kv_idx: Any, seqlen_info: Any, aux_tensors: Any) -> Any:
            words = cute.make_rmem_tensor(max(1, width // 32), Uint32)
            for word in range(max(1, width // 32)):
                seen = cutlass.max(Int32(length), q_idx[0] + 1) - (kv_idx[0] + 32 * word)
                count = cutlass.max(0, cutlass.min(seen, 32))
                words[word] = Uint32((cutlass.Uint64(1) << count.to(cutlass.Uint64)) - 1)
            return words.load()

        return mod

    return make


def _along_keys(tensor: Any, at: Any, width: int, dtype: Any) -> Any:
    """Return a vector of a tensor's last axis: loaded with reads of up to 16 bytes."""
    found = cute.make_rmem_tensor(width, dtype)
    wide = min(width, 4)
    for i in range(width // wide):
        start = (tensor.iterator + tensor.layout((at[0], at[1] + wide * i))).align(4 * wide)
        source = cute.make_tensor(start, wide)
        cute.autovec_copy(source, cute.make_tensor(found.iterator + wide * i, wide))
    return found.load()


CAUSAL: Final = {"causal": True}


def peers(heads: int, length: int, batch: int, buckets: int) -> dict[str, Peer]:
    """Return what is compiled for each variant, by name."""
    fp32, int32 = torch.float32, torch.int32
    return {
        "full": Peer({}),
        "causal": Peer(CAUSAL),
        "window-1024": Peer({"window_size_left": 1024, "window_size_right": 0}),
        "alibi": Peer(CAUSAL, score=alibi, captured=(((heads,), fp32),)),
        "key-bias": Peer({}, score=key_bias, captured=(((heads, length), fp32),)),
        "softcap-30": Peer({"causal": True, "softcap": 30.0}),
        "documents": Peer({}, mask=documents, captured=(((batch, length), int32),)),
        "prefix-2048": Peer({}, mask=prefix(2048)),
        "t5-table": Peer(
            CAUSAL,
            score=t5_table,
            captured=(((buckets, heads), fp32), ((length,), int32)),
        ),
    }
