"""Who gets an op and who the backend itself: export, checkpointing, fake tensors."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import flexfa4
from flexfa4 import errors
from flexfa4.torch_op.context import needs_op
from flexfa4.variants import causal

B, H, HKV, L, D = 2, 4, 2, 36, 8


def inputs(length: int = L, batch: int = B) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(length)
    return tuple(torch.randn(batch, h, length, D, generator=g) for h in (H, HKV, HKV))


class Layer(torch.nn.Module):
    """A layer with a parameter, a buffer and a number captured, and masks of every origin."""

    def __init__(self, mask: str = "function") -> None:
        super().__init__()
        self.slopes = torch.nn.Parameter(torch.linspace(0.1, 0.8, H))
        self.ids: torch.Tensor
        self.register_buffer("ids", torch.arange(64) // 5)
        self.mask, self.rate = mask, 0.25
        self.made = flexfa4.create_block_mask(
            flexfa4.parse("ids[q] == ids[kv] and q >= kv - w", ids=self.ids, w=3),
            q_len=L, kv_len=L, block_size=16,
        )  # fmt: skip

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        mask: Any = {
            "function": lambda b, h, i, j: (self.ids[i] == self.ids[j]) & (i >= j),
            "variant": causal,
            "text": "q >= kv",
            "made outside": self.made,
        }.get(self.mask)
        if self.mask == "made inside":
            mask = flexfa4.create_block_mask(
                lambda b, h, i, j: (self.ids[i] == self.ids[j]) & (i >= j),
                q_len=q.shape[2], kv_len=k.shape[2],
            )  # fmt: skip
        return flexfa4.attention(
            q, k, v,
            score_mod=lambda s, b, h, i, j: torch.tanh(s) + self.slopes[h] * (j - i) * self.rate,
            block_mask=mask,
        )  # fmt: skip


def test_a_plain_call_needs_no_op() -> None:
    q, k, v = inputs()
    parameter = torch.nn.Parameter(torch.zeros(H))
    assert not needs_op(q, k, v, parameter) and not needs_op(q, k, v, None)


# ---- export --------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True], ids=["traced", "strict"])
@pytest.mark.parametrize("mask", ["function", "variant", "text", "made outside", "made inside"])
def test_an_exported_program_computes_what_was_exported(mask: str, strict: bool) -> None:
    layer = Layer(mask)
    program = torch.export.export(layer, inputs(), strict=strict)
    targets = [str(node.target) for node in program.graph.nodes]
    assert "flexfa4.attention.default" in targets
    assert torch.equal(program.module()(*inputs()), layer(*inputs()))


@pytest.mark.parametrize("strict", [False, True], ids=["traced", "strict"])
def test_an_exported_program_with_dynamic_shapes_survives_a_file(strict: bool) -> None:
    layer = Layer("made inside")
    batch, length = torch.export.Dim("batch", min=2, max=8), torch.export.Dim("length", max=64)
    dims = ({0: batch, 2: length},) * 3
    program = torch.export.export(layer, inputs(), strict=strict, dynamic_shapes=dims)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    others = inputs(length=50, batch=3)
    assert torch.equal(loaded(*others), layer(*others))


@pytest.mark.parametrize("strict", [False, True], ids=["traced", "strict"])
def test_an_exported_block_mask_serves_from_one_block_to_several(strict: bool) -> None:
    layer = Layer("made inside")
    layer.ids = torch.arange(300) // 5
    dims = ({2: torch.export.Dim("length", min=2, max=300)},) * 3
    program = torch.export.export(layer, inputs(), strict=strict, dynamic_shapes=dims).module()
    for length in (20, 150):
        assert torch.equal(program(*inputs(length)), layer(*inputs(length)))


# ---- other machinery of torch's ------------------------------------------------------------------


def test_make_fx_records_one_op() -> None:
    layer = Layer()
    module = make_fx(layer)(*inputs())
    targets = [str(node.target) for node in module.graph.nodes]
    assert targets.count("flexfa4.attention.default") == 1 and "aten.bmm.default" not in targets
    assert torch.equal(module(*inputs()), layer(*inputs()))


def test_fake_tensors_get_shapes_and_leave_nothing_behind() -> None:
    def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score * torch.tensor(2.0)

    before = flexfa4.stats()
    with FakeTensorMode() as mode:
        q, k, v = (mode.from_tensor(t) for t in inputs())
        out, lse = flexfa4.attention(q, k, v, score_mod=mod, block_mask=causal, return_lse=True)
    assert (out.shape, lse.shape) == ((B, H, L, D), (B, H, L))
    assert (flexfa4.stats() - before).block_lists == 0
    found = flexfa4.attention(*inputs(), score_mod=mod)
    torch.testing.assert_close(found, flexfa4.attention(*inputs(), score_mod="score * 2"))


def test_a_block_mask_of_fake_tensors_says_that_it_holds_no_values() -> None:
    with FakeTensorMode() as mode:
        mask = flexfa4.create_block_mask("q >= kv", q_len=L, kv_len=L)
        q, k, v = (mode.from_tensor(t) for t in inputs())
        assert flexfa4.attention(q, k, v, block_mask=mask).shape == q.shape
    assert "q_len=36" in repr(mask) and "blocks not known" in repr(mask)
    for use in (
        lambda: mask.density,
        mask.to_dense,
        mask.block_kinds,
        lambda: flexfa4.attention(*inputs(), block_mask=mask),
    ):
        with pytest.raises(errors.FakeBlockMaskError):
            use()


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("mask", ["function", "text", "made outside"])
def test_jit_trace_records_one_op_and_warns_of_nothing(mask: str) -> None:
    layer = Layer(mask)
    traced = torch.jit.trace(layer, inputs(), check_trace=False)
    assert str(traced.graph).count("flexfa4::attention") == 1
    length = L if mask == "made outside" else 50
    assert torch.equal(traced(*inputs(length)), layer(*inputs(length)))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_jit_trace_freezes_no_block_mask_silently() -> None:
    with pytest.raises(errors.TransformError, match=r"torch\.jit\.trace of create_block_mask"):
        torch.jit.trace(Layer("made inside"), inputs())
    traced = torch.jit.trace(Layer("made outside"), inputs(), check_trace=False)
    with pytest.raises(RuntimeError, match=f"made for q_len={L}, kv_len={L}"):
        traced(*inputs(50))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_checkpointing_of_either_kind_gives_the_same_gradients(
    compiled: bool, reentrant: bool
) -> None:
    layer = Layer()
    leaves = (*(t.requires_grad_() for t in inputs()), layer.slopes)

    def call(*qkv: Any) -> Any:
        return checkpoint(layer, *qkv, use_reentrant=reentrant)

    run = torch.compile(call, backend="aot_eager", fullgraph=True) if compiled else call
    run(*leaves[:3]).square().sum().backward()
    expected = torch.autograd.grad(layer(*leaves[:3]).square().sum(), leaves)
    for leaf, grad in zip(leaves, expected, strict=True):
        torch.testing.assert_close(leaf.grad, grad, rtol=1e-5, atol=1e-5)


def test_selective_checkpointing_may_keep_the_op() -> None:
    layer = Layer()
    q, k, v = (t.requires_grad_() for t in inputs())
    kept = torch.ops.flexfa4.attention.default

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        keep = op is kept
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    out = checkpoint(layer, q, k, v, use_reentrant=False, context_fn=contexts)
    before = flexfa4.stats()
    (found,) = torch.autograd.grad(out.sum(), q)
    assert (flexfa4.stats() - before).calls == 1  # the layer calls attention; its op does not run
    (expected,) = torch.autograd.grad(layer(q, k, v).sum(), q)
    torch.testing.assert_close(found, expected)
