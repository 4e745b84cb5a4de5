"""The table of devices: as many as there are architectures whose PTX is read."""

from __future__ import annotations

import pytest

from flexfa4.emulator.host.architectures import ARCHITECTURES, architecture
from flexfa4.emulator.host.errors import UnknownArchitectureError
from flexfa4.emulator.ptx.architectures import ALL


def test_there_is_a_device_for_every_architecture_whose_ptx_is_read() -> None:
    assert set(ARCHITECTURES) == ALL


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_name_and_its_compute_capability_agree(name: str) -> None:
    major, minor = architecture(name).capability
    assert name == f"sm_{major}{minor}a"


@pytest.mark.parametrize("name", ["sm_80", "sm_100", "", None, 90])
def test_another_name_is_refused_with_those_there_are(name: object) -> None:
    with pytest.raises(UnknownArchitectureError, match="sm_100a"):
        architecture(name)
