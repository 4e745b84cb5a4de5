"""A bias that is learned: T5's table of distances finds ALiBi's slopes.

Tensors that a mod captures get gradients when they require them, like any other input.  Here a
teacher attends with ALiBi, and a table of biases, zeros at first, is trained until attention with
it gives the teacher's outputs.  Nothing is traced or planned again while the values change.
Takes a few seconds.
"""

import torch

import flexfa4
from flexfa4.variants import T5Bias, alibi, causal


def main() -> None:
    """Train the table, and compare what it learned with the teacher's bias."""
    torch.manual_seed(0)
    heads, length = 2, 128
    table = torch.nn.Parameter(torch.zeros(24, heads))  # 24 ranges of distances
    student = T5Bias(table, bidirectional=False, max_distance=length)
    optimizer = torch.optim.Adam([table], lr=0.1)

    losses = []
    for step in range(80):
        q, k, v = (torch.randn(4, heads, length, 16) for _ in range(3))
        target = flexfa4.attention(q, k, v, score_mod=alibi, block_mask=causal)
        out = flexfa4.attention(q, k, v, score_mod=student, block_mask=causal)
        loss = (out - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step == 0:
            before = flexfa4.stats()
        if step % 20 == 0:
            print(f"step {step:2}: loss {losses[-1]:.5f}")
    print(f"traced {(flexfa4.stats() - before).traces} times after the first step")
    print(f"the loss fell by a factor of {losses[0] / losses[-1]:.0f}")

    # Softmax does not see what is added to a whole row, so biases count from that of distance 0.
    for distance in (1, 2, 4):
        learned = (table[distance] - table[0]).tolist()
        taught = [-distance * 2 ** (-8 * (h + 1) / heads) for h in range(heads)]
        pairs = ", ".join(f"{a:+.3f} ({b:+.3f})" for a, b in zip(learned, taught, strict=True))
        print(f"distance {distance}: learned (and taught) in each head {pairs}")


if __name__ == "__main__":
    main()
