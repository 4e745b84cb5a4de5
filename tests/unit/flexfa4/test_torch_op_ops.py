"""The registered ops: torch's own check of them, and the caches behind them."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.torch_op import ops
from flexfa4.torch_op.arguments import Arguments, Captured, captured, float_tensor

B, H, HKV, L, D = 2, 4, 2, 40, 8
IDS = torch.arange(L) // 7


def arguments(**changed: Any) -> Arguments:
    """Return arguments with everything that there is, captures that need gradients included."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(B, h, L, D, generator=g, requires_grad=True) for h in (H, HKV, HKV))
    slopes, sink = (torch.rand(H, generator=g, requires_grad=True) for _ in range(2))
    rate, window = 0.25, 11
    score = captured(
        resolve(lambda s, b, h, i, j: torch.tanh(s) + slopes[h] * (j - i) * rate, "score")
    )
    mask = captured(resolve(lambda b, h, i, j: (i - j < window) & (IDS[i] == IDS[j]), "mask"))
    full = together(q, k, v, sink, score, mask)
    return full._replace(**changed)


def together(q: Any, k: Any, v: Any, sink: Any, score: Captured, mask: Captured) -> Arguments:
    return Arguments(
        query=q, key=k, value=v, sink=sink, kinds=None,
        tensors=[*score.tensors, *mask.tensors], ints=[*score.ints, *mask.ints],
        floats=float_tensor([*score.floats, *mask.floats]), score=score.text, mask=mask.text,
        scale=None, block_size=[128, 128], made_for=[], scores_at_once=None,
        backend="auto", tile=[], tau=None, emulated=None, deterministic=False,
    )  # fmt: skip


def detached(a: Arguments) -> list[Any]:
    return torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, list(a))


NOTHING: dict[str, Any] = {
    "sink": None, "tensors": [], "ints": [], "floats": None, "score": "", "mask": "",
}  # fmt: skip
STRIPES = "(q + kv) % 24 < 9"  # has no closed form
BLOCKS = flexfa4.create_block_mask(STRIPES, q_len=L, kv_len=L, block_size=16)
GIVEN = {**NOTHING, "mask": BLOCKS.captured.text, "block_size": [16, 16], "made_for": [1, 1, L, L]}
TABLE = BLOCKS.block_kinds()
SAMPLES: dict[str, dict[str, Any]] = {
    "everything": {},
    "nothing": NOTHING,
    "a block mask": GIVEN,
    "a table of blocks": {**GIVEN, "kinds": TABLE},
    "scale in the floats": {"floats": torch.tensor([0.5, 0.25], dtype=torch.float64)},
}


@pytest.mark.parametrize("name", SAMPLES)
def test_torch_finds_no_fault_with_the_forward_op(name: str) -> None:
    torch.library.opcheck(ops.attention, tuple(arguments(**SAMPLES[name])))


def test_torch_finds_no_fault_with_the_other_ops() -> None:
    a = arguments()
    with torch.no_grad():
        out, lse = ops.attention(*a)
    wanted = [True, False, True, True, True, False]
    results = (torch.ones_like(out), None, out, lse, wanted)
    torch.library.opcheck(ops.attention_backward, (*results, *detached(a)))
    sizes = ([1, 1, L, L], [16, 32], torch.device("cpu"))
    torch.library.opcheck(
        ops.block_kinds, (a.mask, a.tensors[1:], a.ints, None, *sizes), test_utils="test_schema"
    )
    torch.library.opcheck(ops.block_kinds, (a.mask, a.tensors[1:], a.ints, None, *sizes))


def test_the_op_is_the_eager_call() -> None:
    a = arguments()
    slopes = a.tensors[0]
    leaves = (a.query, a.key, a.value, a.sink, slopes)
    rate, window = 0.25, 11
    expected = flexfa4.attention(
        a.query, a.key, a.value, sink=a.sink, return_lse=True,
        score_mod=lambda s, b, h, i, j: torch.tanh(s) + slopes[h] * (j - i) * rate,
        block_mask=lambda b, h, i, j: (i - j < window) & (IDS[i] == IDS[j]),
    )  # fmt: skip
    found = ops.attention(*a)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)
    weights = [torch.rand_like(r) for r in expected]
    grads = (torch.autograd.grad(r, leaves, weights) for r in (found, expected))
    for x, y in zip(*grads, strict=True):
        torch.testing.assert_close(x, y)


def test_the_first_of_one_float_more_is_the_scale() -> None:
    a = arguments(**NOTHING)
    floats = torch.tensor([0.25], dtype=torch.float64)
    out, _ = ops.attention(*a._replace(floats=floats))
    assert torch.equal(out, ops.attention(*a._replace(scale=0.25))[0])
    assert not torch.equal(out, ops.attention(*a)[0])
    with pytest.raises(flexfa4.errors.ArgumentError, match="scale is inf"):
        ops.attention(*a._replace(floats=floats / 0))


def test_given_blocks_are_scheduled_once_for_a_table() -> None:
    a = arguments(**SAMPLES["a table of blocks"])
    before = flexfa4.stats()
    ops.attention(*a)
    (entry,) = [blocks for blocks, held in ops._CACHE.values() if held[0] is TABLE]
    for _ in range(2):
        ops.attention(*a)
        assert [e for e, held in ops._CACHE.values() if held[0] is TABLE] == [entry]
    assert entry.caches  # what the backend keeps with a mask
    assert (flexfa4.stats() - before).block_lists == 0


def test_the_blocks_of_a_block_mask_that_is_in_use_are_its_own() -> None:
    mask = flexfa4.create_block_mask(STRIPES, q_len=L, kv_len=L, block_size=32)
    given = {**GIVEN, "block_size": [32, 32]}
    before = flexfa4.stats()
    out, _ = ops.attention(*arguments(**given))
    assert mask.blocks_on(mask.device).caches  # what the backend keeps with a mask
    assert (flexfa4.stats() - before).block_lists == 0
    del mask
    gc.collect()
    for found in (1, 0):  # now the op finds them, and keeps what it found
        before = flexfa4.stats()
        assert torch.equal(ops.attention(*arguments(**given))[0], out)
        assert (flexfa4.stats() - before).block_lists == found


def test_a_block_mask_for_other_lengths_is_refused_when_the_op_runs() -> None:
    with pytest.raises(flexfa4.errors.BlockMaskLengthsError, match=r"q_len=39, kv_len=40"):
        ops.attention(*arguments(**{**GIVEN, "made_for": [1, 1, L - 1, L]}))


def test_a_gradient_of_a_gradient_is_refused_when_it_is_taken() -> None:
    a = arguments(**NOTHING)
    out, _ = ops.attention(*a)
    (first,) = torch.autograd.grad(out.square().sum(), a.query, create_graph=True)
    with pytest.raises(flexfa4.errors.SecondDerivativeError):
        first.sum().backward()


# ---- errors of a running op ----------------------------------------------------------------------

SHORT = torch.zeros(5)


def by_vmap(call: Any) -> Any:
    return lambda q: torch.vmap(call)(q[None])


def by_compile(call: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(call, backend="eager", fullgraph=True)


@pytest.mark.parametrize("run", [by_vmap, by_compile])
def test_a_read_out_of_range_is_shown_where_the_mod_does_it(run: Any) -> None:
    mods: tuple[dict[str, Any], ...] = (
        {"score_mod": lambda s, b, h, i, j: s * 3 + SHORT[j]},
        {"block_mask": lambda b, h, i, j: SHORT[j] > 3},
    )
    for mod in mods:
        with pytest.raises(flexfa4.errors.OutOfRangeError) as caught:
            run(lambda q, mod=mod: flexfa4.attention(q, q, q, **mod))(torch.zeros(1, 2, 8, 8))
        where = caught.value.where
        assert isinstance(where, flexfa4.errors.Where) and where.file == __file__
        assert "SHORT[j]" in where.source
        if sys.version_info >= (3, 11):
            assert where.source[where.column : where.column + where.width] == "SHORT[j]"


def test_a_place_is_not_guessed_where_mods_of_one_text_have_several() -> None:
    first = lambda s, b, h, i, j: s * 7 + SHORT[j]  # noqa: E731
    second = lambda s, b, h, i, j: s * 7 + SHORT[j]  # noqa: E731
    found = []
    for mod in (first, second):
        with pytest.raises(flexfa4.errors.OutOfRangeError) as caught:
            by_vmap(lambda q, mod=mod: flexfa4.attention(q, q, q, score_mod=mod))(
                torch.zeros(1, 2, 8, 8)
            )
        found.append(caught.value.where)
    assert found[0] is not None and found[1] is None
