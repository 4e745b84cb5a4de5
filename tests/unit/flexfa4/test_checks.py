"""Checks of a call's arguments: what passes, what does not, and that passing is remembered."""

from __future__ import annotations

import fractions
import math
import re
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4 import checks
from flexfa4.checks import check_backend, check_mod, check_tensors, checked_scale
from flexfa4.errors import (
    ArgumentError,
    BackendError,
    DeviceError,
    DTypeError,
    FlexFA4Error,
    ShapeMismatchError,
    SinkShapeError,
)

Shape = tuple[int, ...]


def tensors(
    q: Shape, k: Shape, v: Shape, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.zeros(q, dtype=dtype), torch.zeros(k, dtype=dtype), torch.zeros(v, dtype=dtype)


@pytest.mark.parametrize("dtype", checks.DTYPES)
@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8)),
        ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 3)),
        ((2, 4, 5, 8), (1, 1, 7, 8), (1, 1, 7, 8)),
        ((0, 4, 0, 1), (0, 4, 0, 1), (0, 4, 0, 1)),
    ],
)
def test_tensors_that_fit_pass(q: Shape, k: Shape, v: Shape, dtype: torch.dtype) -> None:
    check_tensors(*tensors(q, k, v, dtype), None)
    check_tensors(*tensors(q, k, v, dtype), torch.zeros(4, dtype=torch.float64))


@pytest.mark.parametrize(
    ("q", "k", "v", "problem"),
    [
        ((4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8), r"query has shape \(4, 5, 8\)"),
        ((2, 4, 5, 8), (2, 4, 7, 6), (2, 4, 7, 8), "head dimension"),
        ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 6, 8), "differ in length"),
        ((2, 4, 5, 8), (2, 4, 7, 8), (2, 2, 7, 8), "differ in number of heads"),
        ((2, 4, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), "4 query heads do not divide among 3"),
        ((2, 2, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8), "2 query heads do not divide among 4"),
        ((2, 4, 5, 8), (2, 0, 7, 8), (2, 0, 7, 8), "dimension of heads has size 0"),
        ((2, 4, 5, 8), (1, 4, 7, 8), (2, 4, 7, 8), "differ in batch"),
        ((1, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8), "a batch of 1 in query and of 2 in key"),
        ((2, 4, 5, 0), (2, 4, 7, 0), (2, 4, 7, 8), "head dimension has size 0"),
    ],
)
def test_shapes_that_do_not_fit_are_named(q: Shape, k: Shape, v: Shape, problem: str) -> None:
    for _ in range(2):  # what failed is not remembered
        with pytest.raises(ShapeMismatchError, match=problem):
            check_tensors(*tensors(q, k, v), None)


@pytest.mark.parametrize(
    ("q", "k", "advice"),
    [
        ((1, 3, 64, 8), (1, 2, 64, 8), "query = query[:, :2]"),
        ((1, 2, 64, 8), (1, 4, 64, 8), "key[:, :2]"),
        ((1, 63, 4, 8), (1, 64, 2, 8), "query.transpose(1, 2)"),
        ((1, 1, 4, 8), (1, 64, 2, 8), "query.transpose(1, 2)"),
    ],
)
def test_heads_that_do_not_divide_are_cut_unless_they_are_lengths(
    q: Shape, k: Shape, advice: str
) -> None:
    with pytest.raises(ShapeMismatchError, match=re.escape(advice)):
        check_tensors(*tensors(q, k, k), None)


@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.uint8]
)
def test_other_dtypes_are_refused(dtype: torch.dtype) -> None:
    shape = (1, 1, 2, 4)
    with pytest.raises(DTypeError, match="query, key and value of dtype"):
        check_tensors(*tensors(shape, shape, shape, dtype), None)


GOOD = (2, 4, 5, 8)


@pytest.mark.parametrize(
    ("sink", "error"),
    [
        (torch.zeros(4, 1), ShapeMismatchError),
        (torch.zeros(()), ShapeMismatchError),
        (torch.zeros(5), ShapeMismatchError),
        (torch.zeros(2), SinkShapeError),
        (torch.zeros(4, dtype=torch.int64), DTypeError),
        (torch.zeros(4, device="meta"), DeviceError),
        ([0.0] * 4, ArgumentError),
        (True, ArgumentError),
    ],
)
def test_sinks_that_do_not_fit_are_refused(sink: Any, error: type[FlexFA4Error]) -> None:
    check_tensors(*tensors(GOOD, GOOD, GOOD), torch.zeros(4))
    with pytest.raises(error, match="sink"):
        check_tensors(*tensors(GOOD, GOOD, GOOD), sink)


def test_a_sparse_tensor_is_refused_even_after_a_dense_one_of_its_shape_passed() -> None:
    q, k, v = tensors(GOOD, GOOD, GOOD)
    check_tensors(q, k, v, None)
    with pytest.raises(ArgumentError, match="value is a nested or sparse tensor"):
        check_tensors(q, k, v.to_sparse(), None)


@pytest.mark.parametrize("wrong", [None, 3, [[1.0]], "query", torch.Size((2, 4, 5, 8))])
def test_what_is_no_tensor_is_named(wrong: Any) -> None:
    good = torch.zeros(GOOD)
    for position, name in enumerate(("query", "key", "value")):
        arguments: Any = [good, good, good]
        arguments[position] = wrong
        with pytest.raises(ArgumentError, match=f"^{name} is "):
            check_tensors(arguments[0], arguments[1], arguments[2], None)


def test_what_is_remembered_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered: set[Any] = set()
    monkeypatch.setattr(checks, "_CHECKED", remembered)
    monkeypatch.setattr(checks, "_CHECKED_LIMIT", 8)
    for length in range(1, 40):
        shape = (1, 1, length, 4)
        check_tensors(*tensors(shape, shape, shape), None)
        assert 1 <= len(remembered) <= 8
    check_tensors(*tensors(GOOD, GOOD, GOOD), None)
    seen = len(remembered)
    check_tensors(*tensors(GOOD, GOOD, GOOD), None)
    assert len(remembered) == seen


# ---- scale, backend, mods ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "number"),
    [(None, 0.125), (2, 2.0), (-0.5, -0.5), (0, 0.0), (fractions.Fraction(1, 4), 0.25)],
)
def test_a_finite_number_is_a_scale(scale: Any, number: float) -> None:
    found = checked_scale(scale, 64)
    assert found == number and type(found) is float


@pytest.mark.parametrize(
    "scale", [math.nan, math.inf, -math.inf, 10**400, True, "0.5", 1j, torch.tensor(0.5), [1.0]]
)
def test_anything_else_is_not(scale: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^scale is "):
        checked_scale(scale, 64)


@pytest.mark.parametrize("scale", [1e39, -1e300, 2**200])
def test_a_scale_that_scores_of_fp32_would_not_be_finite_with_is_refused(scale: Any) -> None:
    with pytest.raises(ArgumentError, match="infinite in fp32"):
        checked_scale(scale, 64)


@pytest.mark.parametrize("backend", ["", "CPU", "cuda", None, 0, ["cpu"]])
def test_a_backend_that_does_not_exist_is_refused(backend: Any) -> None:
    with pytest.raises(BackendError, match="there is no backend"):
        check_backend(backend)


def test_functions_texts_and_traced_mods_can_be_mods() -> None:
    import flexfa4

    for mod in (lambda b, h, q, kv: q >= kv, "q >= kv", flexfa4.parse("q >= kv")):
        check_mod("block_mask", mod, "mask")
    with pytest.raises(ArgumentError, match=r"score_mod is a Tensor of shape \(3,\)"):
        check_mod("score_mod", torch.zeros(3), "score")


@pytest.mark.parametrize(
    ("kind", "advice"),
    [(flexfa4.variants.SlidingWindow, "SlidingWindow(window=...)"), (int, "int()")],
)
def test_a_class_in_place_of_a_mod_is_refused_with_how_to_make_one(kind: type, advice: str) -> None:
    x = torch.zeros(1, 1, 4, 4)
    for argument in ("score_mod", "block_mask"):
        with pytest.raises(flexfa4.errors.ArgumentError, match=re.escape(advice)):
            flexfa4.attention(x, x, x, **{argument: kind})  # type: ignore[call-overload]
