"""T5's relative position bias: a learned number for each range of distances and each head."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import torch

from flexfa4.combine import ScoreMod
from flexfa4.errors import ArgumentError
from flexfa4.variants.parameters import given, require_bool, require_float_tensor, require_whole


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class T5Bias(ScoreMod):
    """Add ``table[bucket(kv - q), h]``.

    Half of the buckets hold one distance each; the others grow with the distance in even steps of
    its logarithm, up to `max_distance`, and the last one takes all that is beyond.  With
    `bidirectional`, the second half of the table serves later keys; without, all later keys share
    the bucket of distance 0, and a causal mask hides them.

    The limits of the buckets are found in whole numbers, so that a distance never falls on the
    other side of a limit by rounding.  T5 does not scale its scores: call ``attention`` with
    ``scale=1.0`` to reproduce it.

        table = torch.nn.Parameter(torch.zeros(32, 8))  # or the weight of T5's own nn.Embedding
        out = flexfa4.attention(q, k, v, score_mod=T5Bias(table))

    Source: Raffel et al., "Exploring the Limits of Transfer Learning" (2019), section 2.1, and the
    function of the buckets in the code that goes with it.

    Attributes:
        table: (buckets, H), learnable: the bias of each bucket and query head; an even number of
            buckets, of at least 4, with `bidirectional`, and at least 2 without.
        bidirectional: tell earlier from later keys.
        max_distance: from where on all distances share a bucket; more than half of the buckets of
            one direction.
    """

    table: torch.Tensor | None = None
    bidirectional: bool = True
    max_distance: int = 128
    _buckets: torch.Tensor | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        require_bool("T5Bias.bidirectional", self.bidirectional)
        require_whole("T5Bias.max_distance", self.max_distance, at_least=2)
        if self.table is None:
            return
        require_float_tensor("T5Bias.table", self.table, ("buckets", "H"))
        directions = 2 if self.bidirectional else 1
        count, odd = divmod(self.table.shape[0], directions)
        if count < 2 or odd:
            self._refuse_table(directions)
        require_whole("T5Bias.max_distance", self.max_distance, at_least=count // 2 + 1)
        earlier = bucket_by_distance(count, self.max_distance)
        later = [n + count for n in earlier] if self.bidirectional else [0] * len(earlier)
        buckets = torch.tensor([*earlier[:0:-1], 0, *later[1:]], device=self.table.device)
        object.__setattr__(self, "_buckets", buckets)

    def _refuse_table(self, directions: int) -> None:
        assert self.table is not None
        raise ArgumentError(
            name="T5Bias.table",
            found_value=f"a tensor of {self.table.shape[0]} buckets",
            expected="an even number of buckets, at least 4" if directions == 2 else "2 or more",
            rewrite="T5Bias(torch.zeros(32, heads))",
        )

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return the biased score."""
        table: Any = given(
            "T5Bias.table",
            self.table,
            expected="the bias of each bucket and head, a tensor of shape (buckets, H)",
            rewrite="T5Bias(torch.nn.Parameter(torch.zeros(32, heads)))",
        )
        by_distance = table[self._buckets]  # from -max_distance to max_distance
        distance = (kv_idx - q_idx).clamp(-self.max_distance, self.max_distance)
        return score + by_distance[distance + self.max_distance, h]


def bucket_by_distance(count: int, max_distance: int) -> list[int]:
    """Return the bucket of each distance of one direction, from 0 to `max_distance`.

    With e = count // 2, distances below e have their own bucket; a distance n beyond is in bucket
    ``e + floor(log(n / e) / log(max_distance / e) * (count - e))``, at most the last.  Hence it is
    in bucket e + i or beyond where ``n ** (count - e) * e ** i`` is at least
    ``max_distance ** i * e ** (count - e)``.

    Args:
        count: buckets of the direction, at least 2.
        max_distance: more than half of `count`.
    """
    exact = count // 2
    logarithmic = count - exact
    buckets = list(range(exact))
    i = 0
    for n in range(exact, max_distance + 1):
        while i + 1 < logarithmic and (
            n**logarithmic * exact ** (i + 1) >= max_distance ** (i + 1) * exact**logarithmic
        ):
            i += 1
        buckets.append(exact + i)
    return buckets


t5_bias: Final = T5Bias()
