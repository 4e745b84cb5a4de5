"""``&``, ``|`` and ``~`` between masks of every form, against the same on index tensors."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import flexfa4
from flexfa4 import MaskMod, compose, create_block_mask, mask, parse
from flexfa4.counters import stats
from flexfa4.errors import ArgumentError, ArityError, ModTruthError, ResultError
from flexfa4.variants import Document, SlidingWindow, Softcap, alibi, causal, softcap

BATCH, HEADS, Q_LEN, KV_LEN = 2, 3, 40, 50
IDS = torch.arange(KV_LEN) // 9
B, H, Q, KV = (
    torch.arange(n).view([-1] + [1] * (3 - i)) for i, n in enumerate((BATCH, HEADS, Q_LEN, KV_LEN))
)


def near(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (q_idx - kv_idx).abs() < 6 + h


def shifted(b: Any, h: Any, q_idx: Any, kv_idx: Any, by: int = 0) -> Any:
    return q_idx + by >= kv_idx


@dataclasses.dataclass(frozen=True)
class Every(MaskMod):
    """A mask of a user's own that combines like the ready-made ones."""

    step: int

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx + b) % self.step == 0


# form -> the mask, and its value on index tensors
PARTS: dict[str, tuple[Any, torch.Tensor]] = {
    "function": (near, near(B, H, Q, KV)),
    "lambda": (lambda b, h, q, kv: kv % 3 == 1, KV % 3 == 1),
    "text": ("q >= kv and q - kv < 20", (Q >= KV) & (Q - KV < 20)),
    "bound text": (parse("ids[q] == ids[kv]", ids=IDS), IDS[Q] == IDS[KV]),
    "traced": (flexfa4.trace(near), near(B, H, Q, KV)),
    "variant": (causal, Q >= KV),
    "variant with a tensor": (Document(IDS), IDS[Q] == IDS[KV]),
    "own class": (Every(4), (Q + B) % 4 == 0),
    "constant": ("q >= 0", torch.tensor(True)),
}


def dense(combined: Any) -> torch.Tensor:
    made = create_block_mask(combined, batch=BATCH, heads=HEADS, q_len=Q_LEN, kv_len=KV_LEN)
    return made.to_dense()


def full(expected: torch.Tensor) -> torch.Tensor:
    return expected.expand(BATCH, HEADS, Q_LEN, KV_LEN)


@pytest.mark.parametrize("left", PARTS)
@pytest.mark.parametrize("right", PARTS)
def test_two_masks_of_any_form_combine(left: str, right: str) -> None:
    (a, a_value), (b, b_value) = PARTS[left], PARTS[right]
    assert torch.equal(dense(mask(a) & b), full(a_value & b_value))
    assert torch.equal(dense(a | mask(b)), full(a_value | b_value))


@pytest.mark.parametrize("part", PARTS)
def test_a_mask_of_any_form_can_be_inverted_and_used_as_it_is(part: str) -> None:
    form, value = PARTS[part]
    assert torch.equal(dense(~mask(form)), full(~value))
    assert torch.equal(dense(~~mask(form)), full(value))
    assert torch.equal(dense(mask(form)), full(value))


Pair = tuple[Any, torch.Tensor]
parts = st.sampled_from(sorted(PARTS)).map(lambda name: (mask(PARTS[name][0]), PARTS[name][1]))


def nested(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    def both(x: Pair, y: Pair) -> Pair:
        return x[0] & y[0], x[1] & y[1]

    def either(x: Pair, y: Pair) -> Pair:
        return x[0] | y[0], x[1] | y[1]

    return st.one_of(
        st.builds(both, inner, inner),
        st.builds(either, inner, inner),
        inner.map(lambda x: (~x[0], ~x[1])),
    )


@given(st.recursive(parts, nested, max_leaves=8))
def test_masks_combine_to_any_depth(pair: Pair) -> None:
    combined, expected = pair
    assert torch.equal(dense(combined), full(expected))


def test_operators_bind_as_in_python() -> None:
    a, b, c = (mask(PARTS[name][0]) for name in ("lambda", "text", "own class"))
    x, y, z = (PARTS[name][1] for name in ("lambda", "text", "own class"))
    assert torch.equal(dense(a | b & c), full(x | (y & z)))
    assert torch.equal(dense((a | b) & c), full((x | y) & z))
    assert torch.equal(dense(~a & b), full(~x & y))


def test_a_combined_mask_can_be_called_on_tensors() -> None:
    combined = mask(near) & causal | ~SlidingWindow(30)
    expected = (near(B, H, Q, KV) & (Q >= KV)) | ~((Q >= KV) & (Q - KV < 30))
    assert torch.equal(combined(B, H, Q, KV), expected)


def test_attention_takes_a_combined_mask_and_follows_the_captures_of_its_parts() -> None:
    window = 4
    combined = mask(lambda b, h, q, kv: q - kv < window) & causal
    q, k, v = (torch.randn(1, HEADS, n, 16) for n in (Q_LEN, KV_LEN, KV_LEN))
    flexfa4.attention(q, k, v, block_mask=combined)
    before = stats()
    window = 9
    found = flexfa4.attention(q, k, v, block_mask=combined)
    assert (stats() - before).traces == 0
    seen = (Q - KV < 9) & (Q >= KV)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("flag", [True, False])
def test_a_mask_that_does_not_depend_on_the_scores_can_be_inverted(flag: bool) -> None:
    number = 1 if flag else 0
    for constant in (lambda b, h, q, kv: flag, lambda b, h, q, kv: number > 0):
        assert torch.equal(dense(~mask(constant)), full(torch.tensor(not flag)))
        assert torch.equal(dense(causal & ~mask(constant)), full((Q >= KV) & (not flag)))
        assert (~mask(constant))(B, H, Q, KV) is (not flag)


def test_a_binding_may_have_any_name() -> None:
    assert torch.equal(dense(mask("q - kv < function", function=7)), full(Q - KV < 7))


def test_a_text_gets_its_bindings() -> None:
    assert torch.equal(dense(mask("q - kv < w", w=7)), full(Q - KV < 7))


def test_masks_of_equal_parts_are_equal() -> None:
    assert (mask(near) & causal) == (mask(near) & causal)
    assert hash(~SlidingWindow(3)) == hash(~SlidingWindow(3))
    assert (mask(near) & causal) != (mask(near) | causal)


def test_a_mask_that_combines_already_stays_itself() -> None:
    assert mask(causal) is causal


@pytest.mark.parametrize("combine", [lambda x: causal & x, lambda x: x | causal, mask])
@pytest.mark.parametrize("operand", [None, 3, torch.ones(3, dtype=torch.bool), [near]])
def test_what_is_no_mask_is_refused(combine: Callable[[Any], Any], operand: Any) -> None:
    with pytest.raises(ArgumentError, match="an operand of"):
        combine(operand)


def test_a_part_that_returns_numbers_is_refused_by_its_own_name() -> None:
    def bits(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx - kv_idx

    for combined in (mask(bits) & causal, causal | bits, ~mask(bits), mask(bits)):
        with pytest.raises(ResultError, match="`bits` returned an integer"):
            dense(combined)


@pytest.mark.parametrize(
    ("result", "named"),
    [(None, "None"), (1, "an integer"), (1.5, "a float"), ((True, True), "a tuple")],
)
def test_a_part_that_returns_no_condition_is_refused_by_its_own_name(
    result: Any, named: str
) -> None:
    def part(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return result

    for combined in (~mask(part), causal & part, part | causal):
        with pytest.raises(ResultError, match=f"`part` returned {named}"):
            dense(combined)


@dataclasses.dataclass(frozen=True)
class Number(MaskMod):
    """A class of a user's own that does not return a condition."""

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx - kv_idx


def test_an_own_class_that_returns_numbers_is_refused_by_its_own_name() -> None:
    for combined in (~Number(), Number() & causal, causal | Number()):
        with pytest.raises(ResultError, match="`Number` returned an integer"):
            dense(combined)


def test_a_class_is_no_mask_but_its_instance_is() -> None:
    with pytest.raises(ArgumentError, match=r"an instance: SlidingWindow\(window=\.\.\.\)"):
        causal & SlidingWindow  # type: ignore[operator]
    with pytest.raises(ArgumentError, match=r"an instance: Causal\(\)"):
        type(causal) | SlidingWindow(3)


def test_a_function_with_neither_kinds_parameters_is_refused_when_it_is_combined() -> None:
    with pytest.raises(ArityError, match="takes 2 parameters"):
        causal & (lambda q, kv: q > kv)  # type: ignore[operator]


def test_a_module_is_refused_by_the_parameters_of_its_forward() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return score * 2

    with pytest.raises(ArityError, match="`Identity` takes 1 parameters"):
        causal & torch.nn.Identity()
    with pytest.raises(ArgumentError, match="is a score mod"):
        flexfa4.mask(Scaled())
    with pytest.raises(ArityError, match="`Identity` takes 1 parameters"):
        flexfa4.compose(torch.nn.Identity())


def test_parameters_with_defaults_do_not_make_a_mask_a_score_mod() -> None:
    assert torch.equal(
        dense(causal & (lambda b, h, q, kv, w=3: q - kv < w)), dense(SlidingWindow(3))
    )


@pytest.mark.parametrize("left", ["bound text", "traced"])
@pytest.mark.parametrize("right", PARTS)
def test_what_trace_and_parse_return_combines_as_it_is(left: str, right: str) -> None:
    (a, a_value), (b, b_value) = PARTS[left], PARTS[right]
    assert torch.equal(dense(a & b), full(a_value & b_value))
    assert torch.equal(dense(b | a), full(a_value | b_value))
    assert torch.equal(dense(~a), full(~a_value))


def test_masks_combine_inside_a_mod_too() -> None:
    window = SlidingWindow(9)
    inside = lambda b, h, q, kv: (causal & ~window | mask(near))(b, h, q, kv)  # noqa: E731
    expected = (Q >= KV) & ~((Q >= KV) & (Q - KV < 9)) | near(B, H, Q, KV)
    assert torch.equal(dense(inside), full(expected))


# ---- score mods ----------------------------------------------------------------------------------

SCORE = torch.randn(BATCH, HEADS, Q_LEN, KV_LEN, generator=torch.Generator().manual_seed(0))


def doubled(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return 2 * score


def by_head(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + h


SCORE_MODS: dict[str, tuple[Any, Callable[[torch.Tensor], torch.Tensor]]] = {
    "function": (doubled, lambda s: 2 * s),
    "lambda": (lambda score, b, h, q, kv: score - q, lambda s: s - Q),
    "text": ("score * (kv + 1)", lambda s: s * (KV + 1)),
    "bound text": (parse("score + x", x=1.5), lambda s: s + 1.5),
    "traced": (flexfa4.trace(by_head), lambda s: s + H),
    "variant": (Softcap(3.0), lambda s: 3 * torch.tanh(s / 3)),
}


@pytest.mark.parametrize("form", SCORE_MODS)
def test_score_mods_of_any_form_are_applied_in_their_order(form: str) -> None:
    f, value = SCORE_MODS[form]
    q, k = SCORE, torch.eye(KV_LEN).expand(BATCH, HEADS, -1, -1)  # so that q @ k^T is SCORE
    for mod, right in (
        (compose(f, doubled), 2 * value(SCORE)),
        (compose(doubled, f), value(2 * SCORE)),
    ):
        _, lse = flexfa4.attention(q, k, k, score_mod=mod, scale=1.0, return_lse=True)
        torch.testing.assert_close(lse, torch.logsumexp(right, -1))


def test_a_composition_may_be_long_nested_and_called_on_tensors() -> None:
    composed = compose(compose(doubled, by_head), doubled)
    assert composed == compose(doubled, by_head, doubled)
    assert torch.equal(composed(SCORE, B, H, Q, KV), 2 * (2 * SCORE + H))
    assert str(flexfa4.trace(compose(doubled))) == "score * 2.0"


def test_a_composition_follows_the_captures_of_its_parts_and_passes_their_gradients() -> None:
    factor, bias = 2.0, torch.zeros(HEADS, requires_grad=True)
    composed = compose(
        lambda score, b, h, q, kv: factor * score, lambda score, b, h, q, kv: score + bias[h]
    )
    q = torch.randn(1, HEADS, 8, 4)
    flexfa4.attention(q, q, q, score_mod=composed)
    before = stats()
    factor = 3.0
    _, lse = flexfa4.attention(q, q, q, score_mod=composed, scale=1.0, return_lse=True)
    assert (stats() - before).traces == 0
    torch.testing.assert_close(lse, torch.logsumexp(3 * (q @ q.mT), -1))
    (grad,) = torch.autograd.grad(lse.sum(), bias)
    torch.testing.assert_close(grad, torch.full((HEADS,), 8.0))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (causal, r"a mask(.|\n)*block_mask=mask"),
        ("q >= kv", "a mask"),
        (parse("q >= kv"), "a mask"),
        (lambda b, h, q, kv: q >= kv, "a mask"),
        (Softcap, r"the class Softcap(.|\n)*an instance: Softcap\(cap="),
        (None, "None"),
        (torch.zeros(3), "a Tensor of shape"),
    ],
)
def test_what_is_no_score_mod_is_refused(part: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=rf"a part of compose\(\) is {message}"):
        compose(doubled, part)


def test_a_composition_of_nothing_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"compose\(\) is called without score mods"):
        compose()


def test_a_part_that_returns_no_number_is_refused_by_its_own_name() -> None:
    def nothing(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return None

    with pytest.raises(ResultError, match="`nothing` returned None"):
        flexfa4.trace(compose(doubled, nothing, by_head))


@pytest.mark.parametrize("operator", ["&", "|", "~"])
def test_operators_between_score_mods_say_how_to_compose_them(operator: str) -> None:
    actions: dict[str, Callable[[], Any]] = {
        "&": lambda: alibi & softcap,  # type: ignore[operator]
        "|": lambda: softcap | (lambda score, b, h, q, kv: score),  # type: ignore[operator]
        "~": lambda: ~parse("score * 2"),
    }
    with pytest.raises(ArgumentError, match=r"is a score mod(.|\n)*flexfa4.compose\("):
        actions[operator]()


# ---- score mods among masks ----------------------------------------------------------------------


@pytest.mark.parametrize("score_mod", [alibi, lambda score, b, h, q, kv: score])
def test_a_score_mod_is_refused_with_how_to_combine_score_mods(score_mod: Any) -> None:
    for combine in (lambda: score_mod & causal, lambda: causal | score_mod):
        with pytest.raises(ArgumentError, match=r"is a score mod(.|\n)*flexfa4.compose\("):
            combine()


def test_a_score_mod_is_no_mask() -> None:
    with pytest.raises(ArgumentError, match="an operand of & is a score mod"):
        causal & parse("score * 2")
    with pytest.raises(ArgumentError, match=r"an operand of mask\(\) is a score mod"):
        mask("score * 2")


# ---- and, or, not --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [mask(near), causal, causal & near, ~causal, parse("q >= kv")])
def test_python_logic_on_a_mask_of_any_form_is_refused_and_not_dropped(form: Any) -> None:
    actions: dict[str, Callable[[], Any]] = {
        "form & causal": lambda: form and causal,
        "form | causal": lambda: form or causal,
        "~form": lambda: not form,
        "form is not None": lambda: causal if form else None,
    }
    for instead, action in actions.items():
        with pytest.raises(ModTruthError, match="`form` is a mask") as caught:
            action()
        if sys.version_info >= (3, 11):  # before, the place is known by its line only
            assert str(caught.value).endswith(f"instead: {instead}")


@pytest.mark.parametrize("form", [alibi, compose(alibi, softcap), parse("score * 2")])
def test_python_logic_on_a_score_mod_is_refused(form: Any) -> None:
    with pytest.raises(ModTruthError, match=r"`form` is a score mod(.|\n)*flexfa4.compose\("):
        form and softcap  # noqa: B018
    with pytest.raises(ModTruthError):
        bool(form)


@pytest.mark.parametrize("form", [causal, causal & near, parse("q >= kv"), flexfa4.trace(near)])
def test_python_logic_on_a_mask_that_a_mask_captures_is_refused(form: Any) -> None:
    with pytest.raises(ModTruthError):
        flexfa4.trace(lambda b, h, q, kv: (form and mask(near))(b, h, q, kv), "mask")
    together = flexfa4.trace(lambda b, h, q, kv: (form & mask(near))(b, h, q, kv), "mask")
    assert torch.equal(dense(together), dense(mask(form) & near))


# ---- how they print ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mod", "text"),
    [
        (mask(near), "mask(near)"),
        (mask(functools.partial(shifted, by=2)), "mask(partial(shifted, by=2))"),
        (causal & ~SlidingWindow(4), "Causal() & ~SlidingWindow(window=4)"),
        (causal & (causal | near), "Causal() & (Causal() | mask(near))"),
        (causal & near | causal, "Causal() & mask(near) | Causal()"),
        (causal | (causal | near), "Causal() | (Causal() | mask(near))"),
        (~(causal & near), "~(Causal() & mask(near))"),
        (mask("q >= kv"), "mask(parse('q >= kv'))"),
        (parse("kv - q < w", w=3), "parse('kv - q < w', w=3)"),
        (flexfa4.trace(near), "trace(near)"),
        (compose(softcap, Softcap(2.0)), "compose(Softcap(cap=50.0), Softcap(cap=2.0))"),
    ],
)
def test_a_mod_prints_as_it_is_written(mod: Any, text: str) -> None:
    assert repr(mod) == text


def test_a_text_prints_its_tensors_by_their_shapes() -> None:
    packed = parse("d = ids[q] - ids[kv]; d * d < 1", ids=IDS)
    assert repr(packed).endswith("t0 * t0 < 1', ids=a Tensor of shape (50,))")
