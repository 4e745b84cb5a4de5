"""Inside torch's machinery: ``torch.compile`` without a graph break, and checkpointing.

A model with `flexfa4.attention` in it compiles as a whole; its mods may be inner functions that
close over parameters and arguments, and a new length or window compiles nothing again.  Activation
checkpointing computes attention a second time in the backward pass instead of keeping it.

The backend here is one that only takes the program apart and needs no compiler of C++; give
``inductor``, torch's default, as argument for the speed.  Takes a few seconds.
"""

import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import flexfa4

HEADS, WIDTH = 4, 64


class Layer(nn.Module):
    """Windowed attention with a learned slope for each head, in a residual branch."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.slope = nn.Parameter(torch.full((HEADS,), 0.1))

    def forward(self, x: torch.Tensor, window: int) -> torch.Tensor:
        """Return (B, S, WIDTH) of the same."""

        def bias(score, b, h, q_idx, kv_idx):
            return score + self.slope[h] * (kv_idx - q_idx)

        def near(b, h, q_idx, kv_idx):
            return (q_idx >= kv_idx) & (q_idx - kv_idx < window)

        heads = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.project(x).chunk(3, -1))
        out = flexfa4.attention(*heads, score_mod=bias, block_mask=near)
        return x + out.transpose(1, 2).flatten(2)


def main(backend: str = "aot_eager") -> None:
    """Compare the layer with its compiled and its checkpointed form, at several lengths."""
    torch.manual_seed(0)
    layer = Layer()
    compiled = torch.compile(layer, backend=backend, fullgraph=True, dynamic=True)

    def checkpointed(x, window):
        return checkpoint(layer, x, window, use_reentrant=False)

    stance = "default"  # then an error, should anything be compiled again
    for length, window in ((128, 32), (160, 32), (96, 48)):
        x = torch.randn(2, length, WIDTH)
        results = []
        for form in (layer, compiled, checkpointed):
            with torch.compiler.set_stance(stance):
                out = form(x, window)
            layer.zero_grad()
            out.square().mean().backward()
            results.append((out, layer.slope.grad))
        (out, grad), *others = results
        same = all(torch.allclose(out, o) and torch.allclose(grad, g) for o, g in others)
        print(f"length {length}, window {window}: outputs and gradients agree: {same}")
        stance = "fail_on_recompile"
    print("compiled once, as one graph")


if __name__ == "__main__":
    main(*sys.argv[1:])
