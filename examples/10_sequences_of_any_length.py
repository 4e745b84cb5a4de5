"""Sequences of many lengths in one call: where each begins and ends is all that is given.

The mods are written for one sequence: positions count from 0 in each, and ``b`` is its number.
Each gets what it would get alone, and scores between sequences are not computed.  The second part
is what a server does that decodes: a few new tokens for each sequence, beside keys of many lengths.
"""

import torch

import flexfa4
from flexfa4.variants import alibi, causal

HEADS, KV_HEADS, DIM = 8, 2, 64


def ends(lengths: list[int]) -> torch.Tensor:
    """Return 0 and where each sequence ends, as variable-length attention takes it."""
    return torch.tensor([0, *lengths]).cumsum(0).int()


def tokens(lengths: list[int], heads: int) -> torch.Tensor:
    """Return packed tokens, (sum of lengths, heads, dim)."""
    return torch.randn(sum(lengths), heads, DIM)


def newest(b, h, q_idx, kv_idx):
    """The queries are the last tokens of their sequence."""
    return kv_idx <= q_idx + flexfa4.kv_len - flexfa4.q_len


def main() -> None:
    """Attend within packed sequences, and compare one with what it gets alone."""
    torch.manual_seed(0)
    lengths = [300, 17, 1200, 64]
    q, k, v = tokens(lengths, HEADS), tokens(lengths, KV_HEADS), tokens(lengths, KV_HEADS)
    out = flexfa4.attention_varlen(q, k, v, ends(lengths), score_mod=alibi, block_mask=causal)

    one = [x.split(lengths)[2].transpose(0, 1)[None] for x in (q, k, v)]
    alone = flexfa4.attention(*one, score_mod=alibi, block_mask=causal)[0].transpose(0, 1)
    same = torch.allclose(out.split(lengths)[2], alone, atol=1e-5)
    print(f"{tuple(out.shape)}; sequence 2, packed as alone: {same}")

    # one new token for three sequences, four for the last; sequence 1 may not see its first 8 keys
    new, cached = [1, 1, 1, 4], [300, 17, 1200, 64]
    hidden = torch.tensor([0, 8, 0, 0])
    out, lse = flexfa4.attention_varlen(
        tokens(new, HEADS),
        k,
        v,
        ends(new),
        ends(cached),
        block_mask=flexfa4.mask(newest) & flexfa4.mask(lambda b, h, q, kv: kv >= hidden[b]),
        return_lse=True,
    )
    print(f"decoded: out {tuple(out.shape)}, lse {tuple(lse.shape)}")


if __name__ == "__main__":
    main()
