"""The executor that is the emulator: what it is handed, and what it keeps."""

from __future__ import annotations

from typing import Any

import pytest

from flexfa4 import emulator
from flexfa4.kernels.compile.signature import Int32, Pointer, TensorMap
from flexfa4.kernels.launch.emulated import EmulatedExecutor, emulated_target
from flexfa4.kernels.launch.tensor_map import Tensor
from tests.compiled_kernels import compiled_kernel


class Loaded:
    """A kernel of the emulator that runs nothing, and keeps what it is given."""

    def __init__(self) -> None:
        self.given: list[dict[str, Any]] = []

    def run(self, **given: Any) -> int:
        self.given.append(given)
        return len(self.given)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Loaded:
    made = Loaded()
    monkeypatch.setattr(emulator, "load", lambda ptx, name: made)
    return made


def test_values_become_arguments_in_order_and_tensor_maps_are_encoded(loaded: Loaded) -> None:
    signature = (TensorMap("x", "bf16", box=(64, 8), swizzle=128), Pointer("out"), Int32("n"))
    kernel = compiled_kernel(signature=signature)
    tensor = Tensor(1 << 20, (64, 100), (128,))
    executor = EmulatedExecutor(schedule="late")
    executor.launch(kernel, (3, 1, 1), [tensor, 4096, 7], memory=(None,))
    (given,) = loaded.given
    encoded, *others = given["args"]
    assert isinstance(encoded, bytes) and len(encoded) == 128 and others == [4096, 7]
    assert given["grid"] == (3, 1, 1) and given["block"] == kernel.block
    assert given["shared_memory"] == kernel.smem_bytes and given["allocations"] == []
    assert given["schedule"] == "late"


def test_as_many_runs_are_kept_as_are_asked_for(loaded: Loaded) -> None:
    kernel = compiled_kernel(signature=())
    for most, kept in ((None, [1, 2, 3]), (1, [6])):
        executor = EmulatedExecutor(most)
        for _ in range(3):
            executor.launch(kernel, (1, 1, 1), [])
        found: list[Any] = list(executor.runs)
        assert found == kept


def test_a_capability_has_one_target() -> None:
    first, again, other = (emulated_target(c) for c in ((10, 0), (10, 0), (9, 0)))
    assert first is again and first is not other and first.capability == (10, 0)
