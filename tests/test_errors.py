"""What a user reads after a mistake: for every class of the catalogue, and every bad input.

Each row of `tests.mistakes.MISTAKES` is a small program with one mistake in it.  The tests hold its
message against a golden text, see that it comes before any arithmetic, survives pickling, and that
what the message says to write instead works when it is pasted into the program.
"""

from __future__ import annotations

import linecache
import operator
import pickle
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import flexfa4
from flexfa4 import errors
from flexfa4.errors import FlexFA4Error, Where
from flexfa4.flex import errors as flex_errors
from tests.mistakes import CALL, MISTAKES, TRACING, Mistake

FILE = "user_mods.py"
HAS_COLUMNS = sys.version_info >= (3, 11)  # before, an instruction knows its line only

# What code that knows nothing of the catalogue would catch.
USUAL: dict[type[Exception], tuple[type[FlexFA4Error], ...]] = {
    TypeError: (
        errors.ArityError,
        errors.BindingError,
        errors.CaptureError,
        errors.DTypeError,
        errors.DataDependentShapeError,
        errors.ModTruthError,
        errors.NotAFunctionError,
        errors.OperandError,
        errors.OutsideModError,
        errors.ResultError,
        errors.TracedBoolError,
        errors.TracedNumberError,
    ),
    ValueError: (
        errors.ArgumentError,
        errors.BlockMaskMismatchError,
        errors.DamagedPickleError,
        errors.DeviceError,
        errors.FakeBlockMaskError,
        errors.MappedAxisError,
        errors.MaskReadsBatchError,
        errors.MaskReadsKeyHeadsError,
        errors.PickleFormatError,
        errors.ShapeMismatchError,
        errors.TextSyntaxError,
        flex_errors.BlockListError,
        flex_errors.KernelOptionError,
    ),
    NotImplementedError: (
        errors.SecondDerivativeError,
        errors.TransformError,
        errors.UnsupportedFunctionError,
    ),
    RuntimeError: (errors.BackendError, errors.DemoProcessError, errors.StaleBlockMaskError),
    IndexError: (
        errors.BlockMaskIndexError,
        errors.IndexingError,
        errors.OutOfRangeError,
        flex_errors.BlockIndexError,
    ),
    AttributeError: (errors.UnknownAttributeError,),
    ImportError: (errors.MissingPackageError,),
    NameError: (errors.UnknownNameError,),
}


# ---- running them --------------------------------------------------------------------------------


def without(module: str) -> Any:
    """Pretend that a module is not installed."""
    return mock.patch.dict(sys.modules, {module: None})


def train_in_a_process_that_ends() -> None:
    """Train the demo's dense side in a process that ends at once."""
    from flexfa4.demo import train
    from flexfa4.demo.model import Shape

    shape = Shape(layers=1, heads=2, kv_heads=1, head_dim=8, window=32)
    job = train.Job("dense", 1, 1, 8, shape)
    with mock.patch.object(train, "_child", operator.is_):  # importable there, and sends nothing
        train.train_in_turn([job], lambda index: None)


def user_names() -> dict[str, Any]:
    """Return the variables of a program: batch 2, 4 query heads, 2 key heads, 8 x 12 scores."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, h, n, 16, generator=g) for h, n in ((4, 8), (2, 12), (2, 12)))
    return {
        "__name__": "user_mods",
        "torch": torch,
        "flexfa4": flexfa4,
        "attention": flexfa4.attention,
        "create_block_mask": flexfa4.create_block_mask,
        "mask": flexfa4.mask,
        "without": without,
        "train_in_a_process_that_ends": train_in_a_process_that_ends,
        "query": q.requires_grad_(),
        "key": k,
        "value": v,
        "ids": torch.arange(12) // 3,
        "bias": torch.zeros(12),
    }


def run(program: str) -> None:
    """Run a program as if it lay in a file of its own."""
    code = compile(program, FILE, "exec")
    lines = [line + "\n" for line in program.split("\n")]
    linecache.cache[FILE] = (len(program), None, lines, FILE)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The PyTorch API of nested tensors")
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)  # by forward mode
        exec(code, user_names())


def error_of(mistake: Mistake) -> FlexFA4Error:
    with pytest.raises(mistake.error) as caught:
        run(mistake.program)
    return caught.value


def instead(error: FlexFA4Error) -> str:
    """Return the last line of a message without its label; of several alternatives the first."""
    return str(error).rpartition("  instead: ")[2].partition("\n")[0]


def named(mistakes: Iterable[Mistake]) -> Any:
    rows = list(mistakes)
    return pytest.mark.parametrize("mistake", rows, ids=[m.name for m in rows])


@named(MISTAKES)
def test_the_message_of_a_mistake(mistake: Mistake, golden: Callable[[str, str], None]) -> None:
    error = error_of(mistake)
    assert type(error) is mistake.error
    if isinstance(error.where, Where) and error.where.file == FILE and not HAS_COLUMNS:
        pytest.skip("this Python does not say which part of a line is running")
    golden(mistake.name, f"{type(error).__name__}: {error}")


@named(m for m in MISTAKES if m.repaired)
def test_what_the_message_says_to_write_instead_works(mistake: Mistake) -> None:
    if mistake in TRACING and not HAS_COLUMNS:
        pytest.skip("this Python does not say which part of a line is running")
    run(mistake.repaired.replace("{instead}", instead(error_of(mistake))))


class Computed(TorchDispatchMode):
    """Counts the operations that belong to attention itself."""

    ARITHMETIC = frozenset({"mm", "bmm", "addmm", "baddbmm", "exp", "exp_", "exp2", "exp2_"})

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ in self.ARITHMETIC
        return func(*args, **(kwargs or {}))


@named(m for m in MISTAKES if not m.late)
def test_a_mistake_is_found_before_any_arithmetic(mistake: Mistake) -> None:
    with Computed() as computed:
        error_of(mistake)
    assert computed.count == 0


def test_the_arithmetic_of_a_right_call_is_seen() -> None:
    with Computed() as computed:
        run(CALL)
    assert computed.count >= 2


def leaves(base: type[FlexFA4Error] = FlexFA4Error) -> Iterator[type[FlexFA4Error]]:
    """Yield the classes that are raised: all but those that only group others."""
    for kind in base.__subclasses__():
        if kind.__module__ in (errors.__name__, flex_errors.__name__):  # tests define some, too
            yield from leaves(kind)
    if base.found != FlexFA4Error.found:
        yield base


def test_every_class_of_the_catalogue_has_a_golden_message() -> None:
    assert {m.error for m in MISTAKES} == set(leaves())


@pytest.mark.parametrize("kind", [*leaves()], ids=lambda kind: kind.__name__)
def test_a_class_of_the_catalogue_is_also_the_usual_python_exception(
    kind: type[FlexFA4Error],
) -> None:
    (usual,) = (python for python, groups in USUAL.items() if issubclass(kind, groups))
    assert issubclass(kind, usual)


@named(MISTAKES)
def test_an_error_survives_pickling(mistake: Mistake) -> None:
    if mistake.error is errors.DemoProcessError:
        error: FlexFA4Error = errors.DemoProcessError(side="dense", code=-9)
    else:
        error = error_of(mistake)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and str(copy) == str(error)
    assert copy.where == error.where and copy.fields == error.fields
