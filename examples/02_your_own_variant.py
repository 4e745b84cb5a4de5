"""A variant of your own, in ten lines: as a class, as a function, and as text.

A mask is any function of batch, head, query position and key position that says whether the query
sees the key.  It is called once, with values that stand for all positions at a time, and compiled:
so it uses operators and torch functions, not ``if``.  As a class with parameters it is what the
library's variants are, and combines with them.  Takes about a second.
"""

from dataclasses import dataclass

import torch

import flexfa4
from flexfa4.variants import Document


@dataclass(frozen=True)
class Strided(flexfa4.MaskMod):
    """See the `near` latest positions, and before them every `stride`-th one."""

    near: int = 32
    stride: int = 16

    def __call__(self, b, h, q_idx, kv_idx):
        """Return where `q_idx` sees `kv_idx`."""
        recent = q_idx - kv_idx < self.near
        return (kv_idx <= q_idx) & (recent | (kv_idx % self.stride == 0))


def main() -> None:
    """Use the variant in its three forms, compare them, and change its parameters."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 4, 512, 32) for _ in range(3))

    def function(b, h, q_idx, kv_idx):
        return (kv_idx <= q_idx) & ((q_idx - kv_idx < 32) | (kv_idx % 16 == 0))

    text = "kv <= q and (q - kv < near or kv % stride == 0)"
    forms = (Strided(), function, flexfa4.parse(text, near=32, stride=16))
    first, *others = (flexfa4.attention(q, k, v, block_mask=form) for form in forms)
    print(f"the forms agree: {all(torch.equal(first, other) for other in others)}")

    keep = Strided()(0, 0, torch.arange(512)[:, None], torch.arange(512))  # it is plain Python too
    dense = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)
    print(f"as a dense mask: {torch.allclose(first, dense, atol=1e-5)}")

    packed = Document.from_lengths([200, 312]) & Strided(near=8)
    block_mask = flexfa4.create_block_mask(packed, q_len=512, kv_len=512, block_size=(64, 64))
    print(f"in two documents, {block_mask.density:.1%} of the blocks are computed")

    before = flexfa4.stats()
    for near in range(8, 40, 4):
        flexfa4.attention(q, k, v, block_mask=Strided(near))
    print(f"8 windows, traced {(flexfa4.stats() - before).traces} times more")


if __name__ == "__main__":
    main()
