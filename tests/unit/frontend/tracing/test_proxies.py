"""Traced values and captured tensors behave as the tensors that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from flexfa4.errors import IndexingError, OperandError, UnsupportedFunctionError
from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.tracing.proxies import Traced, as_node, inputs, kv_len, q_len
from flexfa4.frontend.tracing.trace import guards, resolve

B, H, Q, K = 2, 3, 5, 7


def dense(mod: Callable[..., Any]) -> torch.Tensor:
    """Evaluate a score mod through its graph for every b, h, q, kv, at score 0."""
    bound = resolve(mod, "score")
    values = Values(
        tensors=dict(zip(bound.graph.buffers, bound.tensors, strict=True)),
        scalars=dict(zip(bound.graph.scalars, bound.scalars, strict=True)),
        symbols={"q_len": Q, "kv_len": K},
        dtype=torch.float64,
    )
    score = torch.zeros(B, H, Q, K, dtype=torch.float64)
    (out,) = Program([bound.graph.root]).run(values, Lanes((0, B), (0, H), (0, Q), (0, K)), score)
    return torch.as_tensor(out, dtype=torch.float64).expand(B, H, Q, K)


def eager(mod: Callable[..., Any]) -> torch.Tensor:
    """Call the mod once for every b, h, q, kv."""
    out = torch.empty(B, H, Q, K, dtype=torch.float64)
    zero = torch.zeros((), dtype=torch.float64)
    for b, h, q, kv in torch.cartesian_prod(*(torch.arange(n) for n in (B, H, Q, K))):
        out[b, h, q, kv] = mod(zero, b, h, q, kv)
    return out


def table(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


FULL, PAIR, SLOPES, VECTORS = table(B, H, Q, K), table(Q, K), table(H), table(H, 4, K)
DOCUMENT = torch.tensor([0, 0, 1, 1, 2, 2, 2])

INDEXED: dict[str, Callable[..., Any]] = {
    "all axes": lambda s, b, h, q, kv: s + FULL[b, h, q, kv],
    "one axis after the other": lambda s, b, h, q, kv: s + FULL[b][h][q, kv],
    "last axis through ...": lambda s, b, h, q, kv: s + FULL[b, h, q][..., kv],
    "slice, then index": lambda s, b, h, q, kv: s + PAIR[:, kv][q],
    "shifted slice": lambda s, b, h, q, kv: s + PAIR[:, 2:][q, kv - 2] + PAIR[q][1:][kv - 1],
    "slice with a step, then index": lambda s, b, h, q, kv: s + PAIR[q, ::3][kv // 3],
    "slice of a slice": lambda s, b, h, q, kv: s + PAIR[q, 1:][1:][kv - 2],
    "negative indices count from the end": lambda s, b, h, q, kv: s + SLOPES[h - 3] + PAIR[q, -1],
    "negative index into a slice": lambda s, b, h, q, kv: s + PAIR[q, 1:][-1] + PAIR[q, 2:][q - 5],
    "constants": lambda s, b, h, q, kv: s + FULL[0, h, 1, kv] + SLOPES[1],
    "computed indices": lambda s, b, h, q, kv: s + PAIR[q // 2, (kv + q) % 7],
    "gather of a gather": lambda s, b, h, q, kv: s + SLOPES[DOCUMENT[kv]] * (DOCUMENT[q] == 1),
    "vector in the middle": lambda s, b, h, q, kv: s + VECTORS[h, :, q] @ VECTORS[h, :, kv],
    "vector by one index": lambda s, b, h, q, kv: s + PAIR[q].sum() * PAIR[q].amax(-1),
    "vector of vector elements": lambda s, b, h, q, kv: s + PAIR[q][DOCUMENT[kv]],
    "gather by a constant vector": lambda s, b, h, q, kv: s + PAIR[q, torch.tensor([2, 0])].sum(),
    "vector indices": lambda s, b, h, q, kv: s + (PAIR[q, DOCUMENT] * PAIR[q]).sum(-1),
    "select": lambda s, b, h, q, kv: s + PAIR.select(1, 2)[q] + torch.select(PAIR, 0, q)[kv],
    "one element": lambda s, b, h, q, kv: s + SLOPES[:1] * q,
    "0-dim tensor": lambda s, b, h, q, kv: s + SLOPES[1] * kv + torch.tensor(2.0) * q,
    "sizes": lambda s, b, h, q, kv: s + FULL.shape[-1] * q + PAIR[q].shape[0] + len(SLOPES),
    "number of axes": lambda s, b, h, q, kv: s + FULL.ndim * q + PAIR[q].ndim * 7,
    "bool table": lambda s, b, h, q, kv: s + torch.where((PAIR > 0)[q, kv], 1.0, -1.0),
    "None outside traced indices": lambda s, b, h, q, kv: s + SLOPES[None].squeeze(0)[h],
}  # fmt: skip


@pytest.mark.parametrize("name", INDEXED)
def test_indexing_reads_what_torch_reads(name: str) -> None:
    torch.testing.assert_close(dense(INDEXED[name]), eager(INDEXED[name]))


@pytest.mark.parametrize("name", ["all axes", "computed indices", "gather of a gather"])
def test_sizes_along_indexed_axes_stay_free(name: str) -> None:
    graph = resolve(INDEXED[name], "score").graph
    assert all(size is None for buffer in graph.buffers for size in buffer.shape)


def test_a_size_along_a_vector_is_part_of_the_trace() -> None:
    make = lambda t: lambda s, b, h, q, kv: s + t[q].sum(-1)  # noqa: E731
    assert resolve(make(table(5, 4)), "score").graph.buffers[0].shape == (None, 4)
    assert guards(make(table(9, 4)), "score") == ("t.shape[1] == 4",)
    assert resolve(make(table(5, 6)), "score").graph.buffers[0].shape == (None, 6)


def test_one_buffer_has_one_declaration_though_a_later_read_fixes_a_size() -> None:
    mod = lambda s, b, h, q, kv: s + PAIR[q, kv] + PAIR[q].sum(-1)  # noqa: E731
    assert [b.shape for b in resolve(mod, "score").graph.buffers] == [(None, K)]


REFUSED: list[tuple[str, Callable[..., Any], str]] = [
    ("too many indices", lambda s, b, h, q, kv: SLOPES[h, q], "at most 1 here"),
    ("too many in steps", lambda s, b, h, q, kv: SLOPES[h][q], "at most 0 here"),
    ("out of range", lambda s, b, h, q, kv: PAIR[q, 7], "which has size 7"),
    ("below range", lambda s, b, h, q, kv: PAIR[q, -8], "indices from -7 to 6"),
    ("out of range on the host", lambda s, b, h, q, kv: SLOPES[3], "size 3"),
    ("out of a slice", lambda s, b, h, q, kv: PAIR[q, 2:4][2], "which has size 2"),
    ("bool", lambda s, b, h, q, kv: SLOPES[h > 1], "dtype bool"),
    ("float", lambda s, b, h, q, kv: SLOPES[h / 2], "index.to(torch.int64), or //"),
    ("None", lambda s, b, h, q, kv: PAIR[None, q, kv], "index the captured tensor with None"),
    ("text", lambda s, b, h, q, kv: PAIR[q, "x"], "a str"),  # type: ignore[index]
    ("traced slice", lambda s, b, h, q, kv: PAIR[q, : kv + 1].sum(-1), "traced bounds"),
    ("empty slice", lambda s, b, h, q, kv: PAIR[q, 3:3].sum(-1), "an empty slice"),
    ("two axes left", lambda s, b, h, q, kv: s + FULL[b, h], "one axis left at most"),
    ("matrix in arithmetic", lambda s, b, h, q, kv: s + PAIR, "one index for each axis"),
    ("indexing a number", lambda s, b, h, q, kv: s[0], "one number"),
]


@pytest.mark.parametrize(("mod", "text"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_indexing_without_meaning_is_refused(mod: Callable[..., Any], text: str) -> None:
    with pytest.raises(IndexingError) as caught:
        resolve(mod, "score")
    assert text in str(caught.value)
    assert __file__ in str(caught.value)


def test_values_of_the_mod_look_like_tensors() -> None:
    score, _, _, q, _ = inputs("score")
    assert (score.dtype, q.dtype, (q > 1).dtype) == (torch.float32, torch.int64, torch.bool)
    assert (score.shape, score.ndim, score.requires_grad) == (torch.Size(()), 0, False)
    assert score.device == torch.device("cpu")
    assert not hasattr(score, "no_such_method")


def test_isinstance_holds_inside_a_mod_as_it_does_without_tracing() -> None:
    width, causal = 3, True

    def mod(s, b, h, q, kv):
        checks: list[Any] = [
            (s, torch.Tensor),
            (PAIR, torch.Tensor),
            (PAIR[q], (int, torch.Tensor)),
            (width, int),
            (width, (bool, float)),
            (causal, bool),
            (s, (int, float)),
        ]
        return s + sum(int(isinstance(x, kinds)) << i for i, (x, kinds) in enumerate(checks))

    assert str(resolve(mod, "score").graph) == "score + 47.0"


def test_sizes_can_be_used_outside_a_mod() -> None:
    offset = kv_len - q_len
    mod = lambda b, h, q, kv: q + offset >= kv  # noqa: E731
    assert str(resolve(mod, "mask").graph) == "q + (kv_len - q_len) >= kv"
    assert isinstance(offset, Traced)


def test_numbers_of_other_libraries_are_operands() -> None:
    np = pytest.importorskip("numpy")
    q = inputs("mask")[2]
    assert (np.float32(2) * q).node is (2.0 * q).node
    assert (q + np.int64(3)).node is (q + 3).node


def test_what_is_no_number_is_refused_as_an_operand() -> None:
    with pytest.raises(OperandError, match="a list"):
        as_node([1, 2])
    q = inputs("mask")[2]
    assert (q == None) is False  # noqa: E711 - as tensors do
    with pytest.raises(UnsupportedFunctionError, match=r"torch\.where"):
        q[...] = 3


def test_a_traced_constant_has_a_truth_value() -> None:
    assert bool(Traced(as_node(True))) and not Traced(as_node(0))


# ---- operators in place ------------------------------------------------------------------------


TABLE = torch.ones(4)


def score_by_another_name(s, b, h, q, kv):
    other = s
    other *= 2
    return s


def index_by_another_name(s, b, h, q, kv):
    before = q
    q //= 2
    return s + q * before


def element_by_another_name(s, b, h, q, kv):
    element = first = TABLE[h]
    element += s
    return first


@pytest.mark.parametrize(
    ("mod", "operator"),
    [
        (score_by_another_name, "*="),
        (index_by_another_name, "//="),
        (element_by_another_name, "+="),
    ],
)
def test_a_value_changed_by_another_name_is_not_read(mod: Any, operator: str) -> None:
    with pytest.raises(UnsupportedFunctionError, match=r"changed it by another") as caught:
        resolve(mod, "score")
    assert f"`{operator}`" in str(caught.value)


def test_operators_in_place_give_new_values_and_leave_numbers() -> None:
    def mod(s, b, h, q, kv):
        length, total = q_len, 0
        before = length
        length -= 1
        total += q
        s *= 2
        element = TABLE[h]
        element -= s
        return element + before * length + total

    assert str(resolve(mod, "score").graph).endswith(
        "TABLE[h] - score * 2.0 + q_len * (q_len - 1) + q"
    )
    assert str(q_len) == "q_len" and (q_len + 1).dtype is torch.int64


def test_functions_that_would_change_a_value_are_refused() -> None:
    for mod in (
        lambda s, b, h, q, kv: torch.nn.functional.relu(s, inplace=True),
        lambda s, b, h, q, kv: torch.nn.functional.elu(s, 1.0, True),
        lambda s, b, h, q, kv: torch.exp_(s),
    ):
        with pytest.raises(UnsupportedFunctionError, match=r"_` is not available"):
            resolve(mod, "score")


def test_is_tensor_is_refused_where_its_answer_would_be_wrong() -> None:
    with pytest.raises(UnsupportedFunctionError, match=r"isinstance\(x, torch.Tensor\)"):
        resolve(lambda s, b, h, q, kv: s * 2 if torch.is_tensor(q) else s, "score")
    assert str(resolve(lambda s, b, h, q, kv: s + torch.is_tensor(3), "score").graph)
