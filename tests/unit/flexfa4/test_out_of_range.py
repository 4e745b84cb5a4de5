"""An error about a read out of bounds says which index it was and whose tensor does not fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.errors import OutOfRangeError
from flexfa4.frontend.sizes import Sizes
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.out_of_range import explained
from flexfa4.variants import BlockSparse, Document, HeadScale, KeyPadding, PairBias, causal

Q = torch.randn(2, 4, 16, 8)
TWO, ONE, ROW = torch.zeros(2), torch.zeros(1), torch.zeros(1, 16)


def caught(**mods: Any) -> OutOfRangeError:
    with pytest.raises(OutOfRangeError) as raised:
        flexfa4.attention(Q, Q, Q, **mods)
    return raised.value


VARIANTS: dict[str, tuple[Any, str, str]] = {
    "too few positions": (
        Document.from_lengths([4, 5]) & causal,
        "Document.ids has size 9",
        "give Document.ids a size of 16 in dimension 0: one for each query of the call",
    ),
    "too few rows": (
        Document(torch.zeros(1, 16, dtype=torch.long)),
        "Document.ids has size 1",
        "give Document.ids a size of 2 in dimension 0: one for each batch entry of the call",
    ),
    "too few lengths": (
        KeyPadding(torch.tensor([3])),
        "KeyPadding.lengths has size 1",
        "give KeyPadding.lengths a size of 2 in dimension 0: one for each batch entry",
    ),
    "too few blocks": (
        BlockSparse(torch.ones(1, 2, dtype=torch.bool), (8, 8)),
        "BlockSparse.blocks has size 1",
        "make BlockSparse.blocks fit the call: 16 queries",
    ),
    "too few factors": (
        HeadScale(TWO),
        "HeadScale.factor has size 2",
        "give HeadScale.factor a size of 4 in dimension 0: one for each query head",
    ),
    "too few queries": (
        PairBias(torch.zeros(9, 16)),
        "PairBias.bias has size 9",
        "give PairBias.bias a size of 16 in dimension 0: one for each query",
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_that_does_not_fit_the_call_is_named_with_its_parameter(name: str) -> None:
    mod, found, rewrite = VARIANTS[name]
    is_score = isinstance(mod, (HeadScale, PairBias))
    error = caught(**{"score_mod" if is_score else "block_mask": mod})
    assert found in str(error) and error.fields["rewrite"].startswith(rewrite)
    assert error.where is None and "clamp" not in str(error)


OWN: dict[str, tuple[Any, str]] = {
    "q": (lambda b, h, q, kv: TWO[q] > kv, "such as q_idx.clamp(max=1)"),
    "kv": (lambda b, h, q, kv: TWO[kv + 0] > q, "such as kv_idx.clamp(max=1)"),
    "several": (lambda b, h, q, kv: TWO[(q - kv).abs()] > q, "such as index.clamp(max=1)"),
    "negative": (lambda b, h, q, kv: TWO[q.clamp(max=1) - 9] > q, "such as q_idx.clamp(min=0)"),
    "b": (lambda b, h, q, kv: ROW[b, kv] > q, "each batch entry, 2 in dimension 0; or 0 in"),
    "h": (lambda b, h, q, kv: TWO[h] > q, "each query head, 4 in dimension 0; or h // 2 in"),
    "text": (flexfa4.parse("t[q] > kv", t=TWO), "such as clamp(q, 0, 1)"),
    "empty": (lambda b, h, q, kv: TWO[:0][q] > kv, "make the tensor long enough"),
}


@pytest.mark.parametrize("name", OWN)
def test_advice_is_for_the_index_that_is_out_of_range(name: str) -> None:
    mask, advice = OWN[name]
    rewrite = caught(block_mask=mask).fields["rewrite"]
    assert advice in rewrite
    assert ("clamp" in rewrite) == ("clamp" in advice)


def test_a_score_mod_may_also_mask_the_scores() -> None:
    error = caught(score_mod=lambda score, b, h, q, kv: score + TWO[q])
    assert error.fields["rewrite"].endswith("q_idx.clamp(max=1), or mask these scores")


def test_an_error_that_is_placed_or_that_no_place_is_known_for_stays_itself() -> None:
    fields: dict[str, Any] = {
        "tensor": "t",
        "size": 1,
        "dim": 0,
        "index": 2,
        "low": -1,
        "high": 0,
        "rewrite": "",
    }
    bound = resolve(lambda b, h, q, kv: TWO[q] > kv, "mask")
    errors = [OutOfRangeError(**fields), OutOfRangeError(where="there", **fields)]
    for error in errors:
        for known in (bound, None):
            assert explained(error, known, Sizes(1, 1, 1, 4, 4), OutOfRangeError) is error
