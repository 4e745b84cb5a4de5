"""Which calls are timed: the project's own table with what is aimed for, and the paper's grid.

A case is a variant at a shape.  `must` and `aim` are ratios of the best peer's time to ours in the
same run; a case that does not reach `must` says where work is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hopper.variants import VARIANTS, Shape

FLEX: Final = ("Flex FLASH", "Flex Triton")
EVERY_PEER: Final = ("flash-attn-4", *FLEX, "cuDNN")


@dataclass(frozen=True)
class Case:
    """A call that is timed.

    Attributes:
        name: in results and on the command line.
        group: "table" or "paper".
        variant: a key of `VARIANTS`.
        shape: of the call, bf16.
        must, aim: see the module; None where nothing is asked.
        peers: that are tried.
    """

    name: str
    group: str
    variant: str
    shape: Shape
    must: float | None = None
    aim: float | None = None
    peers: tuple[str, ...] = EVERY_PEER

    @property
    def visible(self) -> int:
        """Visible scores, of all batches, of one head."""
        return VARIANTS[self.variant].visible(self.shape)

    @property
    def tflop(self) -> float:
        """Floating point operations that the visible scores need, in units of 10^12."""
        return self.shape.flops(self.visible) / 1e12


_LONG: Final = Shape(4, 16, 16, 8192, 128, 128)
_DENSE_SHAPES: Final = {
    "": _LONG,
    "-2k": Shape(16, 16, 16, 2048, 128, 128),
    "-32k": Shape(1, 16, 16, 32768, 128, 128),
    "-gqa": Shape(2, 64, 8, 8192, 128, 128),
    "-d64": Shape(4, 32, 32, 8192, 64, 64),
}


def table() -> tuple[Case, ...]:
    """Return the project's table."""
    rows = [
        (f"{variant}{suffix}", variant, shape, 0.97, 1.05)
        for suffix, shape in _DENSE_SHAPES.items()
        for variant in ("full", "causal")
    ]
    rows += [
        ("causal-d192-128", "causal", Shape(4, 16, 16, 8192, 192, 128), 0.95, 1.05),
        ("causal-d256", "causal", Shape(4, 16, 16, 8192, 256, 256), 0.95, 1.05),
        ("window-1024", "window-1024", _LONG, 1.05, 1.15),
        ("window-128", "window-128", _LONG, 1.05, 1.15),
        ("window-4096", "window-4096", _LONG, 1.05, 1.15),
        ("prefix-2048", "prefix-2048", _LONG, 1.05, 1.15),
        ("alibi", "alibi", _LONG, 1.25, 1.40),
        ("key-bias", "key-bias", _LONG, 1.25, 1.40),
        ("softcap-30", "softcap-30", _LONG, 1.25, 1.45),
        ("documents", "documents", _LONG, 0.95, 1.05),
        ("t5-table", "t5-table", _LONG, 10.0, 15.0),
    ]
    return tuple(
        Case(name, "table", variant, shape, must, aim) for name, variant, shape, must, aim in rows
    )


PAPER_TOKENS: Final = 32768
PAPER_HIDDEN: Final = 2048
_HEAD_DIMS: Final = {"d64": (64, 64), "d128": (128, 128), "d192-128": (192, 128)}
_GROUPS: Final = {"mha": 1, "gqa": 8, "mqa": None}
"""Query heads of a key head; None is all."""
PAPER_PEERS: Final = ("flash-attn-4", "cuDNN")


def paper() -> tuple[Case, ...]:
    """Return the grid of the FlashAttention-4 paper's figures: 32k tokens in all, 2048 features.

    The number of query heads is the number of features over the head dim of the values.
    """
    found = []
    for head, (dim, value_dim) in _HEAD_DIMS.items():
        heads = PAPER_HIDDEN // value_dim
        for sharing, size in _GROUPS.items():
            kv_heads = heads // (heads if size is None else size)
            for variant in ("full", "causal"):
                for exponent in range(10, 16):
                    length = 1 << exponent
                    name = f"paper-{head}-{sharing}-{variant}-{length // 1024}k"
                    shape = Shape(PAPER_TOKENS // length, heads, kv_heads, length, dim, value_dim)
                    found.append(Case(name, "paper", variant, shape, peers=PAPER_PEERS))
    return tuple(found)


def cases() -> dict[str, Case]:
    """Return all cases by name, in the order in which they are run."""
    return {case.name: case for case in (*table(), *paper())}
