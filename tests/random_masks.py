"""Random masks as Python source, with the captures that they read, for `test_masks_exact`.

A drawn mask is the source of a function: the same function runs eagerly on index tensors, for brute
force, and is traced by FlexFA4.  Idioms that users write are leaves of the grammar beside
comparisons of random integers and floats, so that full and empty blocks occur as well as partial
ones.  Every load is in range, and no divisor is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from hypothesis import strategies as st

from tests.grammars import Text, grammar


@dataclass(frozen=True)
class Space:
    """The index space of a mask."""

    batch: int
    heads: int
    q_len: int
    kv_len: int

    @property
    def length(self) -> int:
        """The longer of both lengths."""
        return max(self.q_len, self.kv_len)

    def dense(self, mask: Callable[..., Any]) -> torch.Tensor:
        """Return a mask by brute force: a function of index tensors, as bool ``(b, h, q, kv)``."""
        index = (
            torch.arange(self.batch)[:, None, None, None],
            torch.arange(self.heads)[:, None, None],
            torch.arange(self.q_len)[:, None],
            torch.arange(self.kv_len),
        )
        seen = torch.as_tensor(mask(*index))
        return seen.expand(self.batch, self.heads, self.q_len, self.kv_len)


# ---- captures ------------------------------------------------------------------------------------

Make = Callable[[Space, torch.Generator], torch.Tensor]


def _documents(s: Space, g: torch.Generator) -> torch.Tensor:
    """Return ids that ascend: documents of about 60 positions."""
    starts = torch.rand(s.length, generator=g) < 1 / 60
    return starts.cumsum(0)


def _permuted(s: Space, g: torch.Generator) -> torch.Tensor:
    """Return the same kind of documents, in arbitrary order."""
    ids = _documents(s, g)
    names = torch.randperm(s.length + 1, generator=g)
    return names[ids]


def _turns(s: Space, g: torch.Generator) -> torch.Tensor:
    """Return ids of speakers, each of whom speaks several times, for about 20 positions."""
    starts = torch.rand(s.length, generator=g) < 1 / 20
    return torch.randint(0, 6, (s.length + 1,), generator=g)[starts.cumsum(0)]


def _levels(s: Space, g: torch.Generator) -> torch.Tensor:
    """Return floats that drift, with NaN and infinities among them."""
    level = torch.linspace(-3, 3, s.length) + torch.randn(s.length, generator=g) / 8
    odd = torch.randint(0, 40, (s.length,), generator=g)
    level[odd == 0] = math.nan
    level[odd == 1] = math.inf
    level[odd == 2] = -math.inf
    return level


def _coarse_table(s: Space, g: torch.Generator) -> torch.Tensor:
    """Return a table of queries and keys of whole patches of True and False, and some noise."""
    patches = torch.rand(s.q_len // 32 + 1, s.kv_len // 32 + 1, generator=g) < 0.5
    table = patches.repeat_interleave(32, 0).repeat_interleave(32, 1)[: s.q_len, : s.kv_len]
    return table ^ (torch.rand(s.q_len, s.kv_len, generator=g) < 1e-4)


CAPTURES: Final[dict[str, Make]] = {
    "doc": _documents,
    "ids": _permuted,
    "turns": _turns,
    "marks": lambda s, g: torch.stack([_turns(s, g), _turns(s, g)], 1),
    "rank": lambda s, g: torch.randperm(s.length, generator=g),
    "text": lambda s, g: torch.stack([_documents(s, g) for _ in range(s.batch)]),
    "grid": lambda s, g: torch.randint(0, 4, (5, 7), generator=g),
    "lens": lambda s, g: torch.randint(0, s.kv_len + 2, (s.batch,), generator=g),
    "offset": lambda s, g: torch.randint(-9, s.kv_len + 9, (s.batch,), generator=g),
    "width": lambda s, g: torch.randint(0, 99, (s.heads,), generator=g).to(torch.int32),
    "kept": lambda s, g: torch.randint(0, 9, (s.length,), generator=g) > 0,
    "opened": lambda s, g: torch.arange(s.length) < torch.randint(0, 99, (1,), generator=g),
    "code": lambda s, g: torch.randint(0, 4, (s.length, 2), generator=g).to(torch.uint8),
    "bits": lambda s, g: torch.randint(-(2**62), 2**62, (s.length,), generator=g),
    "level": _levels,
    "table": _coarse_table,
    "pair": lambda s, g: torch.stack(
        [torch.stack([_coarse_table(s, g) for _ in range(s.heads)]) for _ in range(s.batch)]
    ),
}  # fmt: skip
NUMBERS: Final = {"count": 3, "wide": 70, "none": 0, "below": -5, "far": 2**62, "factor": 0.7}


# ---- sources -------------------------------------------------------------------------------------

IDIOMS: Final = (
    "(q_idx >= kv_idx)",
    "(kv_idx - q_idx <= offset[b])",
    "((q_idx - kv_idx).abs() <= width[h])",
    "(q_idx - kv_idx < wide)",
    "(kv_idx < lens[b])",
    "(kv_idx < wide)",
    "(q_idx // 24 >= kv_idx // 24)",
    "(q_idx // wide == kv_idx // wide)",
    "(q_idx // below >= kv_idx // below)",
    "(q_idx // (width[h] + 1) == kv_idx // (width[h] + 1))",
    "(kv_idx * count <= q_idx + width[h])",
    "(kv_idx * below >= q_idx * below)",
    "(kv_idx * none <= q_idx - wide)",
    "((q_idx - kv_idx) % count == 0)",
    "((q_idx - kv_idx) // wide % 2 == 0)",
    "((kv_idx - q_idx) % 50 < 7)",
    "((q_idx - kv_idx + 5) & 112 == 112)",
    "(doc[q_idx] == doc[kv_idx])",
    "(ids[q_idx] == ids[kv_idx])",
    "(ids[kv_idx] < ids[q_idx])",
    "(turns[q_idx] == turns[kv_idx])",
    "(turns[q_idx] != doc[kv_idx])",
    "(marks[q_idx, 0] == marks[kv_idx, 1])",
    "(text[b, q_idx] == text[b, kv_idx])",
    "(text[b, q_idx] == text[0, kv_idx])",
    "(grid[q_idx % 5, kv_idx % 7] == grid[kv_idx % 5, q_idx % 7])",
    "(rank[kv_idx] <= rank[q_idx])",
    "(rank[q_idx] - rank[kv_idx] < wide)",
    "opened[kv_idx]",
    "(kept[kv_idx] & kept[q_idx])",
    "table[q_idx, kv_idx]",
    "pair[b, h, q_idx, kv_idx]",
    "(level[q_idx] < level[kv_idx])",
    "(level[q_idx] != level[kv_idx])",
    "(level[kv_idx] * factor >= -1.0)",
    "(code[q_idx] == code[kv_idx]).all(-1)",
    "(code[q_idx, 1] != code[kv_idx, 0])",
    "((q_idx ^ kv_idx) < 64)",
    "(q_idx >> 4 == kv_idx >> 4)",
    "((bits[q_idx] >> (kv_idx // 32)) & 1 == 1)",
    "(b + h == count)",
)
INTEGERS: Final = (
    "q_idx", "kv_idx", "(q_idx - kv_idx)", "(q_idx + kv_idx)", "(kv_idx + none)", "b", "h",
    "doc[q_idx]", "doc[kv_idx]", "ids[kv_idx]", "rank[q_idx]", "offset[b]", "bits[kv_idx]",
    "(kept[kv_idx] * wide)", "(q_idx >= wide).long()", "(q_idx + far)", "(q_idx * far)",
    "rank[kv_idx - 1]",  # negative indices wrap
)  # fmt: skip
DIVISORS: Final = ("1", "2", "count", "16", "wide", "below", "(h + 1)", "-3")
BOUNDS: Final = ("0", "1", "count", "wide", "below", "64", "lens[b]", "far")


@grammar
def integers(depth: int) -> Text:
    leaf = st.sampled_from(INTEGERS)
    if not depth:
        return leaf
    below = integers(depth - 1)
    return st.one_of(
        leaf,
        st.builds("({} {} {})".format, below, st.sampled_from("+-*&|^"), below),
        st.builds("({} {} {})".format, below, st.sampled_from(("//", "%")),
                  st.sampled_from(DIVISORS)),
        st.builds("({} {} {})".format, below, st.sampled_from(("<<", ">>")),
                  st.sampled_from(("1", "5"))),
        st.builds("({}).abs()".format, below),
        st.builds("(-{})".format, below),
        st.builds("torch.{}({}, {})".format, st.sampled_from(("maximum", "minimum")), below, below),
        st.builds("({}).clamp({}, {})".format, below, st.sampled_from(("0", "below")),
                  st.sampled_from(("9", "wide"))),
        st.builds("torch.where({}, {}, {})".format, st.sampled_from(IDIOMS), below, below),
    )  # fmt: skip


@grammar
def masks(depth: int) -> Text:
    compared = st.sampled_from(("<", "<=", ">", ">=", "==", "!="))
    leaf = st.one_of(
        *[st.sampled_from(IDIOMS)] * 3,
        st.builds("({} {} {})".format, integers(1), compared, st.sampled_from(BOUNDS)),
        st.builds("({} {} {})".format, integers(0), compared, integers(1)),
    )
    if not depth:
        return leaf
    below = masks(depth - 1)
    return st.one_of(
        leaf,
        *[st.builds("({} {} {})".format, below, st.sampled_from("&&|^"), below)] * 3,
        st.builds("(~{})".format, below),
        st.builds("torch.where({}, {}, {})".format, leaf, below, below),
        st.builds("({} == {})".format, below, below),
    )


@dataclass(frozen=True)
class RandomMask:
    """A mask by its source, and the seed of its captures."""

    source: str
    seed: int

    def function(self, space: Space) -> Callable[..., Any]:
        """Return the mask for an index space."""
        names: dict[str, Any] = {"torch": torch, **NUMBERS}
        for number, (name, make) in enumerate(CAPTURES.items()):
            if f"{name}[" in self.source:
                generator = torch.Generator().manual_seed(self.seed * len(CAPTURES) + number)
                names[name] = make(space, generator)
        exec(f"def mask(b, h, q_idx, kv_idx):\n    return {self.source}", names)
        made: Callable[..., Any] = names["mask"]
        return made

    def reads(self, name: str) -> bool:
        """Return whether the source has a name."""
        return name in compile(self.source, "<mask>", "eval").co_names


random_masks = st.builds(RandomMask, masks(2), st.integers(0, 99))
