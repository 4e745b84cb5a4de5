"""What kernels for GPUs are held against the dense reference on: variants, head dimensions, sizes.

The default runs take `SAMPLE`, in which every pair of choices of head dimensions, sizes, dtype and
sink occurs, and every variant of `VARIANTS`; ``-m full`` takes the whole case table for all head
dimensions.  The emulator and a GPU run the same.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

import flexfa4
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.sm90.forward.tilings import FORWARD
from flexfa4.testing import CASES, Attend, Inputs, Mods, Sizes, Trial

HEAD_DIMS: Final = tuple(FORWARD)
SIZES: Final = {
    "packed": Sizes(batch=2, heads=4, kv_heads=2, q_len=150, kv_len=170),
    "shared keys": Sizes(batch=3, heads=2, kv_heads=2, q_len=67, kv_len=260, kv_batch=1),
    "a group of 3": Sizes(batch=1, heads=6, kv_heads=2, q_len=129, kv_len=90),
    "one key head": Sizes(batch=1, heads=8, kv_heads=1, q_len=33, kv_len=300),
}
DTYPES: Final = (torch.bfloat16, torch.float16)

# One of each way in which scores are computed, blocks are found and queries are ordered; more of
# what attention usually is.
VARIANTS: Final = (
    "causal", "alibi", "dense", "sliding_window", "softcap", "document", "bottom_right_causal",
    "learned_slopes", "prefix_lm", "shared_bias", "window_by_head", "big_bird", "t5_bias_causal",
    "rows_without_keys", "head_gate", "score_free", "masked_by_score", "pair_bias", "key_padding",
    "packed_causal", "learned_temperature", "dilated_window", "fire", "text",
)  # fmt: skip
_BY_NAME: Final = {case.name: case for case in CASES}


@dataclass(frozen=True)
class Row:
    """A trial by the names of its choices."""

    variant: str
    head_dims: tuple[int, int]
    size: str
    dtype: torch.dtype
    sink: bool

    def trial(self) -> Trial:
        """Return the trial."""
        d, dv = self.head_dims
        sizes = replace(SIZES[self.size], dim=d, value_dim=dv)
        return Trial(_BY_NAME[self.variant], sizes, self.dtype, self.sink)

    def __str__(self) -> str:
        dims = "x".join(map(str, self.head_dims))
        names = [self.variant, dims, self.size, str(self.dtype)[6:], *["sink"] * self.sink]
        return "-".join(names).replace(" ", "_")


# Head dimensions meet all sizes; dtype and sink run through their four pairs on both axes.
_CHOICES: Final = tuple(itertools.product(DTYPES, (False, True)))


def sample_of(head_dims: Sequence[tuple[int, int]]) -> list[Row]:
    """Return trials of all `VARIANTS`, in which every pair of choices occurs.

    Args:
        head_dims: as many as there are variants for each of `SIZES`.
    """
    assert len(head_dims) * len(SIZES) == len(VARIANTS)
    return [
        Row(VARIANTS[i * len(SIZES) + j], dims, size, *_CHOICES[(i + j) % len(_CHOICES)])
        for (i, dims), (j, size) in itertools.product(enumerate(head_dims), enumerate(SIZES))
    ]


def all_of(head_dims: Sequence[tuple[int, int]]) -> list[Row]:
    """Return trials of the whole case table for all head dims; sizes alternate."""
    return [
        Row(case.name, dims, size, *_CHOICES[i % len(_CHOICES)])
        for i, (case, dims) in enumerate(itertools.product(CASES, head_dims))
        for size in itertools.islice(itertools.cycle(SIZES), i % len(SIZES), i % len(SIZES) + 1)
    ]


def pairs_missing(rows: Sequence[Row]) -> set[str]:
    """Return which pairs of choices do not occur together in any of some trials."""
    missing = set()
    for pair in itertools.combinations(("head_dims", "size", "dtype", "sink"), 2):
        values = [{getattr(row, name) for row in rows} for name in pair]
        met = {tuple(getattr(row, name) for name in pair) for row in rows}
        missing |= {f"{pair}: {one}" for one in set(itertools.product(*values)) - met}
    return missing


SAMPLE: Final = sample_of(HEAD_DIMS)
ALL: Final = all_of(HEAD_DIMS)


def attend_with(backend: str, device: str = "cpu", **chosen: Any) -> Attend:
    """Return `flexfa4.attention` with a backend, on copies on a device of what tests have made.

    Args:
        backend: which.
        device: which.
        chosen: further arguments of `flexfa4.attention`.
    """

    def attend(inputs: Inputs, mods: Mods) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = (t.to(device) for t in (inputs.q, inputs.k, inputs.v))
        sink = None if inputs.sink is None else inputs.sink.to(device)
        with poisoned_memory() if device == "cpu" else contextlib.nullcontext():
            out, lse = flexfa4.attention(
                q,
                k,
                v,
                score_mod=moved(mods.score_mod, "score", device),
                block_mask=moved(mods.mask, "mask", device),
                sink=sink,
                return_lse=True,
                backend=backend,
                **chosen,
            )
        return out.cpu(), lse.cpu()

    return attend


def moved(mod: Any, kind: Any, device: str) -> Any:
    """Return a mod whose captured tensors are on a device; their gradients come back."""
    if mod is None or device == "cpu":
        return mod
    bound = resolve(mod, kind)
    values = {s.name: v for s, v in zip(bound.graph.scalars, bound.scalars, strict=True)}
    tensors = zip(bound.graph.buffers, bound.tensors, strict=True)
    return flexfa4.parse(str(bound.graph), **values, **{b.name: t.to(device) for b, t in tensors})


@contextlib.contextmanager
def poisoned_memory() -> Iterator[None]:
    """Let new memory on the CPU hold NaN for a while, so that what is not written shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
