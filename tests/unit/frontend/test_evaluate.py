"""Programs: what they compute, how little they compute, and what they never overwrite."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flexfa4.errors import OutOfRangeError
from flexfa4.frontend.evaluate import Program, Values, plain_axes
from flexfa4.frontend.ir import (
    F32,
    I32,
    Buffer,
    Node,
    Scalar,
    Search,
    Side,
    const,
    input_,
    iota,
    load,
    scalar,
    search,
    symbol,
)
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.ops import OPS, apply
from flexfa4.frontend.pool import Pool
from flexfa4.frontend.value_runs import value_runs
from tests.leaves import KV, SCORE, B, H, Q

LANES = Lanes((1, 3), (0, 4), (5, 12), (3, 14))


def evaluate(root: Node, values: Values | None = None, **given: Any) -> Any:
    (result,) = Program((root,)).run(values or Values(), LANES, **given)
    return result


def indices() -> tuple[torch.Tensor, ...]:
    ranges = (LANES.b, LANES.h, LANES.q, LANES.kv)
    return torch.meshgrid(*(torch.arange(*r) for r in ranges), indexing="ij")


def score(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(LANES.shape, generator=torch.Generator().manual_seed(0)).to(dtype)


class Called(TorchDispatchMode):
    """Records the names of the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_inputs_are_the_indices_of_the_rectangle() -> None:
    for name, right in zip(["b", "h", "q", "kv"], indices(), strict=True):
        assert torch.equal(evaluate(input_(name)).expand(LANES.shape), right)


@pytest.mark.parametrize(
    ("root", "shape"),
    [
        (apply("mul", H, const(2)), (4, 1, 1)),
        (apply("add", B, H), (2, 4, 1, 1)),
        (apply("sub", Q, KV), (7, 11)),
        (apply("mul", apply("exp2", apply("to_f32", H)), apply("sub", Q, KV)), (4, 7, 11)),
    ],
)
def test_a_value_has_only_the_axes_that_it_varies_along(root: Node, shape: tuple[int, ...]) -> None:
    assert evaluate(root).shape == shape


def test_numbers_and_symbols_come_from_the_call() -> None:
    window = Scalar("w", I32)
    root = apply("add", scalar(window), symbol("kv_len"))
    assert int(evaluate(root, Values(scalars={window: 5}, symbols={"kv_len": 7}))) == 12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_f32_means_the_score_dtype(dtype: torch.dtype) -> None:
    third = apply("div", apply("to_f32", Q), const(3.0))
    result = evaluate(apply("add", SCORE, third), Values(dtype=dtype), score=score(dtype))
    assert result.dtype is dtype
    exact = score(dtype).double() + indices()[2].double() / 3
    torch.testing.assert_close(result, exact.to(dtype), rtol=0, atol=8 * torch.finfo(dtype).eps)


# ---- loads ---------------------------------------------------------------------------------------

SIZES = (3, 4, 12, 14)
TENSORS = {
    n: torch.randn(SIZES[:n] if n != 5 else (*SIZES, 6), generator=torch.Generator().manual_seed(n))
    for n in (1, 2, 3, 4, 5)
}


def read(rank: int, *args: Node) -> tuple[Any, torch.Tensor]:
    buffer = Buffer("t", F32, (None,) * rank)
    return evaluate(load(buffer, args), Values({buffer: TENSORS[rank]})), TENSORS[rank]


@pytest.mark.parametrize("far", [1e39, -1e300])
def test_numbers_beyond_fp32_are_infinite_in_it(far: float) -> None:
    given = Scalar("far", F32)
    values = {
        dtype: Values(scalars={given: far}, dtype=dtype) for dtype in (torch.float32, torch.float64)
    }
    for number in (const(far, F32), scalar(given)):
        root = apply("where", apply("lt", KV, Q), SCORE, number)
        for dtype, expected in (
            (torch.float32, math.copysign(math.inf, far)),
            (torch.float64, far),
        ):
            found = evaluate(root, values[dtype], score=score(dtype))
            hidden = indices()[3] >= indices()[2]
            assert found.dtype is dtype and bool((found[hidden] == expected).all())
            assert torch.equal(found[~hidden], score(dtype)[~hidden])


def test_loads_agree_with_eager_indexing_however_the_axes_are_ordered() -> None:
    b, h, q, kv = indices()
    mod3 = apply("mod", KV, const(3))
    wrapped = apply("neg", apply("add", H, const(1)))
    for args, right in (
        ((B, H, Q, KV), (b, h, q, kv)),
        ((mod3, H, KV, Q), (kv % 3, h, kv % 12, q)),
        ((B, wrapped, Q, Q), (b, -h - 1, q, q)),
        ((const(1), H, apply("mod", apply("mul", Q, KV), const(12)), KV), (1, h, q * kv % 12, kv)),
    ):
        used = tuple(apply("mod", a, const(12)) if a is KV and i == 2 else a
                     for i, a in enumerate(args))  # fmt: skip
        found, tensor = read(4, *used)
        assert torch.equal(found.expand(LANES.shape), tensor[right])


def test_a_load_indexed_by_inputs_is_a_view_not_a_copy() -> None:
    found, tensor = read(4, B, H, Q, KV)
    assert found.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()


def test_only_axes_that_no_gather_needs_are_sliced() -> None:
    buffer = Buffer("t", F32, (None, None))
    assert plain_axes(load(buffer, (H, Q))) == {0: 1, 1: 2}
    assert plain_axes(load(buffer, (H, apply("sub", Q, KV)))) == {0: 1}
    assert plain_axes(load(buffer, (Q, apply("sub", Q, KV)))) == {}
    assert plain_axes(load(buffer, (Q, Q))) == {}


TURNED = Buffer("t", F32, (None,) * 4)


@pytest.mark.parametrize("proved", [True, False])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)])
@pytest.mark.parametrize(("lane", "own"), [(Q, 3), (KV, 2)])
def test_one_index_beside_lanes_is_gathered_along_its_dimension(
    lane: Node, own: int, order: tuple[int, ...], proved: bool
) -> None:
    away = apply("sub", Q, KV)  # from 8 to -8: both signs
    arguments = [B, H, lane, away]
    node = load(TURNED, tuple(arguments[i] for i in order))
    tensor = torch.randn(3, 4, 14, 20, generator=torch.Generator().manual_seed(0)).permute(order)
    values = Values({TURNED: tensor}, unproved=frozenset(() if proved else (node,)))
    with Called() as called:
        found = evaluate(node, values)
    b, h, q, kv = indices()
    right = [b, h, q if lane is Q else kv, q - kv]
    assert torch.equal(found.expand(LANES.shape), tensor[tuple(right[i] for i in order)])
    assert "gather" in called.names and "index" not in called.names


def test_an_unproved_load_beyond_its_tensor_under_the_mask_reads_what_is_there() -> None:
    node = load(Buffer("t", F32, (None, None)), (KV, apply("sub", Q, KV)))
    tensor = torch.randn(10, 20, generator=torch.Generator().manual_seed(0))
    values = Values({node.attr: tensor}, unproved=frozenset((node,)))
    visible = LANES.index("kv", torch.device("cpu")) < 10
    found = evaluate(node, values, visible=visible).expand(LANES.shape)
    _, _, q, kv = indices()
    seen = visible.expand(LANES.shape)
    assert torch.equal(found[seen], tensor[kv[seen], (q - kv)[seen]])


def test_a_vector_load_reduces_to_one_value_for_each_score() -> None:
    buffer = Buffer("t", F32, (None, None, 6))
    tensor = torch.randn(4, 14, 6)
    vector = load(buffer, (H, KV, iota(6)))
    root = apply("sum", apply("mul", vector, apply("to_f32", Q)))
    found = evaluate(root, Values({buffer: tensor}))
    _, h, q, kv = indices()
    torch.testing.assert_close(found.expand(LANES.shape), tensor[h, kv].sum(-1) * q)


def test_an_unproved_load_is_read_only_on_visible_lanes() -> None:
    buffer = Buffer("t", F32, (None,))
    node = load(buffer, (KV,))
    values = Values({buffer: torch.arange(10.0)}, unproved=frozenset((node,)))
    visible = torch.arange(*LANES.kv) < 10
    found = evaluate(node, values, visible=visible)
    assert torch.equal(found.expand(LANES.shape)[..., visible], indices()[3][..., visible].float())
    for seen in (None, torch.arange(*LANES.kv) < 11):
        with pytest.raises(OutOfRangeError, match=r"`t` has size 10 .* index 10"):
            evaluate(node, values, visible=seen)


def test_an_empty_captured_tensor_is_an_error_only_where_it_is_seen() -> None:
    buffer = Buffer("t", F32, (None,))
    node = load(buffer, (KV,))
    values = Values({buffer: torch.zeros(0)}, unproved=frozenset((node,)))
    assert evaluate(node, values, visible=torch.zeros(1, dtype=torch.bool)).shape == ()
    with pytest.raises(OutOfRangeError, match="size 0"):
        evaluate(node, values)


# ---- evaluation in place -------------------------------------------------------------------------


def chain(node: Node) -> Node:
    for name in ("exp2", "neg", "sin", "abs"):
        node = apply(name, node)
    return apply("mul", apply("add", node, const(1.0)), node)


@pytest.mark.parametrize("owned", [False, True])
def test_only_an_owned_score_is_overwritten(owned: bool) -> None:
    given = score()
    before = given.clone()
    (found,) = Program((chain(SCORE),), owns_score=owned).run(Values(), LANES, given)
    assert torch.equal(given, before) is not owned
    torch.testing.assert_close(found, evaluate(chain(SCORE), score=before))


def test_captured_tensors_and_index_tensors_are_never_overwritten() -> None:
    buffer = Buffer("t", F32, (None,) * 4)
    tensor = TENSORS[4].clone()
    version = tensor._version
    node = load(buffer, (B, H, Q, KV))
    roots = (
        chain(node),
        apply("add", chain(node), chain(apply("to_f32", Q))),
        apply("mul", chain(apply("add", SCORE, node)), node),
    )
    for root in roots:
        Program((root,), owns_score=True).run(Values({buffer: tensor}), LANES, score())
    assert tensor._version == version and torch.equal(tensor, TENSORS[4])
    assert torch.equal(LANES.index("q", torch.device("cpu")).flatten(), torch.arange(5, 12))


def test_a_root_that_another_root_needs_keeps_its_value() -> None:
    half = apply("mul", SCORE, const(0.5))
    roots = (half, apply("exp2", half), apply("add", half, half), SCORE)
    given = score()
    found = Program(roots, owns_score=True).run(Values(), LANES, given.clone())
    right = (given * 0.5, (given * 0.5).exp2(), given, given)
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a, b)


# ---- vectors -------------------------------------------------------------------------------------

ROWS, COLUMNS = Buffer("rows", F32, (None, 6)), Buffer("columns", F32, (None, 6))
VECTORS = {
    buffer: torch.randn(14, 6, generator=torch.Generator().manual_seed(i))
    for i, buffer in enumerate((ROWS, COLUMNS))
}


def product() -> Node:
    return apply("mul", load(ROWS, (Q, iota(6))), load(COLUMNS, (KV, iota(6))))


def test_a_sum_of_products_may_be_a_matrix_product_and_forms_no_product() -> None:
    root = apply("sum", product())
    values = Values(VECTORS)
    right = VECTORS[ROWS][5:12] @ VECTORS[COLUMNS][3:14].T
    for products in (False, True):
        with Called() as called:
            (found,) = Program((root,), products=products).run(values, LANES)
        torch.testing.assert_close(found.reshape(7, 11), right)
        assert ("bmm" in called.names, "mul" in called.names) == (products, not products)


def test_a_product_that_is_used_by_itself_too_keeps_its_value() -> None:
    node = product()
    root = apply("add", apply("sum", node), apply("amax", node))
    (found,) = Program((root,), products=True).run(Values(VECTORS), LANES)
    dense = VECTORS[ROWS][5:12, None] * VECTORS[COLUMNS][None, 3:14]
    torch.testing.assert_close(found.reshape(7, 11), dense.sum(-1) + dense.amax(-1))


def test_large_vectors_lie_in_the_pool_and_take_no_more_of_it_each_time() -> None:
    lanes = Lanes((0, 1), (0, 1), (0, 100), (0, 120))
    scaled = apply("mul", apply("sub", Q, KV), load(ROWS, (const(0), iota(6))))
    moved = apply("add", scaled, load(COLUMNS, (const(0), iota(6))))
    root = apply("amax", apply("add", apply("exp2", apply("neg", moved)), scaled))
    program, values = Program((root,)), Values(VECTORS)
    (right,) = program.run(values, lanes)
    pool = Pool(torch.float32, torch.device("cpu"))
    made = set()
    for _ in range(3):
        (found,) = program.run(values, lanes, pool=pool)
        assert torch.equal(found, right)
        pool.reclaim()
        made.add(frozenset(flat.data_ptr() for flat in pool._free))
    assert len(made) == 1 and len(made.pop()) == 2


# ---- searches ------------------------------------------------------------------------------------


def test_searches_find_values_in_a_row_for_each_head_or_in_one() -> None:
    buffer = Buffer("ids", I32, (None, None))
    rows = torch.randint(0, 5, (4, 14), generator=torch.Generator().manual_seed(0)).sort(1).values
    values = Values({buffer: rows}, value_runs={(buffer, 1): value_runs(rows, 1)})
    _, h, q, _ = indices()
    for row, right in ((H, rows[h]), (const(2), rows[2].expand(*LANES.shape, 14))):
        node = search(Search(buffer, 1, "through"), (row,), apply("mod", Q, const(6)))
        found = evaluate(node, values)
        assert torch.equal(found.expand(LANES.shape), (right <= (q % 6)[..., None]).sum(-1))


@pytest.mark.parametrize("side", ["first", "end"])
@pytest.mark.parametrize("place", [Q, apply("sub", Q, const(13)), const(-2)])
def test_the_element_of_a_place_is_found_around_it_and_not_read(side: Side, place: Node) -> None:
    buffer = Buffer("ids", I32, (None, None))
    rows = torch.tensor([7, 3, 5])[torch.arange(14) // 6].repeat(4, 1)
    rows[1:3] = torch.arange(14) // 4
    unread = Values({buffer: rows.to("meta")}, value_runs={(buffer, 1): value_runs(rows, 1)})
    node = search(Search(buffer, 1, side), (H,), load(buffer, (H, place)))
    found = evaluate(node, unread).expand(LANES.shape)
    _, h, q, _ = indices()
    at = {"input": q, "sub": q - 13, "const": torch.full_like(q, -2)}[place.op]
    same = rows[h] == rows[h, at][..., None]
    behind = 14 - same.to(torch.uint8).flip(-1).argmax(-1)
    assert torch.equal(found, same.to(torch.uint8).argmax(-1) if side == "first" else behind)


def test_a_value_without_dimensions_follows_the_other_operand_to_its_device() -> None:
    host, there = torch.tensor(3), torch.empty(5, dtype=torch.int64, device="meta")
    for name in ("min", "max"):
        for pair in ((host, there), (there, host), (3, there), (there, 3)):
            assert OPS[name].eager(*pair).device.type == "meta"
    for condition in (there > 2, torch.tensor(True)):
        assert OPS["where"].eager(condition, host, there).device.type == "meta"
        assert OPS["where"].eager(condition, there, host).device.type == "meta"
