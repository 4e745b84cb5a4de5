"""The tables of architectures agree with what the architectures say."""

from __future__ import annotations

import pytest

from flexfa4.kernels.architectures import BACKENDS, CAPABILITIES, architecture, named
from flexfa4.kernels.compile.compiler import ARCHITECTURES


@pytest.mark.parametrize("backend", sorted(set(BACKENDS.values())))
def test_an_architecture_is_what_the_tables_say(backend: str) -> None:
    known = architecture(backend)
    assert known.backend == backend
    assert list(known.names) == [name for name, of in BACKENDS.items() if of == backend]
    assert list(known.gpus.capabilities) == [c for c, of in CAPABILITIES.items() if of == backend]
    for capability, name in known.gpus.capabilities.items():
        assert known.name_of(capability) == name and known.capability_of(name) == capability
        assert named(name) is known


def test_there_are_kernels_for_all_that_is_compiled() -> None:
    assert set(BACKENDS) == set(ARCHITECTURES)


def test_the_gpus_are_named_in_messages() -> None:
    assert str(architecture("sm100").gpus) == (
        "tensors on a GPU of compute capability 10.0 or 10.3, such as a B200 or B300"
    )
