"""A score mod of one's own with a learned table, written as a function and as text.

Shows: captured tensors get gradients, new values need no new trace, and the text form gives the
same graph.  Takes about a second.
"""

import torch

import flexfa4


def main() -> None:
    """Learn a bias for each distance, and count what was traced."""
    torch.manual_seed(0)
    heads, length = 4, 512
    q, k, v = (torch.randn(1, heads, length, 32) for _ in range(3))
    table = torch.zeros(heads, 2 * length - 1, requires_grad=True)

    def relative(score, b, h, q_idx, kv_idx):
        return score + table[h, kv_idx - q_idx + length - 1]

    optimizer = torch.optim.SGD([table], lr=100.0)
    before = flexfa4.stats()
    for step in range(3):
        loss = (
            (flexfa4.attention(q, k, v, score_mod=relative, block_mask="q >= kv") - q)
            .square()
            .mean()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.6f}")
    print(f"traced {(flexfa4.stats() - before).traces} time(s) in 3 steps")

    text = flexfa4.parse("score + table[h, kv - q + n - 1]", table=table, n=length)
    same = torch.allclose(
        flexfa4.attention(q, k, v, score_mod=relative), flexfa4.attention(q, k, v, score_mod=text)
    )
    print(f"the text form computes the same: {same}")


if __name__ == "__main__":
    main()
