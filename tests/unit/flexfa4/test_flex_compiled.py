"""`flex_attention` and block masks under ``torch.compile(fullgraph=True)``, export and vmap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from flexfa4.flex import AuxRequest, create_block_mask, create_mask, flex_attention

SLOPES = torch.tensor([0.5, 0.25])


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + SLOPES[h] * (kv_idx - q_idx)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(function: Any) -> Any:
    return torch.compile(function, backend="aot_eager", fullgraph=True)


def qkv() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, 64, 8, generator=g) for _ in range(3))
    return q, k, v


MASK = create_block_mask(causal, None, None, 64, 64, BLOCK_SIZE=16)


def test_as_users_wrap_it_with_gradients() -> None:
    q, k, v = (t.requires_grad_() for t in qkv())
    options: Any = {"BLOCK_M": 64}
    results = []
    calls: tuple[Any, ...] = (flex_attention, compiled(flex_attention))
    for flex in calls:
        out, aux = flex(
            q, k, v, alibi, MASK, 0.3, kernel_options=options, return_aux=AuxRequest(lse=True)
        )
        loss = out.sum() + aux.lse.square().sum()
        results.append([out, aux.lse, *torch.autograd.grad(loss, (q, k, v))])
    for eager, graph in zip(*results, strict=True):
        torch.testing.assert_close(graph, eager)


@pytest.mark.parametrize("kind", ["part", "torch's"])
def test_masks_that_are_lists(kind: str) -> None:
    q, k, v = qkv()
    block_mask, rows = (
        (MASK[:, :, 1:3], slice(16, 48)) if kind == "part" else (MASK.to_torch(), slice(None))
    )
    out = compiled(flex_attention)(q[:, :, rows], k, v, block_mask=block_mask)
    right = flex_attention(q, k, v, block_mask=MASK)
    torch.testing.assert_close(out, right[:, :, rows])


@pytest.mark.parametrize(
    ("index", "rows"),
    [
        (slice(1, None), range(16, 40)),
        (slice(None, -1), range(32)),
        (slice(0, 9, 2), (*range(16), *range(32, 40))),
        (slice(0, 2, 2), range(16)),
        (-1, range(32, 40)),
        (0, range(16)),
    ],
    ids=str,
)
def test_rows_picked_in_the_graph_of_a_mask_whose_last_row_is_cut_short(
    index: Any, rows: Any
) -> None:
    def part(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        block_mask = create_block_mask(causal, None, None, k.shape[2], k.shape[2], BLOCK_SIZE=16)
        return flex_attention(q, k, v, block_mask=block_mask[:, :, index])

    q, k, v = (t[:, :, :40] for t in qkv())
    right = flex_attention(q, k, v, block_mask=causal)[:, :, list(rows)]
    out = torch.compile(part, backend="eager", fullgraph=True)(q[:, :, list(rows)], k, v)
    torch.testing.assert_close(out, right)


def test_a_mask_made_in_the_graph_with_an_offset() -> None:
    def decode(q: Any, k: Any, v: Any, position: Any) -> Any:
        def shifted(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return causal(b, h, q_idx + position, kv_idx)

        block_mask = create_block_mask(shifted, None, None, 1, 64)
        return flex_attention(q, k, v, block_mask=block_mask)

    q, k, v = qkv()
    right = flex_attention(q, k, v, block_mask=MASK)
    step = compiled(decode)
    for position in (20, 63):
        out = step(q[:, :, [position]], k, v, torch.tensor(position))
        torch.testing.assert_close(out, right[:, :, [position]])


def test_decoding_with_a_row_that_is_picked_in_the_graph() -> None:
    def decode(q: Any, k: Any, v: Any, position: Any) -> Any:
        row = MASK[:, :, position // 16]
        row.mask_mod = lambda b, h, q_idx, kv_idx: causal(b, h, q_idx + position[0], kv_idx)
        row.seq_lengths = (1, 64)
        return flex_attention(q, k, v, block_mask=row)

    q, k, v = qkv()
    right = flex_attention(q, k, v, block_mask=MASK)
    out = compiled(decode)(q[:, :, [20]], k, v, torch.tensor([20]))
    torch.testing.assert_close(out, right[:, :, [20]])


@pytest.mark.parametrize("known", [False, True], ids=["not found", "found"])
def test_lists_that_nobody_has_read_are_written_in_the_graph(known: bool) -> None:
    block_mask = create_block_mask(causal, None, None, 64, 64, BLOCK_SIZE=16)
    right = create_block_mask(causal, None, None, 64, 64, BLOCK_SIZE=16).kv_indices
    if known:
        block_mask.sparsity()
    assert torch.equal(compiled(lambda: block_mask.kv_indices + 0)(), right)
    assert "kv_indices" not in vars(block_mask)


@pytest.mark.parametrize("size", [16, 17])
def test_making_a_block_mask_compiles_and_serves_outside(size: int) -> None:
    made = compiled(create_block_mask)(causal, None, None, 64, 64, BLOCK_SIZE=size)
    right = create_block_mask(causal, None, None, 64, 64, BLOCK_SIZE=size)
    for own, other in zip(made.as_tuple()[:10], right.as_tuple()[:10], strict=True):
        assert torch.equal(torch.as_tensor(own), torch.as_tensor(other))
    q, k, v = qkv()
    out = flex_attention(q, k, v, block_mask=made)
    torch.testing.assert_close(out, flex_attention(q, k, v, block_mask=right))
    assert torch.equal(
        compiled(create_mask)(causal, None, None, 9, 9), MASK.token_mask()[..., :9, :9]
    )


@pytest.mark.parametrize("part", [False, True])
def test_row_maxima_are_computed_beside_the_graph(part: bool) -> None:
    q, k, v = qkv()
    block_mask = MASK[:] if part else MASK
    request = AuxRequest(max_scores=True)
    with pytest.raises(Exception, match="max_scores are computed outside the graph"):
        compiled(flex_attention)(q, k, v, alibi, block_mask, return_aux=request)
    flex: Any = torch.compile(flex_attention, backend="aot_eager")
    for call in (flex, flex_attention):
        _, aux = call(q, k, v, alibi, block_mask, return_aux=request)
        torch.testing.assert_close(aux.max_scores, dense_maxima(q, k))


def dense_maxima(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    i = torch.arange(64)
    scores = q @ k.transpose(-1, -2) / 8**0.5 + SLOPES[:, None, None] * (i - i[:, None])
    return scores.masked_fill(i > i[:, None], -torch.inf).amax(-1)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"kernel_options": {"BLOK_M": 64}}, "'BLOCK_M'"),
        ({"return_aux": True}, "an AuxRequest"),
        ({"block_mask": MASK[:, :, 0]}, "the block mask was made for q_len"),
    ],
)
def test_mistakes_have_their_messages(wrong: Any, says: str) -> None:
    with pytest.raises(Exception, match=says):
        compiled(flex_attention)(*qkv(), **wrong)


def test_export_and_vmap() -> None:
    class Attend(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return flex_attention(q, k, v, alibi, MASK)

    tensors = qkv()
    right = flex_attention(*tensors, alibi, MASK)
    torch.testing.assert_close(torch.export.export(Attend(), tensors).module()(*tensors), right)
    mapped = torch.func.vmap(Attend())(*(t[None] for t in tensors))
    torch.testing.assert_close(mapped[0], right)
