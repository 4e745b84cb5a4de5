"""attention inside torch.compile: every kind of mod, equal to the eager call, compiled once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend

import flexfa4
from flexfa4.errors import ArgumentError
from flexfa4.testing import CASES, Case, Sizes
from flexfa4.testing.case import Draw
from flexfa4.variants import (
    ByPosition,
    FoldedBatch,
    Neighborhood,
    PackedCausal,
    SlidingWindow,
    alibi,
    causal,
    softcap,
)
from flexfa4.variants.token_order import row_major

B, H, HKV, L, D = 2, 4, 2, 36, 8
SLOPES = torch.linspace(0.1, 0.8, H)
DOC = torch.arange(L) // 9
ARRAY = np.linspace(0.5, 2.0, H)
TABLE = torch.linspace(-1.0, 1.0, H * 3).view(H, 3)


@pytest.fixture(autouse=True)
def _no_compiled_code_is_left() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def inputs(batch: int = B, length: int = L, seed: int = 0) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(batch, heads, length, D, generator=g, requires_grad=True)
        for heads in (H, HKV, HKV)
    )


def compiled(function: Callable[..., Any], backend: Any = "aot_eager", **how: Any) -> Any:
    return torch.compile(function, fullgraph=True, backend=backend, **how)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    """Compare: numbers that Dynamo holds for constant are folded, which rounds otherwise."""
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def assert_equal_to_eager(
    function: Callable[..., Any], leaves: tuple[torch.Tensor, ...], *args: Any, **how: Any
) -> None:
    """Compare results and the gradients of `leaves`, compiled and eager."""
    found, expected = compiled(function, **how)(*args), function(*args)
    found, expected = (r if isinstance(r, tuple) else (r,) for r in (found, expected))
    for a, b in zip(found, expected, strict=True):
        close(a, b)
    g = torch.Generator().manual_seed(9)
    weights = [torch.randn(r.shape, generator=g) for r in expected]
    pairs = zip(
        *(torch.autograd.grad(results, leaves, weights) for results in (found, expected)),
        strict=True,
    )
    for a, b in pairs:
        close(a, b)


def in_both_ways(names: Iterable[str]) -> list[Any]:
    """Return each name with dynamic shapes, and every third with static ones, too."""
    dynamic = [pytest.param(name, True, id=f"{name}-dynamic") for name in names]
    return dynamic + [pytest.param(name, None, id=f"{name}-static") for name in list(names)[::3]]


# ---- kinds of mods -------------------------------------------------------------------------------


def biased(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, by: Any) -> Any:
    return score + by * (kv_idx - q_idx)


@dataclass(frozen=True)
class Decay:
    rate: float

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score - abs(q_idx - kv_idx) * self.rate

    def method(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score * self.rate + SLOPES[h]


def closure(weight: float) -> Any:
    def inner(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return torch.where(q_idx >= kv_idx, score * weight, score - weight)

    return inner


class Scaling(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factors = torch.nn.Parameter(SLOPES.clone())

    def forward(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score * self.factors[h]


SCORE_MODS: dict[str, Any] = {
    "lambda": lambda score, b, h, q_idx, kv_idx: torch.tanh(score) + SLOPES[h] * (kv_idx - q_idx),
    "closure": closure(0.4),
    "partial": functools.partial(biased, by=0.03),
    "object": Decay(0.05),
    "bound method": Decay(0.5).method,
    "variant": alibi,
    "module": Scaling(),
    "numpy array": lambda score, b, h, q_idx, kv_idx: score * ARRAY[h],
    "text": "score * 0.5 + min(q, kv)",
    "parsed": flexfa4.parse("score + s[h] * (kv - q) * w", s=SLOPES, w=0.25),
    "parsed with an int": flexfa4.parse("where(q - kv <= w, score, score - 2)", w=5),
    "traced": flexfa4.trace(lambda score, b, h, q_idx, kv_idx: score + SLOPES[h]),
    "vector": lambda score, b, h, q_idx, kv_idx: score + (TABLE[h] * TABLE[h, :]).sum(-1),
    "sizes": lambda score, b, h, q_idx, kv_idx: (
        score * (h + 1) / flexfa4.num_heads + (flexfa4.kv_len - flexfa4.q_len + q_idx) // 7
    ),
    "operators": lambda score, b, h, q_idx, kv_idx: (
        (2 - score) / 3 + 2.0 ** -(q_idx % 5) + (q_idx // 4 ^ 1) - (-kv_idx << 1) / 64
    ),
    "keywords": lambda score, b, h, q_idx, kv_idx: (
        score.clamp(min=-1.0) + torch.clamp(score, max=0.5).masked_fill(q_idx == kv_idx, 0.0)
    ),
    "parsed inside a function": lambda score, b, h, q_idx, kv_idx: (
        PARSED(score * 2, b, h, q_idx, kv_idx) + 1
    ),
}
PARSED: Any = flexfa4.parse("score + s[h] * w", s=SLOPES, w=0.125)


@pytest.mark.parametrize(("name", "dynamic"), in_both_ways(SCORE_MODS))
def test_a_score_mod_of_any_kind_means_the_same_compiled(name: str, dynamic: bool | None) -> None:
    q, k, v = inputs()

    def call(q: Any, k: Any, v: Any) -> Any:
        return flexfa4.attention(q, k, v, score_mod=SCORE_MODS[name], return_lse=True)

    assert_equal_to_eager(call, (q, k, v), q, k, v, backend="eager", dynamic=dynamic)


MASKS: dict[str, Any] = {
    "function": lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (DOC[q_idx] == DOC[kv_idx]),
    "text": "q >= kv and q - kv < 10",
    "parsed": flexfa4.parse("doc[q] == doc[kv]", doc=DOC),
    "combined": causal & SlidingWindow(7) | ~flexfa4.mask("kv > 3"),
    "combined with bindings": causal & flexfa4.mask("doc[q] - doc[kv] < n", doc=DOC, n=2),
    "function of Python's": lambda b, h, q_idx, kv_idx: abs(q_idx - kv_idx) <= 3 + h,
    "reads the batch": lambda b, h, q_idx, kv_idx: q_idx >= kv_idx - b,
    "block mask": flexfa4.create_block_mask(causal, q_len=L, kv_len=L),
    "block mask of captures": flexfa4.create_block_mask(
        flexfa4.parse("doc[q] == doc[kv] and q - kv < n", doc=DOC, n=20),
        q_len=L, kv_len=L, block_size=16,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "dynamic"), in_both_ways(MASKS))
def test_a_mask_of_any_kind_means_the_same_compiled(name: str, dynamic: bool | None) -> None:
    q, k, v = inputs()

    def call(q: Any, k: Any, v: Any) -> Any:
        return flexfa4.attention(q, k, v, block_mask=MASKS[name], return_lse=True)

    assert_equal_to_eager(call, (q, k, v), q, k, v, backend="eager", dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
def test_functions_may_be_combined_while_compiling(dynamic: bool | None) -> None:
    q, k, v = inputs()

    def call(q: Any, k: Any, v: Any) -> Any:
        def same(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return DOC[q_idx] == DOC[kv_idx]

        near = flexfa4.mask(lambda b, h, q_idx, kv_idx: q_idx - kv_idx < q.shape[2] // 3)
        capped = flexfa4.compose(lambda score, b, h, q_idx, kv_idx: score * 2, softcap)
        return flexfa4.attention(q, k, v, score_mod=capped, block_mask=same & causal | near & same)

    assert_equal_to_eager(call, (q, k, v), q, k, v, backend="eager", dynamic=dynamic)


def test_texts_may_stand_where_functions_do_while_compiling() -> None:
    q, k, v = inputs()

    def call(q: Any, k: Any, v: Any) -> Any:
        score_mod = flexfa4.compose("score * 2", softcap)
        near = flexfa4.mask("q - kv < 9") & causal | "kv == 0"
        packed = FoldedBatch(12, "q >= kv") & flexfa4.parse("q != 3")
        return flexfa4.attention(q, k, v, score_mod=score_mod, block_mask=near & packed)

    assert_equal_to_eager(call, (q, k, v), q, k, v, backend="eager")


def test_what_the_documentation_says_about_mods_made_while_compiling() -> None:
    q, k, v = inputs()
    doubled = torch.compile(lambda score, *at: score * 2, backend="eager")

    def call(q: Any, k: Any, v: Any) -> Any:
        after = flexfa4.mask(lambda b, h, q_idx, kv_idx: ~causal(b, h, q_idx, kv_idx))
        near = Neighborhood((6, 6), kernel=(3, 3), order=row_major)
        mask = after | near | ByPosition(torch.arange(L), inner=causal)
        return flexfa4.attention(q, k, v, score_mod=doubled, block_mask=mask)

    assert_equal_to_eager(call, (q, k, v), q, k, v, backend="eager")

    def packed(q: Any, k: Any, v: Any) -> Any:
        mask = PackedCausal.from_lengths([L - 5, 5])
        return flexfa4.attention(q, k, v, block_mask=mask)

    assert "make the mod outside" in refused(packed, q, k, v)
    torch._dynamo.reset()
    close(torch.compile(packed, backend="eager")(q, k, v), packed(q, k, v))


def test_sizes_and_scales_may_be_symbolic_ints() -> None:
    q, k, v = inputs()

    def call(q: Any, k: Any, v: Any, block: int, scale: int) -> Any:
        mask = flexfa4.create_block_mask(
            lambda b, h, i, j: i >= j, q_len=L, kv_len=L, block_size=(block, block)
        )
        return flexfa4.attention(q, k, v, block_mask=mask, scale=scale)

    run = compiled(call, "eager", dynamic=True)
    for block, scale in ((16, 2), (32, 3)):
        close(run(q, k, v, block, scale), call(q, k, v, block, scale))


def assert_case(case: Case, dynamic: bool | None) -> None:
    """Compare a case of the table, compiled and eager."""
    sizes = Sizes(q_len=33, kv_len=40)
    g = torch.Generator().manual_seed(1)
    mods = case.make(sizes, Draw(g))
    q = torch.randn(sizes.batch, sizes.heads, sizes.q_len, D, generator=g)
    k, v = torch.randn(2, sizes.batch, sizes.kv_heads, sizes.kv_len, D, generator=g)
    leaves = (q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), *mods.learned)

    def call(q: Any, k: Any, v: Any) -> Any:
        return flexfa4.attention(q, k, v, score_mod=mods.score_mod, block_mask=mods.mask)

    assert_equal_to_eager(call, leaves, q, k, v, backend="eager", dynamic=dynamic)


@pytest.mark.parametrize("case", CASES[::12], ids=lambda case: case.name)
def test_a_case_of_the_table_means_the_same_compiled(case: Case) -> None:
    assert_case(case, dynamic=True)


@pytest.mark.full
@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_of_the_table_means_the_same_compiled(case: Case, dynamic: bool | None) -> None:
    assert_case(case, dynamic)


def test_a_number_may_be_asked_for_while_compiling() -> None:
    q, k, v = inputs()

    def call(q: Any, k: Any, v: Any, window: int) -> Any:
        return flexfa4.attention(
            q, k, v,
            score_mod=lambda score, b, h, i, j: score + sum((i + n) % 3 for n in range(window)),
            block_mask=lambda b, h, i, j: (i - j < window) & (window > 3) if window else i >= j,
        )  # fmt: skip

    run = compiled(call, "eager", dynamic=True)
    for window in (5, 9, 0):
        close(run(q, k, v, window), call(q, k, v, window))


def test_a_block_mask_may_be_an_argument_and_be_replaced_by_one_of_another_length() -> None:
    counter = CompileCounter()

    def call(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return flexfa4.attention(q, k, v, block_mask=mask)

    run = compiled(call, counter, dynamic=True)
    for length in (40, 52, 90):
        mask = flexfa4.create_block_mask(
            SlidingWindow(length // 4), q_len=length, kv_len=length, block_size=16
        )
        q, k, v = inputs(length=length)
        close(run(q, k, v, mask), call(q, k, v, mask))
    assert counter.frame_count == 1


def test_a_block_mask_made_inside_the_compiled_function_is_the_one_made_outside() -> None:
    q, k, v = inputs()
    ids = DOC.clone()

    def call(q: Any, k: Any, v: Any, ids: Any) -> Any:
        mask = flexfa4.create_block_mask(
            lambda b, h, q_idx, kv_idx: (ids[q_idx] == ids[kv_idx]) & (q_idx >= kv_idx - h),
            heads=H, q_len=q.shape[2], kv_len=k.shape[2], block_size=16,
        )  # fmt: skip
        return flexfa4.attention(q, k, v, block_mask=mask)

    assert_equal_to_eager(call, (q, k, v), q, k, v, ids)
    assert_equal_to_eager(call, (q, k, v), q, k, v, ids // 2, dynamic=True)


def test_a_block_mask_made_inside_grows_beyond_one_block_without_compiling_anew() -> None:
    def call(q: Any, k: Any, v: Any) -> Any:
        mask = flexfa4.create_block_mask("q >= kv", q_len=q.shape[2], kv_len=k.shape[2])
        return flexfa4.attention(q, k, v, block_mask=mask)

    counter = CompileCounterWithBackend("aot_eager")
    run = compiled(call, counter, dynamic=True)
    for length in (100, 128, 129, 300, 36):
        q, k, v = (t.detach() for t in inputs(length=length))
        close(run(q, k, v), call(q, k, v))
    assert counter.frame_count == 1


def test_a_block_mask_made_in_a_compiled_function_serves_outside() -> None:
    def make(ids: Any) -> Any:
        return flexfa4.create_block_mask(
            lambda b, h, q_idx, kv_idx: (ids[q_idx] == ids[kv_idx]) & (q_idx >= kv_idx - h),
            heads=H, q_len=L, kv_len=L, block_size=16,
        )  # fmt: skip

    found, expected = compiled(make)(DOC.clone()), make(DOC.clone())
    assert torch.equal(found.block_kinds(), expected.block_kinds())
    assert torch.equal(found.to_dense(), expected.to_dense()) and repr(found) == repr(expected)
    q, k, v = inputs()
    out = flexfa4.attention(q, k, v, block_mask=found)
    close(out, flexfa4.attention(q, k, v, block_mask=expected))


# ---- gradients -----------------------------------------------------------------------------------


class Block(torch.nn.Module):
    """A layer whose mods capture parameters in every way."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes = torch.nn.Parameter(SLOPES.clone())
        self.temperature = torch.nn.Parameter(torch.tensor(0.7))
        self.left = torch.nn.Parameter(torch.linspace(-1, 1, H * L * 3).view(H, L, 3))
        self.sink = torch.nn.Parameter(torch.linspace(-1, 1, H))

    def mod(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        view = self.slopes[1:]
        pair = self.bias[h, q_idx, kv_idx]
        again = self.slopes[h] * self.slopes[(h + 1) % flexfa4.num_heads]
        return score * self.temperature + pair + again + view[h % 3] * (kv_idx - q_idx)

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        self.bias = self.left @ self.left.transpose(1, 2)
        return flexfa4.attention(
            q, k, v, score_mod=self.mod, block_mask=causal, sink=self.sink, return_lse=True
        )


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
def test_captured_parameters_views_and_computed_biases_get_their_gradients(
    dynamic: bool | None,
) -> None:
    q, k, v = inputs()
    block = Block()
    leaves = (q, k, v, *block.parameters())
    assert_equal_to_eager(block, leaves, q, k, v, dynamic=dynamic)


@pytest.mark.cxx
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # where inductor is imported
def test_inductor_gives_the_same() -> None:
    q, k, v = inputs()
    block = Block()
    assert_equal_to_eager(block, (q, k, v, *block.parameters()), q, k, v, backend="inductor")


def test_autocast_casts_the_operands_and_leaves_captures() -> None:
    q, k, v = inputs()
    block = Block()

    def call(q: Any, k: Any, v: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            out, lse = flexfa4.attention(
                q, k, v, score_mod=block.mod, block_mask=causal, sink=block.sink, return_lse=True
            )
        assert out.dtype is torch.bfloat16 and lse.dtype is torch.float32
        return out.float(), lse

    block(q, k, v)
    block.bias = block.bias.detach()
    assert_equal_to_eager(call, (q, k, v, block.slopes, block.sink), q, k, v)


# ---- compiled once -------------------------------------------------------------------------------


def test_no_change_of_length_batch_slope_window_or_scale_compiles_or_plans_anew() -> None:
    def call(q: Any, k: Any, v: Any, slope: float, window: int, table: Any) -> Any:
        return flexfa4.attention(
            q, k, v,
            score_mod=lambda score, b, h, i, j: score + slope * (j - i) * table[h],
            block_mask=lambda b, h, i, j: (i >= j) & (i - j < window),
            scale=slope * 2,
        )  # fmt: skip

    counter = CompileCounterWithBackend("aot_eager")
    run = compiled(call, counter, dynamic=True)
    for i in range(50):
        q, k, v = inputs(batch=3 + i % 5, length=17 + 3 * i, seed=i)
        arguments = (q, k, v, 0.1 + i / 64, 5 + i, torch.rand(H))
        out = run(*arguments)
        if i in (0, 1, 49):
            close(out, call(*arguments))
        out.sum().backward()
        if i == 1:
            before = flexfa4.stats()
    done = flexfa4.stats() - before
    assert (counter.frame_count, done.traces, done.parses, done.plans) == (1, 0, 0, 0)


def test_a_repeated_compiled_call_finds_its_mask_again() -> None:
    q, k, v = inputs()
    given = flexfa4.create_block_mask(causal, q_len=L, kv_len=L)
    ids = DOC.clone()

    def call(q: Any, k: Any, v: Any, ids: Any) -> Any:
        out = flexfa4.attention(q, k, v, block_mask=given)
        return out + flexfa4.attention(q, k, v, block_mask=lambda b, h, i, j: ids[i] == ids[j])

    run = compiled(call)
    run(q, k, v, ids)
    before = flexfa4.stats()
    run(q, k, v, ids)
    assert (flexfa4.stats() - before).block_lists == 0
    ids += torch.arange(L)
    close(run(q, k, v, ids), call(q, k, v, ids))


MIXED = torch.arange(L + 5) % 7  # equal ids do not stand together, so there is no closed form
BLOCK_MASKS: dict[str, Any] = {
    "numbers": lambda b, h, i, j: (i + j) % 24 < 9,
    "tensors": lambda b, h, i, j: MIXED[i] == MIXED[j],
    "heads": lambda b, h, i, j: (MIXED[i] == MIXED[j]) & ((i + h) % 3 > 0),
}


@pytest.mark.parametrize("first", [0, 5], ids=["whole", "part"])
@pytest.mark.parametrize("name", BLOCK_MASKS)
def test_a_compiled_call_has_the_blocks_of_its_block_mask(name: str, first: int) -> None:
    whole = flexfa4.create_block_mask(
        BLOCK_MASKS[name], heads=H, q_len=L + first, kv_len=L, block_size=16
    )
    given = whole[:, :, first:]

    def call(q: Any, k: Any, v: Any) -> Any:
        return flexfa4.attention(q, k, v, block_mask=given)

    leaves = [x.requires_grad_() for x in inputs()]
    before = flexfa4.stats()
    out = compiled(call)(*leaves)
    found = torch.autograd.grad(out.sum(), leaves)
    assert (flexfa4.stats() - before).block_lists == 0
    expected = call(*leaves)
    close(out, expected)
    for grad, right in zip(found, torch.autograd.grad(expected.sum(), leaves), strict=True):
        close(grad, right)


def test_a_part_is_taken_in_python_and_never_in_a_full_graph() -> None:
    given = flexfa4.create_block_mask(causal, q_len=L, kv_len=L)
    q, k, v = (x.detach() for x in inputs())

    def step(q: Any, k: Any, v: Any, t: int) -> Any:
        return flexfa4.attention(q, k, v, block_mask=given[:, :, t : t + 1])

    run = torch.compile(step, backend="eager")
    for t in (3, 4, 30):
        x = q[:, :, t : t + 1].contiguous()
        close(run(x, k, v, t), step(x, k, v, t))
    torch._dynamo.reset()
    with pytest.raises(Unsupported, match=r"block_mask\[\.\.\.\] makes a mod .* outside"):
        compiled(step, "eager")(q[:, :, :1], k, v, 0)


# ---- errors --------------------------------------------------------------------------------------


def refused(call: Callable[..., Any], *args: Any) -> str:
    """Return what a user reads when a call does not compile."""
    try:
        compiled(call, "eager")(*args)
    except torch._dynamo.exc.TorchDynamoException as error:
        return str(error)
    pytest.fail("it compiled")


ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "function": (
        {"score_mod": lambda score, b, h, i, j: torch.sort(score)[0]},
        "`sort` is not available inside a mod",
    ),
    "result": ({"score_mod": lambda score, b, h, i, j: None}, "returned None"),
    "number": ({"score_mod": lambda score, b, h, i, j: score * float(i)}, "asks for one number"),
    "truth": ({"block_mask": lambda b, h, i, j: not (i > j)}, "asks for one True or False"),
    "branch": ({"block_mask": lambda b, h, i, j: i > j if i > 3 else i < j}, "use torch.where"),
    "kind of mod": ({"score_mod": flexfa4.parse("q >= kv")}, "it is a mask mod"),
    "no mod": ({"block_mask": 3}, "block_mask is of type int"),
    "tensor": ({"block_mask": torch.ones(L, L)}, "instead: block_mask=lambda"),
    "class": ({"score_mod": Decay}, "score_mod is the class Decay"),
    "parameters": ({"score_mod": lambda b, h, i, j: i > j}, "takes 4 parameters"),
    "operand": ({"score_mod": lambda score, b, h, i, j: score * DOC.dtype}, "operation on scores"),
    "text": ({"block_mask": "q >> = kv"}, "instead:"),
    "backend": ({"backend": "cuda"}, "there is no backend 'cuda'"),
    "flag": ({"return_lse": 1}, "return_lse is 1"),
    "scale": ({"scale": float("nan")}, "scale is nan"),
    "sink": ({"sink": torch.zeros(3)}, "sink has shape (3,)"),
    "block mask": (
        {"block_mask": flexfa4.create_block_mask(causal, q_len=8, kv_len=8)},
        "the block mask was made for q_len=8, kv_len=8, but query has length 36",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_mistake_is_told_while_compiling(name: str) -> None:
    options, message = ERRORS[name]
    q, k, v = inputs()
    told = refused(lambda q, k, v: flexfa4.attention(q, k, v, **options), q, k, v)
    assert message in told
    assert "test_torch_op_compiled.py" in told  # the user's line


def test_an_argument_of_a_variant_is_refused_while_compiling_and_where_python_goes_on() -> None:
    q, k, v = inputs()

    def call(q: Any, k: Any, v: Any) -> Any:
        return flexfa4.attention(q, k, v, block_mask=SlidingWindow(0))

    assert "SlidingWindow.window is 0" in refused(call, q, k, v)
    torch._dynamo.reset()
    with pytest.raises(ArgumentError, match=r"SlidingWindow.window is 0"):
        torch.compile(call, backend="eager")(q, k, v)


def test_a_text_with_values_is_left_to_python() -> None:
    q, k, v = inputs()

    def call(q: Any, k: Any, v: Any) -> Any:
        return flexfa4.attention(q, k, v, block_mask=flexfa4.parse("q - kv < w", w=L // 3))

    assert "make the mod outside the compiled function" in refused(call, q, k, v)
    torch._dynamo.reset()
    close(torch.compile(call, backend="eager")(q, k, v), call(q, k, v))


def test_a_graph_break_inside_a_mod_is_an_error_where_others_would_be_allowed() -> None:
    def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        torch._dynamo.graph_break()
        return score * 2

    run = torch.compile(lambda *t: flexfa4.attention(*t, score_mod=mod), backend="eager")
    with pytest.raises(torch._dynamo.exc.Unsupported, match="graph_break"):
        run(*inputs())
