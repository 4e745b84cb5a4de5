"""Mask by captured positions: keys and queries that do not lie in the order of the text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from flexfa4.combine import MaskMod, mask
from flexfa4.errors import ArgumentError
from flexfa4.variants.causal_mask import causal
from flexfa4.variants.parameters import element, given, require_index_tensor, require_whole


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class ByPosition(MaskMod):
    """Attend where `inner` lets the *positions* of query and key: ``kv_positions[kv] >= 0 and
    inner(b, h, q_positions[q], kv_positions[kv])``.

    For keys in any order, such as the slots of a paged cache or tokens that were sorted by their
    expert: with ``inner=causal`` a query sees the keys whose position is at most its own, wherever
    they lie.  A slot with a negative position is empty, and nothing sees it.

    Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
    PagedAttention" (2023), section 4.1, as a mask over slots.

    Attributes:
        kv_positions: (S,) or (B, S), integers: the position of each key, with S at least the number
            of keys (`OutOfRangeError` otherwise, when the blocks are found).  Without it (the
            instance ``by_position``) using the mask is an error that says so.
        q_positions: (L,) or (B, L), integers: that of each query; None: the queries are in order
            from 0 on.
        inner: mask function or text, over positions.
    """

    kv_positions: torch.Tensor | None = None
    q_positions: torch.Tensor | None = None
    inner: Callable[..., Any] | str = causal
    _inner: MaskMod = field(init=False, repr=False, default=causal)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_inner", mask(self.inner))
        for name in ("kv_positions", "q_positions"):
            if getattr(self, name) is not None:
                require_index_tensor(f"ByPosition.{name}", getattr(self, name), dims=(1, 2))

    @classmethod
    def from_pages(
        cls,
        page_table: torch.Tensor,
        lengths: torch.Tensor,
        *,
        pages: int,
        page_size: int,
        q_positions: torch.Tensor | None = None,
    ) -> ByPosition:
        """Return the causal mask of a paged cache, whose keys are all slots of all its pages.

        The keys and values of the call have batch 1 and ``pages * page_size`` slots; each batch
        entry of the queries sees the slots of its own pages.

        Args:
            page_table: (B, P), integers: the pages of each batch entry in the order of its text;
                negative where it has no more.
            lengths: (B,), integers: valid positions of each batch entry.
            pages: pages of the cache.
            page_size: slots of a page.
            q_positions: as the attribute.
        """
        name = "ByPosition.from_pages"
        require_index_tensor(f"{name}(page_table)", page_table, dims=(2,))
        require_index_tensor(f"{name}(lengths)", lengths, dims=(1,))
        require_whole(f"{name}(pages)", pages, at_least=1)
        require_whole(f"{name}(page_size)", page_size, at_least=1)
        shape = (page_table.shape[0], pages * page_size)
        if page_table.numel() and int(page_table.max()) >= pages:
            raise ArgumentError(
                name=f"{name}(page_table)",
                found_value=f"a table that names page {int(page_table.max())}",
                expected=f"pages from 0 to {pages - 1}, negative for none",
                rewrite=f"pages={int(page_table.max()) + 1}",
            )
        positions = _positions_of_slots(page_table.long(), shape, page_size)
        valid = positions < lengths[:, None] if lengths.shape[0] == shape[0] else None
        # each position below the length must have a slot, and a page twice in a row hides some
        if valid is None or not torch.equal(
            (valid & (positions >= 0)).sum(1), lengths.to(positions)
        ):
            raise ArgumentError(
                name=f"{name}(lengths)",
                found_value=repr(lengths.tolist()),
                expected="a length for each row of the page table, at most what its pages hold, "
                "each page once in a row",
                rewrite="list all pages of each batch entry in the order of its text",
            )
        return cls(positions.masked_fill(~valid, -1), q_positions)

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        positions = given(
            "ByPosition.kv_positions",
            self.kv_positions,
            expected="the position of each key, shape (S,) or (B, S)",
            rewrite="ByPosition(kv_positions), or ByPosition.from_pages(page_table, lengths, ...)",
        )
        kv = element(positions, b, kv_idx)
        q = q_idx if self.q_positions is None else element(self.q_positions, b, q_idx)
        return (kv >= 0) & self._inner(b, h, q, kv)


def _positions_of_slots(
    page_table: torch.Tensor, shape: tuple[int, int], page_size: int
) -> torch.Tensor:
    """Return the position that each row of a page table gives to each slot, -1 where none."""
    inside = torch.arange(page_size, device=page_table.device)
    row, order = (page_table >= 0).nonzero(as_tuple=True)
    slots = page_table[row, order][:, None] * page_size + inside
    positions = torch.full(shape, -1, device=page_table.device)
    positions[row[:, None], slots] = order[:, None] * page_size + inside
    return positions


by_position: Final = ByPosition()
