"""The score mods of the library refuse wrong parameters by name, and missing ones with advice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4 import variants
from flexfa4.errors import ArgumentError, DTypeError, FlexFA4Error
from flexfa4.variants import (
    ActivationScore,
    Alibi2D,
    AsymmetricAlibi,
    Deberta,
    Fire,
    ForgettingGate,
    GraphormerEdge,
    GraphormerSpatial,
    HeadScale,
    KerpleLog,
    KerplePower,
    MlaRope,
    PairBias,
    RelativeBias,
    Sandwich,
    ShawRelative,
    SwinBias,
    SymmetricAlibi,
    T5Bias,
)

ONES = torch.ones
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a list for a table": (lambda: T5Bias([[0.0]]), r"T5Bias.table is \[\[0.0\]\]"),  # type: ignore[arg-type]
    "a flat table": (lambda: T5Bias(ONES(32)), r"T5Bias.table is a tensor of shape \(32,\)"),
    "a table of ints": (lambda: T5Bias(ONES(8, 2).long()), "T5Bias.table is a tensor of torch.int"),
    "an odd table": (lambda: T5Bias(ONES(9, 2)), "T5Bias.table is a tensor of 9 buckets"),
    "one bucket": (lambda: T5Bias(ONES(1, 2), False), "T5Bias.table is a tensor of 1 buckets"),
    "far buckets without a range": (
        lambda: T5Bias(ONES(32, 2), max_distance=8),
        "T5Bias.max_distance is 8",
    ),
    "a direction in words": (lambda: T5Bias(bidirectional="no"), "T5Bias.bidirectional is 'no'"),  # type: ignore[arg-type]
    "one parameter of two": (lambda: KerpleLog(ONES(2)), "KerpleLog.r2 is None"),
    "parameters of other heads": (
        lambda: KerplePower(ONES(2), ONES(3)),
        r"KerplePower.r2 is a tensor of shape \(3,\)",
    ),
    "a threshold of zero": (lambda: Fire(threshold=0.0), "Fire.threshold is 0.0"),
    "a c for each head": (lambda: Fire(c=ONES(4)), r"Fire.c is a tensor of shape \(4,\)"),
    "weights of another width": (
        lambda: Fire(ONES(8, 1), ONES(7), ONES(2, 8), ONES(2)),
        r"Fire.b1 is a tensor of shape \(7,\)",
    ),
    "a network without ReLU": (
        lambda: Fire.from_mlp(torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Linear(4, 2))),
        r"Fire.from_mlp\(mlp\) is Sequential",
    ),
    "an odd number of dimensions": (lambda: Sandwich(dimensions=7), "Sandwich.dimensions is 7"),
    "no heads": (lambda: Sandwich(0), "Sandwich.num_heads is 0"),
    "slopes of one side": (lambda: AsymmetricAlibi(ONES(2)), "AsymmetricAlibi.later is None"),
    "slopes of two numbers of heads": (
        lambda: AsymmetricAlibi(ONES(2), ONES(3)),
        r"AsymmetricAlibi.later is a tensor of shape \(3,\)",
    ),
    "no heads on both sides": (lambda: SymmetricAlibi(0), "SymmetricAlibi.num_heads is 0"),
    "an image without columns": (lambda: Alibi2D(0), "Alibi2D.width is 0"),
    "no heads in 2-d": (lambda: Alibi2D(3, -1), "Alibi2D.num_heads is -1"),
    "gates without heads": (
        lambda: ForgettingGate(ONES(2, 9)),
        "ForgettingGate.log_gates is a ten",
    ),
    "logits without heads": (lambda: ForgettingGate.from_logits(ONES(9)), "logits.* is a tensor"),
    "a table without distances": (
        lambda: GraphormerSpatial(ONES(3, 2)),
        "GraphormerSpatial.distances is None",
    ),
    "a table of one row": (
        lambda: GraphormerSpatial.from_adjacency(ONES(1, 2), ONES(1, 3, 3)),
        "GraphormerSpatial.table is a tensor of 1 rows",
    ),
    "edges without lengths": (
        lambda: GraphormerEdge(ONES(3, 2, 4), ONES(1, 5, 5, 3).long()),
        "GraphormerEdge.lengths is None",
    ),
    "edges for another table": (
        lambda: GraphormerEdge(ONES(3, 2, 4), ONES(1, 5, 5, 2).long(), ONES(1, 5, 5).long()),
        r"GraphormerEdge.edges is a tensor of shape \(1, 5, 5, 2\)",
    ),
    "one graph alone": (
        lambda: GraphormerSpatial.from_adjacency(ONES(4, 2), ONES(3, 3)),
        r"adjacency is a tensor of shape \(3, 3\)",
    ),
    "rotary parts of two lengths": (
        lambda: MlaRope(ONES(1, 4, 5, 8), ONES(1, 1, 5, 6)),
        r"MlaRope.k_rope is a tensor of shape \(1, 1, 5, 6\)",
    ),
    "key heads that do not divide": (
        lambda: MlaRope(ONES(1, 4, 5, 8), ONES(1, 3, 5, 8)),
        "MlaRope.k_rope is a tensor of 3 heads, with q_rope of 4",
    ),
    "a scale of zero": (lambda: MlaRope(scale=0.0), "MlaRope.scale is 0.0"),
    "an activation by name": (lambda: ActivationScore("gelu"), "ActivationScore.activation is 'g"),  # type: ignore[arg-type]
    "no offset": (lambda: ActivationScore(offset=0.0), "ActivationScore.offset is 0.0"),
    "a window in one number": (lambda: SwinBias(None, 7), "SwinBias.window is 7"),  # type: ignore[arg-type]
    "a table of another window": (
        lambda: SwinBias(ONES(169, 4), (7, 8)),
        r"SwinBias.table is a tensor of shape \(169, 4\)",
    ),
    "a bias for keys alone": (lambda: PairBias(ONES(9)), r"PairBias.bias is a tensor of shape \(9"),
    "a factor for all heads": (lambda: HeadScale(ONES(())), r"HeadScale.factor is a tensor of sha"),
    "no largest factor": (lambda: HeadScale.from_log(ONES(2), most=0), r"from_log\(most\) is 0"),
    "a table without a middle": (lambda: RelativeBias(ONES(8, 2)), "RelativeBias.table is a tenso"),
    "vectors without a middle": (
        lambda: ShawRelative(ONES(1, 2, 3, 4), ONES(2, 8, 4)),
        "ShawRelative.table is a tensor of 8 rows",
    ),
    "an odd number of positions": (
        lambda: Deberta(ONES(1, 2, 3, 4), ONES(1, 2, 3, 4), ONES(2, 5, 4), ONES(2, 5, 4)),
        "Deberta.q_pos is a tensor of 5 positions",
    ),
    "positions of one kind": (
        lambda: Deberta(ONES(1, 2, 3, 4), ONES(1, 2, 3, 4), ONES(2, 6, 4)),
        "Deberta.k_pos is None",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_parameter_is_refused_by_name(name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises(ArgumentError, match=message):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda half, full: ShawRelative(half(1, 2, 3, 4), full(5, 4)),
        lambda half, full: Deberta(
            half(1, 2, 3, 4), half(1, 2, 3, 4), full(2, 6, 4), half(2, 6, 4)
        ),
    ],
)
def test_products_of_two_dtypes_are_refused(make: Any) -> None:
    with pytest.raises(DTypeError, match=r"bfloat16.*float32"):
        make(lambda *shape: ONES(shape).bfloat16(), ONES)


NEEDS_TENSORS = (
    "asymmetric_alibi", "deberta", "fire", "forgetting_gate", "graphormer_edge",
    "graphormer_spatial", "head_scale", "kerple_log", "kerple_power", "mla_rope", "pair_bias",
    "relative_bias", "shaw_relative", "swin_bias", "t5_bias",
)  # fmt: skip


@pytest.mark.parametrize("name", NEEDS_TENSORS)
def test_an_instance_without_tensors_says_what_to_write(name: str) -> None:
    instance = getattr(variants, name)
    first = dataclasses.fields(instance)[0].name
    kind = type(instance).__name__
    with pytest.raises(FlexFA4Error, match=rf"{kind}\.{first} is None") as caught:
        flexfa4.explain(instance)
    assert f"instead: {kind}" in str(caught.value)
