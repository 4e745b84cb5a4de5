"""Training on packed documents: texts of many lengths in one row, none seeing another.

Padding every text to the longest wastes work; packing puts texts one behind the other, and a mask
keeps them apart.  Scores between documents are not computed at all, new lengths trace nothing, and
each document gets exactly what it would get alone.  Takes a few seconds.
"""

import torch
from torch import nn

import flexfa4
from flexfa4.variants import PackedCausal, alibi

TOKENS, WIDTH, HEADS = 17, 32, 4


class Model(nn.Module):
    """One layer of causal attention that predicts the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.predict = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: torch.Tensor, mask: PackedCausal) -> torch.Tensor:
        """Return logits (B, S, TOKENS) for tokens (B, S)."""
        x = self.embed(tokens)
        q, k, v = (
            t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.project(x).chunk(3, -1)
        )
        out = flexfa4.attention(q, k, v, score_mod=alibi, block_mask=mask)
        return self.predict(x + out.transpose(1, 2).flatten(2))


def document(length: int) -> torch.Tensor:
    """Return a text that counts by a step of its own, which the two latest tokens tell."""
    first, step = torch.randint(TOKENS, (1,)), torch.randint(1, 4, (1,))
    return (first + step * torch.arange(length)) % TOKENS


def main() -> None:
    """Train on new documents in every step, then compare packed with alone."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for step in range(60):
        lengths = torch.randint(20, 80, (6,)).tolist()
        texts = [document(length) for length in lengths]
        tokens = torch.cat(texts)[None]
        logits = model(tokens, PackedCausal.from_lengths(lengths))
        targets = torch.cat([torch.cat((text[1:], torch.tensor([-1]))) for text in texts])
        loss = nn.functional.cross_entropy(logits[0], targets, ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 0:
            before = flexfa4.stats()
        if step % 20 == 0 or step == 59:
            print(f"step {step:2}: {len(targets)} tokens, loss {loss.item():.3f}")
    print(f"traced {(flexfa4.stats() - before).traces} times after the first step")

    with torch.no_grad():
        packed = model(tokens, PackedCausal.from_lengths(lengths))[0].split(lengths)[3]
        alone = model(texts[3][None], PackedCausal.from_lengths(lengths[3:4]))[0]
    print(f"document 3, packed as alone: {torch.allclose(packed, alone, atol=1e-5)}")


if __name__ == "__main__":
    main()
