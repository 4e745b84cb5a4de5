"""attention under torch.func: vmap over anything that has an axis, and reverse-mode derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functionalize, grad, jacrev, vjp, vmap

import flexfa4
from flexfa4 import errors
from flexfa4.variants import causal

V, B, H, HKV, L, D = 3, 2, 4, 2, 20, 8
G = torch.Generator().manual_seed(0)
Q, K, VALUE = (torch.randn(V, B, h, L, D, generator=G) for h in (H, HKV, HKV))
SLOPES, ALL_SLOPES = torch.rand(H, generator=G), torch.rand(V, H, generator=G)
SINK, ALL_SINKS = torch.rand(H, generator=G), torch.rand(V, H, generator=G)
ALL_IDS = torch.randint(0, 3, (V, B, L), generator=G)
FACTORS = torch.rand(V, generator=G)
BY_HEAD = flexfa4.create_block_mask(
    lambda b, h, q_idx, kv_idx: q_idx >= kv_idx - h - b,
    batch=B, heads=H, q_len=L, kv_len=L, block_size=16,
)  # fmt: skip


def attention(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return flexfa4.attention(q, k, v, **options)


def assert_equal_to_a_loop(function: Callable[..., Any], args: Any, dims: Any = 0) -> None:
    dims = dims if isinstance(dims, tuple) else (dims,) * len(args)
    found = vmap(function, in_dims=dims)(*args)
    pairs = list(zip(args, dims, strict=True))
    each = [function(*[a if d is None else a.select(d, i) for a, d in pairs]) for i in range(V)]
    is_tuple = isinstance(found, tuple)
    expected = [torch.stack(x) for x in (zip(*each, strict=True) if is_tuple else [each])]
    for a, b in zip(found if is_tuple else (found,), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    "query, key and value": (
        lambda q, k, v: attention(q, k, v, block_mask=causal, sink=SINK, return_lse=True),
        (Q, K, VALUE), 0,
    ),
    "no batch outside": (
        lambda q, k, v: attention(
            q[None], k[None], v[None], score_mod=lambda s, b, h, i, j: s * (b + SLOPES[h])
        ),
        (Q[:, 0], K[:, 0], VALUE[:, 0]), 0,
    ),
    "other axes": (lambda q, k, v: attention(q, k, v),
                   (Q.movedim(0, 2), K, VALUE.movedim(0, -1)), (2, 0, 4)),
    "query alone": (
        lambda q: attention(q, K[0], VALUE[0], block_mask=lambda b, h, i, j: i >= j - h - b),
        (Q,), 0,
    ),
    "key and value alone": (
        lambda k, v: attention(
            Q[0], k, v, score_mod=lambda s, b, h, i, j: s * SLOPES[h] + b * j / flexfa4.num_heads
        ),
        (K, VALUE), 0,
    ),
    "one key batch for all": (lambda q, k: attention(q, k[:1], VALUE[0, :1]), (Q, K), 0),
    "captures, some of them": (
        lambda q, k, v, slopes, ids: attention(
            q, k, v,
            score_mod=lambda s, b, h, i, j: s + slopes[h] * (i - j) * 0.5 + SLOPES[h],
            block_mask=lambda b, h, i, j: ids[b, i] == ids[b, j],
        ),
        (Q, K, VALUE, ALL_SLOPES, ALL_IDS), 0,
    ),
    "a capture alone": (
        lambda factor: attention(
            Q[0], K[0], VALUE[0], score_mod=lambda s, b, h, i, j: s * factor
        ),
        (FACTORS,), 0,
    ),
    "a vector of a capture": (
        lambda q, table: attention(
            q, K[0], VALUE[0],
            score_mod=lambda s, b, h, i, j: (
                s + (table[:, i] * table[:, j]).sum(-1) * table.shape[0]
            ),
        ),
        (Q, Q[:, 0, 0].transpose(1, 2).contiguous() / D), 0,
    ),
    "sinks": (lambda q, sink: attention(q, K[0], VALUE[0], sink=sink, return_lse=True),
              (Q, ALL_SINKS), 0),
    "a block mask that reads b and h": (
        lambda q, k, v: attention(q, k, v, block_mask=BY_HEAD), (Q, K, VALUE), 0,
    ),
    "numbers of heads": (
        lambda q, k, v: attention(
            q, k, v, block_mask=lambda b, h, i, j: i * flexfa4.num_kv_heads >= j * h
        ),
        (Q, K, VALUE), 0,
    ),
    "gradients": (
        lambda q, k, v: grad(lambda q: attention(q, k, v, block_mask=causal).square().sum())(q),
        (Q, K, VALUE), 0,
    ),
    "gradients for each of what is shared": (
        lambda q: grad(
            lambda slopes, sink, k: attention(
                q, k, VALUE[0], sink=sink,
                score_mod=lambda s, b, h, i, j: torch.tanh(s * slopes[h]),
            ).square().sum(),
            argnums=(0, 1, 2),
        )(SLOPES, SINK, K[0]),
        (Q,), 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_vmap_is_a_loop(name: str) -> None:
    assert_equal_to_a_loop(*CASES[name])


def test_vmap_may_be_nested() -> None:
    def one(q: Any, k: Any, v: Any, slopes: Any) -> Any:
        return attention(
            q[None], k[None], v[None], score_mod=lambda s, b, h, i, j: s + slopes[h] * (j - i + b)
        )[0]

    over_batch = vmap(one, in_dims=(0, 0, 0, None))
    assert_equal_to_a_loop(over_batch, (Q, K, VALUE, ALL_SLOPES))
    found = over_batch(Q[0], K[0], VALUE[0], SLOPES)
    mod = lambda s, b, h, i, j: s + SLOPES[h] * (j - i)  # noqa: E731
    torch.testing.assert_close(found, attention(Q[0], K[0], VALUE[0], score_mod=mod))


def test_derivatives_of_mapped_calls_are_those_of_a_loop() -> None:
    def mod(slopes: Any) -> Any:
        return lambda s, b, h, i, j: s + slopes[h] * (j - i) / L

    def mapped(slopes: Any) -> Any:
        call = lambda q, k, v: attention(q, k, v, score_mod=mod(slopes))  # noqa: E731
        return vmap(call)(Q, K, VALUE).square().sum()

    def loop(slopes: Any) -> Any:
        each = zip(Q, K, VALUE, strict=True)
        return sum(attention(*qkv, score_mod=mod(slopes)).square().sum() for qkv in each)

    torch.testing.assert_close(grad(mapped)(SLOPES), grad(loop)(SLOPES))
    leaf = SLOPES.clone().requires_grad_()
    (plain,) = torch.autograd.grad(mapped(leaf), leaf)
    torch.testing.assert_close(plain, grad(loop)(SLOPES))


def test_grad_vjp_and_jacrev_agree_with_autograd() -> None:
    def call(q: Any, sink: Any) -> Any:
        return attention(q, K[0], VALUE[0], block_mask=causal, sink=sink, return_lse=True)

    q, sink = Q[0].clone().requires_grad_(), SINK.clone().requires_grad_()
    out, lse = call(q, sink)
    expected = torch.autograd.grad((out.sum(), lse.sum()), (q, sink))
    _, pull = vjp(call, Q[0], SINK)
    total = grad(lambda *x: sum(r.sum() for r in call(*x)), argnums=(0, 1))(Q[0], SINK)
    rows = jacrev(lambda s: call(Q[0], s)[1].sum((0, 2)))(SINK)
    for found in (pull((torch.ones_like(out), torch.ones_like(lse))), total):
        torch.testing.assert_close(found, expected)
    lse_alone = grad(lambda s: call(Q[0], s)[1].sum())(SINK)
    torch.testing.assert_close(rows.sum(0), lse_alone)


def test_an_axis_of_no_elements_may_be_mapped() -> None:
    def call(q: Any, slopes: Any) -> Any:
        mod = lambda s, b, h, i, j: s + slopes[h] * (j - i)  # noqa: E731
        return attention(q, K[0], VALUE[0], score_mod=mod, return_lse=True)

    shapes = [x.shape for x in vmap(call)(Q[:0], ALL_SLOPES[:0])]
    assert shapes == [(0, B, H, L, D), (0, B, H, L)]
    each = vmap(grad(lambda *x: call(*x)[0].sum(), argnums=(0, 1)), in_dims=(0, None))
    assert [x.shape for x in each(Q[:0], SLOPES)] == [(0, B, H, L, D), (0, H)]
    total = grad(lambda s: vmap(call, in_dims=(0, None))(Q[:0], s)[0].sum())(SLOPES)
    assert torch.equal(total, torch.zeros(H))


def test_functionalize_goes_with_vmap() -> None:
    def call(q: Any, k: Any, v: Any) -> Any:
        return attention(q, k, v, score_mod=lambda s, b, h, i, j: s * SLOPES[h], block_mask=causal)

    assert torch.equal(functionalize(call)(Q[0], K[0], VALUE[0]), call(Q[0], K[0], VALUE[0]))
    assert_equal_to_a_loop(functionalize(call), (Q, K, VALUE))
    expected = vmap(call)(Q, K, VALUE)
    torch.testing.assert_close(functionalize(vmap(call))(Q, K, VALUE), expected)


# ---- what there is not ---------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # where torch makes duals
def test_forward_mode_is_refused_for_inputs_and_captures() -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(SLOPES, SLOPES)
        with pytest.raises(errors.TransformError, match="forward-mode"):
            attention(Q[0], K[0], VALUE[0], score_mod=lambda s, b, h, i, j: s * dual[h])
        attention(Q[0], K[0], VALUE[0])


def test_functionalize_with_derivatives_is_refused() -> None:
    def call(q: Any) -> Any:
        return attention(q, K[0], VALUE[0]).sum()

    for both in (functionalize(grad(call)), grad(functionalize(call))):
        with pytest.raises(errors.TransformError, match="functionalize together with grad"):
            both(Q[0])


def test_a_second_derivative_is_refused_where_it_is_taken() -> None:
    def first(q: Any) -> Any:
        return grad(lambda q: attention(q, K[0], VALUE[0]).square().sum())(q)

    first(Q[0])
    with pytest.raises(errors.SecondDerivativeError):
        grad(lambda q: first(q).sum())(Q[0])
    with pytest.raises(errors.SecondDerivativeError):
        vmap(lambda q: vjp(first, q)[1](q))(Q)


# ---- inside torch.compile ------------------------------------------------------------------------


def compiled(function: Callable[..., Any], *args: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="aot_eager", fullgraph=True)(*args)


def test_vmap_may_be_compiled() -> None:
    def call(q: Any, k: Any, v: Any, slopes: Any) -> Any:
        return vmap(
            lambda q, k, v, slopes: attention(
                q, k, v, score_mod=lambda s, b, h, i, j: s + slopes[h] * (j - i + b)
            )
        )(q, k, v, slopes)

    torch.testing.assert_close(
        compiled(call, Q, K, VALUE, ALL_SLOPES), call(Q, K, VALUE, ALL_SLOPES)
    )


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda f: grad(lambda q: f(q).sum()), "in a function that torch.compile traces"),
        (lambda f: lambda q: torch.func.jvp(f, (q,), (q,)), "forward-mode"),
    ],
    ids=["grad", "jvp"],
)
def test_derivatives_by_torch_func_are_refused_inside_torch_compile(
    transform: Callable[..., Any], message: str
) -> None:
    call = transform(lambda q: attention(q, K[0], VALUE[0]))
    with pytest.raises(torch._dynamo.exc.TorchDynamoException, match=message):
        compiled(call, Q[0])
