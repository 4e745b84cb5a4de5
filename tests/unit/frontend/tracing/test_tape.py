"""Mods recorded while Dynamo traces: the graph is that of an ordinary trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import flexfa4
from flexfa4.frontend.tracing import tape

TABLE = torch.arange(24.0).view(4, 6)
WIDE = torch.rand(2, 4, 9, 9)
OFFSET = flexfa4.kv_len - flexfa4.q_len + 1


@pytest.fixture(autouse=True)
def _no_compiled_code_is_left() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def recorded(mod: Callable[..., Any], kind: Any = "score", **how: Any) -> tape.Recorded:
    """Return what `record` gives while a function is compiled."""
    found: list[Any] = []

    @torch._dynamo.disable
    def keep(text: str, tensors: Any, ints: Any, floats: Any) -> None:
        found.append(tape.Recorded(text, tensors, ints, floats))

    def call(x: torch.Tensor) -> torch.Tensor:
        r = tape.record(mod, kind)
        keep(r.text, r.tensors, r.ints, r.floats)
        return x + 1

    torch.compile(call, backend="eager", **how)(torch.ones(2))
    return found[-1]


SAME: dict[str, Any] = {
    "operators": lambda s, b, h, i, j: -s + i * 2 - j / 3 + 1 / s + 2**s + s // 2 + 7 % (i + 1),
    "bits": lambda s, b, h, i, j: torch.where((i > 3) & ~(j < 2) | ((i ^ j) == 1), s, i << 2),
    "methods": lambda s, b, h, i, j: s.tanh().clamp(max=1.0).masked_fill(i.eq(j), 0.0) + i.float(),
    "functions": lambda s, b, h, i, j: torch.special.expit(s) + torch.nn.functional.softplus(s),
    "absolute values": lambda s, b, h, i, j: torch.where(abs(i - j) <= 3, abs(s), 0.0) + abs(i - j),
    "sizes": lambda s, b, h, i, j: s + (flexfa4.kv_len - flexfa4.q_len) // 2 + flexfa4.num_heads,
    "sizes computed before": lambda s, b, h, i, j: s * OFFSET,
    "a constant": lambda s, b, h, i, j: 3.0,
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_the_graph_is_that_of_a_trace(name: str) -> None:
    assert recorded(SAME[name]).text == str(flexfa4.trace(SAME[name]))


def test_views_of_captures_are_composed_and_vectors_fix_a_size() -> None:
    def mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + WIDE[b][h][i, j] + (TABLE[h] * TABLE[h, :]).sum(-1) + TABLE[h][1]

    for dynamic in (False, True):
        torch._dynamo.reset()
        found = recorded(mod, dynamic=dynamic)
        first, second, *rest = found.text.split("\n")
        assert (first, second) == ("tensor0: f32[_, _, _, _]", "tensor1: f32[_, 6]")
        assert found.tensors[0] is WIDE and found.tensors[1] is TABLE
        assert rest[-1] == "score + tensor0[b, h, q, kv] + sum(t0 * t0) + tensor1[h, 1]"


def test_computations_on_captures_alone_are_left_to_dynamo() -> None:
    found = recorded(lambda s, b, h, i, j: s * (TABLE.exp() + 1)[h, 0] * TABLE[1, 2])
    assert found.text == "tensor0: f32[_, _]\ntensor1: f32[]\nscore * tensor0[h, 0] * tensor1"
    assert torch.equal(found.tensors[0], TABLE.exp() + 1) and found.tensors[1].item() == 8.0


def test_numbers_are_constants_or_symbolic_as_dynamo_holds_them() -> None:
    rate, width = 0.5, 7

    def mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return torch.where(i - j < width, s * rate, 0.0)

    assert recorded(mod).text == "where(q - kv < 7, score * 0.5, 0.0)"
    torch._dynamo.reset()
    found = recorded(mod, dynamic=True)
    assert found.text.endswith("where(q - kv < int0, score * float0, 0.0)")
    assert (found.ints, found.floats) == ([7], [0.5])


def test_a_text_mod_may_be_called_inside() -> None:
    text = flexfa4.parse("score + table[h, 0] * w", table=TABLE, w=0.25)
    found = recorded(lambda s, b, h, i, j: text(s * 2, b, h, i, j) + 1)
    assert found.text == "tensor0: f32[_, _]\nscore * 2.0 + tensor0[h, 0] * 0.25 + 1.0"


def test_an_assignment_operator_gives_another_value() -> None:
    def mod(b: Any, h: Any, i: Any, j: Any) -> Any:
        keep = i >= j
        keep &= i - j < 5
        keep |= j == 0
        i ^= 1
        i <<= 2
        i >>= 1
        i += h
        return keep & (i > j)

    text = "((q >= kv) & (q - kv < 5) | (kv == 0)) & (((q ^ 1) << 2 >> 1) + h > kv)"
    assert recorded(mod, kind="mask").text == str(flexfa4.parse(text))


def test_a_constant_may_be_made_on_the_device_of_a_value() -> None:
    def mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        low = torch.tensor(-5.0, device=s.device)
        zero = torch.zeros((), device=i.device)
        return torch.where(i >= j, s + TABLE.to(s.device)[h, 0] + zero, low)

    found = recorded(mod)
    assert len(found.tensors) == 3 and found.tensors[0].device == TABLE.device


def test_a_value_tells_the_device_and_the_class_that_it_has_in_a_trace() -> None:
    def mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        told = (s.device.type, (i + j).device, isinstance(h, torch.Tensor))
        return s * 2 if told == ("cpu", torch.device("cpu"), True) else s * 3

    def only_compiled(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s * 3 if s.is_meta or s.is_cuda or not torch.is_tensor(i) else s * 2

    assert recorded(mod).text == str(flexfa4.trace(mod)) == "score * 2.0"
    assert recorded(only_compiled).text == "score * 2.0"


def test_captured_tensors_on_the_meta_device_are_captured() -> None:
    slopes = torch.ones(4, device="meta")
    assert recorded(lambda s, b, h, i, j: s * slopes[h]).tensors[0].is_meta


def test_what_was_read_from_a_table_may_be_changed() -> None:
    def mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        value = TABLE[h, 0]
        value += s
        return value

    assert recorded(mod).text.endswith("tensor0[h, 0] + score")


def doubled_in_place(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    s.mul_(2)
    return s


def doubled_by_another_name(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    other = s
    other *= 2
    return s + other


def changed_unseen(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    torch.relu_(s)
    return s


def without_gradient(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    with torch.no_grad():
        factor = TABLE[h, 0] * 2
    return s * factor


REFUSED: dict[str, tuple[Any, str]] = {
    "a change in place": (doubled_in_place, "`mul_` is not available"),
    "a change by another name": (doubled_by_another_name, "`mul_` is not available"),
    "a function in place": (lambda s, b, h, i, j: torch.exp_(s) * 1, "`exp_` is not available"),
    "a function in place, unseen": (changed_unseen, "`relu_` is not available"),
    "inplace=True": (lambda s, b, h, i, j: F.relu(s, True), "`relu_` is not available"),
    "random numbers": (lambda s, b, h, i, j: torch.rand_like(s), "made outside the mod"),
    "a part without gradient": (without_gradient, "`torch.no_grad` is not available"),
    "what Dynamo does alone": (lambda s, b, h, i, j: s.data + 1, "did not see it"),
    "sorting": (lambda s, b, h, i, j: torch.sort(s)[0], "`sort` is not available"),
    "one number": (lambda s, b, h, i, j: s * i.item(), "asks for one number"),
    "a truth": (lambda s, b, h, i, j: not s, "asks for one True or False"),
    "nothing": (lambda s, b, h, i, j: None, "returned None"),
    "a bool": (lambda s, b, h, i, j: i > j, "returned a bool"),
    "a change": (lambda s, b, h, i, j: TABLE.mul_(i), "changing the captured tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_told_with_the_users_line(name: str) -> None:
    mod, message = REFUSED[name]
    with pytest.raises(torch._dynamo.exc.TorchDynamoException) as caught:
        recorded(mod, fullgraph=False)
    assert message in str(caught.value) and "test_tape.py" in str(caught.value)


def test_an_ordinary_trace_runs_beside_a_compiled_function() -> None:
    def call(x: torch.Tensor) -> Any:
        offset = flexfa4.kv_len - flexfa4.q_len
        return x + 1, str(flexfa4.trace(lambda b, h, i, j: i + offset >= j))

    _, text = torch.compile(call, backend="eager")(torch.ones(1))
    assert text == str(flexfa4.parse("q + (kv_len - q_len) >= kv"))
