"""Linear forms equal the expressions they came from, and what is proved of them is true."""

from __future__ import annotations

import itertools

import pytest

from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import (
    I32,
    Buffer,
    Node,
    Scalar,
    Search,
    const,
    load,
    scalar,
    search,
    symbol,
)
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.masks.solving.linear_forms import BeyondIntegersError, Form, Prover, form_of
from flexfa4.frontend.ops import apply
from flexfa4.frontend.text.printing import expression, parse_graph
from tests.leaves import KV, B, Q

W, C = scalar(Scalar("w", I32)), scalar(Scalar("c", I32))


def integer(text: str) -> Node:
    """Return an integer expression of q, kv, b, w and c."""
    root = parse_graph(f"w: i32; c: i32; ({text}) > -1", {}).graph.root
    return root.args[0]


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("q", "q"),
        ("3 - 5 - 0", "-2"),
        ("q + 3 - (kv - 4) - q", "7 - kv"),
        ("-(w - q) + 1", "q - w + 1"),
        ("w + q", "q + w"),  # positions first
        ("2 * (q - 3 * kv) - q", "q - kv * 6"),
        ("(q + 1) * (w - 2)", "q * w + w - q * 2 - 2"),
        ("(q << 3) - 8 * q + kv", "kv"),
        ("q // c * c + q % c + 1", "q + 1"),
        ("q // 4 * 8 + 2 * (q % 4)", "q * 2"),
        ("q % (w + 1) - q", "q % (w + 1) - q"),
        ("(q % (w + 1) + q // (w + 1) * (w + 1)) * 2 + kv", "kv + q * 2"),
    ],
)
def test_forms_gather_equal_terms(text: str, printed: str) -> None:
    assert expression(form_of(integer(text)).node) == printed


def test_products_with_the_index_that_is_solved_for_stay_whole() -> None:
    product = integer("(kv + 1) * w")
    assert form_of(product, "kv").terms == ((product, 1),)
    assert len(form_of(product, "q").terms) == 2


def test_a_number_beyond_64_bits_has_no_expression() -> None:
    with pytest.raises(BeyondIntegersError):
        _ = Form((), 2**63).node
    with pytest.raises(BeyondIntegersError):
        _ = Form(((Q, 2**64),)).node
    assert Form((), 2**63).shifted(-1).node is const(2**63 - 1)


DOC = Buffer("doc", I32, (None,))


@pytest.mark.parametrize(
    ("text", "positive"),
    [
        ("q + kv + 1", False),
        ("kv - kv", False),
        ("q - q // 4 * 4", False),
        ("q // 4 * 4 + 3 - q", False),
        ("q // c * c + c - 1 - q", True),
        ("q - q // c * c", True),
        ("c - 1 - q % c", True),
        ("w % c", True),
        ("max(q, w) - q", False),
        ("max(w, kv) - min(kv, c)", False),
        ("where(q < w, q, kv) + 2", False),
        ("q - min(w, min(q, c))", False),
    ],
)
def test_what_is_never_negative_is_proved(text: str, positive: bool) -> None:
    form = form_of(integer(text))
    assert Prover(frozenset({C} if positive else ())).never_negative(form)


UNPROVABLE = ("q - kv", "q - 1", "w", "min(q, w)", "q - max(q, w)", "q // 4 * 4 - q", "w // c")


@pytest.mark.parametrize("text", UNPROVABLE)
def test_what_may_be_negative_is_not_proved(text: str) -> None:
    assert not Prover(frozenset({C})).never_negative(form_of(integer(text)))


def test_a_quotient_proves_nothing_while_the_divisor_may_be_negative() -> None:
    assert not Prover().never_negative(form_of(integer("q - q // c * c")))


def test_every_proof_is_true_of_all_values() -> None:
    parts = ("q", "-kv", "q // c * c", "-(kv // 2 * 2)", "max(w, kv)", "-min(q, c)", "q % c", "c")
    lanes = Lanes((0, 1), (0, 1), (0, 9), (0, 9))
    proved = 0
    for texts in itertools.combinations(parts, 3):
        for constant in (-3, 0, 2):
            node = integer(" + ".join([*(f"({t})" for t in texts), f"({constant})"]))
            if not Prover(frozenset({C})).never_negative(form_of(node)):
                continue
            proved += 1
            for w, c in itertools.product((-4, 0, 5), (1, 2, 3)):
                scalars = {W.attr: w, C.attr: c}
                (found,) = Program((node,)).run(Values(scalars=scalars), lanes)
                assert int(found.min()) >= 0, (texts, constant, w, c)
    assert proved > 20


def test_a_proof_gives_up_rather_than_take_long() -> None:
    tangle = " - ".join(f"max(min(q - w * {i}, kv), min(c, q * {i}))" for i in range(2, 12))
    prover = Prover()
    assert not prover.never_negative(form_of(integer(tangle)))
    assert len(prover._proofs) < 10_000


def test_a_positions_own_value_is_found_around_it() -> None:
    def place(side: str, value: Node) -> Node:
        return search(Search(DOC, 0, side), (), value)  # type: ignore[arg-type]

    own, other = load(DOC, (Q,)), load(DOC, (apply("add", Q, W),))
    for side, at_least in (("first", False), ("below", False), ("end", True), ("through", True)):
        form = form_of(place(side, own)).plus(form_of(Q), -1).shifted(-1 if at_least else 0)
        assert Prover().never_negative(form.scaled(1 if at_least else -1))
        form = form_of(place(side, other)).plus(form_of(Q), -1)
        assert not Prover().never_negative(form)
        assert not Prover().never_negative(form.scaled(-1))


def test_lengths_and_batches_are_not_negative() -> None:
    assert Prover().never_negative(form_of(apply("add", symbol("kv_len"), B)))
    assert not Prover().never_negative(form_of(apply("sub", symbol("kv_len"), KV)))
