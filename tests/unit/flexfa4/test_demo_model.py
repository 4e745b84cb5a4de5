"""Both attentions of the demo compute the same function and the same gradients."""

from __future__ import annotations

import torch

from flexfa4.demo.corpus import NO_TARGET
from flexfa4.demo.model import Dense, Shape, Sparse, Transformer

SHAPE = Shape(layers=2, heads=4, kv_heads=2, head_dim=8, window=24)
DOCUMENTS = torch.tensor([[0] * 50 + [1] * 14 + [2] * 36, [0] * 100])


def loss_and_gradients(attention: Sparse | Dense) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = Transformer(SHAPE).double()
    tokens, targets = torch.randint(256, (2, 2, 100)).unbind()
    targets[:, ::7] = NO_TARGET
    attention.prepare(DOCUMENTS)
    loss = model.loss(tokens, targets, attention)
    return [loss, *torch.autograd.grad(loss, list(model.parameters()))]


def test_sparse_and_dense_attention_give_equal_losses_and_gradients() -> None:
    for ours, dense in zip(
        loss_and_gradients(Sparse(SHAPE)), loss_and_gradients(Dense(SHAPE)), strict=True
    ):
        torch.testing.assert_close(ours, dense)


def test_no_position_sees_another_document_or_beyond_the_window() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 100, 8), torch.randn(2, 2, 100, 8), torch.randn(2, 2, 100, 8)
    for attention in (Sparse(SHAPE), Dense(SHAPE)):
        attention.prepare(DOCUMENTS)
        before = attention(q, k, v)
        changed = v.clone()
        changed[:, :, 50:52] += 1  # the first two positions of document 1
        rows = (attention(q, k, changed) != before).any(-1).any(1)
        assert rows[0].nonzero().flatten().tolist() == list(range(50, 64))
        assert rows[1].nonzero().flatten().tolist() == list(range(50, 51 + SHAPE.window))


def test_skipped_is_the_share_of_blocks_without_a_visible_score() -> None:
    attention = Sparse(Shape(window=128))
    attention.prepare(torch.zeros(1, 512, dtype=torch.long))
    assert attention.skipped() == 1 - 7 / 16  # 4 x 4 blocks: the diagonal and the one below it
