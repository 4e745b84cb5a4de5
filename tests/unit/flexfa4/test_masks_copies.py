"""Copies of block masks by pickle and deepcopy: equal, independent, small; damage is named."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4 import BlockMask, create_block_mask
from flexfa4.counters import stats
from flexfa4.errors import DamagedPickleError, PickleFormatError, StaleBlockMaskError
from flexfa4.masks.copies import FORMAT
from flexfa4.variants import Document, SlidingWindow, causal

G = torch.Generator().manual_seed(0)
LENGTH = 70
IDS = torch.randint(0, 5, (LENGTH,), generator=G).sort().values
FIRST = torch.tensor([0, 9, 30, 44, 50])
TABLE = torch.rand(2, LENGTH, LENGTH, generator=G) < 0.3
WINDOWS = torch.tensor([1, 9, 20, 64])
WINDOW = 11

MASKS: dict[str, Any] = {
    "variant": causal,
    "variant with a tensor": Document(IDS),
    "combination": causal & ~SlidingWindow(5) | Document(IDS),
    "text": "q >= kv and q - kv < 9",
    "text with bindings": flexfa4.parse("ids[q] == ids[kv] and q - kv < w", ids=IDS, w=30),
    "text and a variant": flexfa4.parse("ids[q] == ids[kv]", ids=IDS) & causal,
    "lambda": lambda b, h, q_idx, kv_idx: (q_idx - kv_idx).abs() < WINDOW,
    "batches and heads": lambda b, h, q_idx, kv_idx: TABLE[b, q_idx, kv_idx] & (h != 2),
    "heads": lambda b, h, q_idx, kv_idx: q_idx - kv_idx < WINDOWS[h],
    "a load of a load": lambda b, h, q_idx, kv_idx: FIRST[IDS[q_idx]] <= kv_idx,
    "sizes": lambda b, h, q_idx, kv_idx: q_idx * flexfa4.num_heads > kv_idx + flexfa4.kv_len // 3,
    "traced": flexfa4.trace(lambda b, h, q_idx, kv_idx: q_idx > kv_idx),
}
COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
}


def make(mask: Any) -> BlockMask:
    return create_block_mask(
        mask, batch=2, heads=4, q_len=LENGTH, kv_len=LENGTH, block_size=(16, 32)
    )


def attend(mask: Any) -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 4, LENGTH, 8, generator=g) for _ in range(3))
    return flexfa4.attention(q, k, v, block_mask=mask)


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", MASKS)
def test_a_copy_is_equal_and_serves_attention(name: str, how: str) -> None:
    made = make(MASKS[name])
    again = COPIES[how](made)
    assert type(again) is BlockMask and repr(again) == repr(made)
    assert torch.equal(again.to_dense(), made.to_dense())
    assert torch.equal(again.block_kinds(), made.block_kinds())
    for name in ("batch", "heads", "q_len", "kv_len", "shape", "block_size", "device", "density",
                 "captures_tensors", "counts_heads"):  # fmt: skip
        assert getattr(again, name) == getattr(made, name)
    again.check_current()
    assert torch.equal(attend(again), attend(made))


@pytest.mark.parametrize("how", COPIES)
def test_making_a_copy_evaluates_no_mask_and_calls_no_function(how: str) -> None:
    made = make(MASKS["batches and heads"])
    before = stats()
    attend(COPIES[how](made))
    counted = stats() - before
    assert (counted.block_lists, counted.traces) == (0, 0)


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_keeps_the_values_of_its_moment_when_the_captures_change(how: str) -> None:
    ids, window = IDS.clone(), 5
    mask: Any = lambda b, h, q, kv: (ids[q] == ids[kv]) & (q - kv < window)  # noqa: E731
    made = make(mask)
    again, dense = COPIES[how](made), made.to_dense()
    ids.zero_()
    window = 50
    with pytest.raises(StaleBlockMaskError):
        made.check_current()
    again.check_current()
    assert torch.equal(again.to_dense(), dense)
    other = create_block_mask(again.mask, q_len=40, kv_len=50)
    assert torch.equal(other.to_dense()[0, 0], dense[0, 0, :40, :50])


def test_a_stale_block_mask_is_copied_with_the_values_that_it_was_made_from() -> None:
    ids = IDS.clone()
    made = make(flexfa4.parse("ids[q] == ids[kv]", ids=ids))
    dense = made.to_dense()
    ids.zero_()
    again = copy.deepcopy(made)
    again.check_current()
    assert torch.equal(again.to_dense(), dense)


def test_the_mask_of_a_copy_is_the_text_with_its_values() -> None:
    again = copy.deepcopy(make(MASKS["lambda"]))
    assert isinstance(again.mask, flexfa4.Mod)
    assert str(again.mask) == "WINDOW: i32\nabs(q - kv) < WINDOW"
    assert again.mask.bind().scalars == (WINDOW,)


def test_the_tensors_of_a_copy_are_its_own() -> None:
    made = make(MASKS["variant with a tensor"])
    again = copy.deepcopy(made)
    addresses = [[t.data_ptr() for t in m._blocks.values.tensors.values()] for m in (made, again)]
    assert addresses[0] != addresses[1]
    assert copy.copy(made) is made


@pytest.mark.parametrize(
    ("mask", "runs"), [("q >= kv", 0), ("(q - kv) % 2 == 0 and q >= kv", 4096 // 16)]
)
def test_a_pickle_holds_captures_and_runs_of_blocks_but_nothing_that_calls_keep(
    mask: str, runs: int
) -> None:
    made = create_block_mask(mask, q_len=4096, kv_len=4096, block_size=16)
    before = len(pickle.dumps(made))
    q = torch.randn(1, 1, 4096, 8)
    flexfa4.attention(q, q, q, block_mask=made)
    assert len(pickle.dumps(made)) == before < 25 * runs + 2000


def test_a_pickle_holds_no_memory_of_runs_twice() -> None:
    runs = make(MASKS["batches and heads"]).__getstate__()["runs"]
    tensors = [t for t in runs.values() if isinstance(t, torch.Tensor)]
    assert len(tensors) == 4
    assert all(t.untyped_storage().nbytes() == t.nbytes > 0 for t in tensors)


def test_a_module_that_holds_a_block_mask_can_be_deepcopied() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ids: torch.Tensor
            self.register_buffer("ids", IDS.clone())
            self.block_mask = make(lambda b, h, q, kv: self.ids[q] == self.ids[kv])

    layer = Layer()
    again = copy.deepcopy(layer)
    layer.ids.zero_()
    again.block_mask.check_current()
    assert torch.equal(again.block_mask.to_dense()[0, 0], IDS[:, None] == IDS)


def test_torch_loads_a_block_mask_without_running_pickled_code() -> None:
    made = make(MASKS["combination"])
    file = io.BytesIO()
    torch.save({"mask": made}, file)
    with torch.serialization.safe_globals([BlockMask]):
        again = torch.load(io.BytesIO(file.getvalue()), weights_only=True)["mask"]
    assert torch.equal(again.to_dense(), made.to_dense())


def test_a_mask_without_captures_made_on_a_device_that_is_missing_comes_back_on_the_cpu() -> None:
    state = {**make(causal).__getstate__(), "device": "nowhere:3"}
    again = BlockMask.__new__(BlockMask)
    again.__setstate__(state)
    assert again.device == torch.device("cpu")
    assert torch.equal(again.to_dense(), make(causal).to_dense())


# ---- damage --------------------------------------------------------------------------------------


def read(name: str = "batches and heads", **changes: Any) -> BlockMask:
    mask = BlockMask.__new__(BlockMask)
    mask.__setstate__({**make(MASKS[name]).__getstate__(), **changes})
    return mask


def test_a_block_mask_of_another_format_is_refused_and_both_are_named() -> None:
    with pytest.raises(PickleFormatError, match=f"has format {FORMAT + 1}.*reads format {FORMAT}"):
        read(format=FORMAT + 1)


SIZES = {"batch": 2, "heads": 4, "q_len": LENGTH, "kv_len": LENGTH, "kv_heads": None}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"format": None}, "its format is not given"),
        ({"format": torch.ones(2)}, "its format is a Tensor"),
        ({"device": 3}, "its device is 3"),
        ({"mask": None}, "Mod is damaged"),
        ({"sizes": {"q_len": 3}}, "missing"),
        ({"sizes": {**SIZES, "q_len": -1}}, "q_len is -1"),
        ({"sizes": {**SIZES, "kv_heads": 0}}, "kv_heads is 0"),
        ({"sizes": {**SIZES, "q_len": 30}}, "its runs are none of 2 x 3 blocks"),
        ({"block_size": 8}, "block_size is 8"),
        ({"block_size": (16, 16)}, "its runs are none of 5 x 5 blocks"),
        ({"runs": {}}, "'offsets' is missing"),
        ({"runs": 7}, "not subscriptable"),
    ],
)
def test_a_block_mask_whose_parts_do_not_go_together_is_refused(
    changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(DamagedPickleError, match=problem):
        read(**changes)


def int_(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


RUNS: dict[str, Any] = {
    "width": 3,
    "offsets": torch.tensor([0, 2, 3]),
    "start": int_(0, 1, 0),
    "stop": int_(1, 3, 1),
    "kind": int_(2, 1, 1).to(torch.int8),
}


def read_runs(**changes: Any) -> BlockMask:
    """Read a state with runs of 2 x 3 blocks, for a mask that has no closed form."""
    state = create_block_mask("(q - kv) % 5 == 3", q_len=32, kv_len=48, block_size=16)
    mask = BlockMask.__new__(BlockMask)
    mask.__setstate__({**state.__getstate__(), "runs": {**RUNS, **changes}})
    return mask


def test_runs_are_read_as_they_are() -> None:
    assert read_runs().block_kinds().tolist() == [[[[2, 1, 1], [1, 0, 0]]]]


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": int_(2, 3, 1).to(torch.int8)},
        {"kind": int_(2, 1, 0).to(torch.int8)},
        {"kind": int_(2, 1, 1)},
        {"kind": int_(1, 1, 1).to(torch.int8)},  # two runs that are one
        {"start": int_(0, -1, 0)},
        {"start": int_(0, 0, 0)},
        {"start": int_(0, 1)},
        {"start": int_(0, 3, 0)},
        {"start": int_(0, 1, 0).view(3, 1)},
        {"stop": int_(1, 4, 1)},
        {"stop": int_(0, 3, 1)},
        {"stop": torch.tensor([1, 3, 1])},
        {"width": 4},
        {"offsets": torch.tensor([0, 2])},
        {"offsets": torch.tensor([0, 2, 4])},
        {"offsets": torch.tensor([1, 2, 3])},
        {"offsets": torch.tensor([0, 4, 3])},
        {"offsets": torch.tensor([0, -1, 3])},
        {"offsets": torch.tensor([0, 3, 3])},
        {"offsets": torch.tensor([0.0, 2.0, 3.0])},
    ],
)
def test_runs_that_are_none_of_the_mask_are_refused(changes: dict[str, torch.Tensor]) -> None:
    with pytest.raises(DamagedPickleError, match="its runs are none of 2 x 3 blocks"):
        read_runs(**changes)


def test_captures_that_are_too_short_for_the_sizes_are_found() -> None:
    state = make(MASKS["variant with a tensor"]).__getstate__()
    state["mask"]["tensors"] = {name: t[:-1] for name, t in state["mask"]["tensors"].items()}
    with pytest.raises(DamagedPickleError, match=r"has size 69 .* but was read at index 69"):
        read("variant with a tensor", **state)


def test_a_score_mod_is_no_mask_when_it_is_read_either() -> None:
    score = flexfa4.trace(lambda score, b, h, q_idx, kv_idx: score).__reduce__()[1][0]
    with pytest.raises(DamagedPickleError, match="score mod"):
        read(mask=score)


def test_a_missing_count_that_the_mask_reads_is_found() -> None:
    with pytest.raises(DamagedPickleError, match="heads was not given"):
        read("heads", sizes={**SIZES, "heads": None})
