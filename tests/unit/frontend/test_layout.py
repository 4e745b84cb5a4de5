"""The output lies in memory as the query does, as with torch's own attention."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

import flexfa4
from flexfa4.frontend.layout import empty_gradient, empty_output, laid_out

WIDTH = 6
QUERIES = {
    "contiguous": torch.randn(2, 4, 40, 16),
    "split heads": torch.randn(2, 40, 4, 16).transpose(1, 2),
    "packed with keys and values": torch.randn(2, 40, 3, 4, 16)[:, :, 0].transpose(1, 2),
    "rows innermost": torch.randn(2, 4, 16, 40).transpose(2, 3),
    "sequence first": torch.randn(40, 2, 4, 16).permute(1, 2, 0, 3),
}


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_order_of_axes_is_that_of_torchs_flex_attention(name: str) -> None:
    query = QUERIES[name]
    key, value = torch.randn(2, 4, 40, 16), torch.randn(2, 4, 40, WIDTH)
    strides = flex_attention(query, key, value).stride()
    assert empty_output(query, WIDTH).stride() == strides
    for mask in (None, "q >= 64", "q // 24 == kv // 24"):
        assert flexfa4.attention(query, key, value, block_mask=mask).stride() == strides


def test_heads_that_were_split_by_a_view_are_joined_by_one() -> None:
    x = torch.randn(2, 300, 64)
    heads = x.view(2, 300, 4, 16).transpose(1, 2)
    joined = flexfa4.attention(heads, heads, heads).transpose(1, 2).view(2, 300, 64)
    compiled = torch.compile(flexfa4.attention, backend="aot_eager", fullgraph=True)
    again = compiled(heads, heads, heads).transpose(1, 2).view(2, 300, 64)
    torch.testing.assert_close(joined, again, rtol=0, atol=0)


def test_an_expanded_query_has_an_output_of_its_own() -> None:
    query = torch.randn(1, 2, 5, 8).expand(3, 2, 5, 8)
    out = empty_output(query, 4)
    assert out.shape == (3, 2, 5, 4) and out.is_contiguous()


@pytest.mark.parametrize("name", QUERIES)
def test_gradients_of_compiled_calls_lie_as_their_inputs(name: str) -> None:
    inputs = [QUERIES[name].detach().requires_grad_() for _ in range(3)]
    out = torch.compile(flexfa4.attention, backend="aot_eager", fullgraph=True)(*inputs)
    expected = torch.autograd.grad(flexfa4.attention(*inputs).sum(), inputs)
    for found, right, x in zip(
        torch.autograd.grad(out.sum(), inputs), expected, inputs, strict=True
    ):
        assert found.stride() == empty_gradient(x).stride() == empty_output(x, 16).stride()
        torch.testing.assert_close(found, right)


def test_a_gradient_is_copied_only_where_it_lies_otherwise() -> None:
    x = QUERIES["split heads"]
    gradient = torch.randn(x.shape)
    moved = laid_out(gradient, x)
    assert torch.equal(moved, gradient) and moved.stride() == x.stride()
    assert laid_out(moved, x) is moved
