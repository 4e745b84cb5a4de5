"""Coming from FlexAttention: a program that changes one import.

`flexfa4.flex` has the names and signatures of ``torch.nn.attention.flex_attention``.  The program
below closes over tensors, composes masks and asks for the log-sum-exp; it is written once and takes
the module as an argument.  In a program of your own, the change is

    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from flexfa4.flex import create_block_mask, flex_attention

The gradients come last: on a CPU, torch's module has none.  docs/from_flexattention.md lists what
else differs.  Takes a few seconds.
"""

import warnings
from types import ModuleType

import torch
from torch.nn.attention import flex_attention as torchs

import flexfa4.flex as ours

HEADS, LENGTH = 4, 256


def program(module: ModuleType, *, train: bool = False) -> dict[str, torch.Tensor]:
    """Attend within documents, causally, with a softcap and a bias of each head."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, HEADS, LENGTH, 32, requires_grad=train) for _ in range(3))
    document = torch.arange(LENGTH) // 100
    slope = torch.tensor([0.5, 0.25, 0.1, 0.05], requires_grad=train)

    def same_document(b, h, q_idx, kv_idx):
        return document[q_idx] == document[kv_idx]

    def causal(b, h, q_idx, kv_idx):
        return q_idx >= kv_idx

    def capped_with_bias(score, b, h, q_idx, kv_idx):
        return 20.0 * torch.tanh(score / 20.0) + slope[h] * (kv_idx - q_idx)

    mask = module.and_masks(causal, same_document)
    block_mask = module.create_block_mask(mask, None, None, LENGTH, LENGTH, device="cpu")
    print(f"{module.__name__}: {block_mask.sparsity():.0f} % of the blocks are skipped")
    out, aux = module.flex_attention(
        q,
        k,
        v,
        score_mod=capped_with_bias,
        block_mask=block_mask,
        return_aux=module.AuxRequest(lse=True),
    )
    results = {"out": out, "lse": aux.lse}
    if train:
        (out.square().mean() + aux.lse.mean()).backward()
        results |= {"gradient of q": q.grad, "gradient of slope": slope.grad}
    return results


def main() -> None:
    """Run the program with both modules and compare; then train with ours."""
    with warnings.catch_warnings():
        # torch's own, uncompiled, builds the whole score matrix and warns of it
        warnings.simplefilter("ignore")
        expected = program(torchs)
    found = program(ours)
    for name, value in expected.items():
        print(f"{name}: largest difference {(found[name] - value).abs().max().item():.0e}")
    for name, value in program(ours, train=True).items():
        print(f"{name}: norm {value.norm():.4f}")


if __name__ == "__main__":
    main()
