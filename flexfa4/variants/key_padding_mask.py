"""Key padding mask: sequences of different lengths in one batch, padded at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.combine import MaskMod
from flexfa4.errors import ArgumentError
from flexfa4.variants.parameters import given, require_bool_tensor, require_index_tensor


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class KeyPadding(MaskMod):
    """Attend to ``kv < lengths[b]``, and, given `query_lengths`, for ``q < query_lengths[b]`` only.

    Without `query_lengths` padded queries give some value that nobody reads, as in BART's encoder;
    with them they see nothing (out = 0, lse = -inf, zero gradients).  An encoder passes its lengths
    as both; cross attention passes those of the encoder, and of the decoder.

    Source: Lewis et al., "BART: Denoising Sequence-to-Sequence Pre-training" (2019), section 2.1,
    for batches of texts of different lengths.

    Attributes:
        lengths: (B,), integers: valid keys of each batch entry.  Without lengths (the instance
            ``key_padding``) using the mask is an error that says so.
        query_lengths: (B,), integers: valid queries of each batch entry; None: all.
    """

    lengths: torch.Tensor | None = None
    query_lengths: torch.Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("lengths", "query_lengths"):
            if getattr(self, name) is not None:
                require_index_tensor(f"KeyPadding.{name}", getattr(self, name), dims=(1,))

    @classmethod
    def from_attention_mask(cls, attention_mask: torch.Tensor) -> KeyPadding:
        """Return the mask for what tokenizers return: True or 1 where there is a token.

        Args:
            attention_mask: (B, S), bools or integers 0 and 1, with the padding at the end.
        """
        name = "KeyPadding.from_attention_mask(attention_mask)"
        if getattr(attention_mask, "dtype", None) is torch.bool:
            require_bool_tensor(name, attention_mask, dims=(2,))
        else:
            require_index_tensor(name, attention_mask, dims=(2,))
        valid = attention_mask != 0
        if bool((~valid[:, :-1] & valid[:, 1:]).any()):
            raise ArgumentError(
                name=name,
                found_value="a mask with padding before a token",
                expected="the padding of each row behind its last token",
                rewrite="flexfa4.mask(lambda b, h, q_idx, kv_idx: attention_mask[b, kv_idx])",
            )
        return cls(valid.sum(1))

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return where `q_idx` sees `kv_idx`."""
        lengths = given(
            "KeyPadding.lengths",
            self.lengths,
            expected="the valid keys of each batch entry, shape (B,)",
            rewrite="KeyPadding(lengths), or KeyPadding.from_attention_mask(attention_mask)",
        )
        valid = kv_idx < lengths[b]
        return valid if self.query_lengths is None else valid & (q_idx < self.query_lengths[b])


key_padding: Final = KeyPadding()
