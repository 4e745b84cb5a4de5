"""First steps: attention with variants from the library.

A variant has two halves.  A *mask* says which keys a query sees, and lets whole blocks of scores be
skipped; a *score mod* changes the scores that are left.  The library has both, ready to use
(`flexfa4 variants` lists them, docs/variants.md shows them), and masks combine with ``&``, ``|``
and ``~``.

Here: a window that stays within documents, ALiBi on top, and gradients.  Takes about a second.
"""

import torch

import flexfa4
from flexfa4.variants import Document, SlidingWindow, alibi


def main() -> None:
    """Run attention forward and backward and print what the mask saves."""
    torch.manual_seed(0)
    length = 2048
    q = torch.randn(1, 8, length, 32, requires_grad=True)  # (batch, heads, length, head dim)
    k = torch.randn(1, 2, length, 32, requires_grad=True)  # 2 key heads serve 8 query heads
    v = torch.randn(1, 2, length, 32, requires_grad=True)

    # Any mask may be given to attention as it is.  Where many calls share it, find its blocks once.
    mask = Document.from_lengths([700, 300, 1048]) & SlidingWindow(256)
    block_mask = flexfa4.create_block_mask(mask, q_len=length, kv_len=length)
    out, lse = flexfa4.attention(q, k, v, score_mod=alibi, block_mask=block_mask, return_lse=True)
    out.square().mean().backward()
    print(f"output {tuple(out.shape)}, log-sum-exp {tuple(lse.shape)}")
    print(f"{block_mask.density:.1%} of the blocks are computed, forward and backward")
    print(f"gradient of the keys: {tuple(k.grad.shape)}, norm {k.grad.norm():.2e}")


if __name__ == "__main__":
    main()
