"""Where copies complete: multicasts, pairs of blocks, and blocks that have exited."""

from __future__ import annotations

import pytest

from flexfa4.emulator import EmulationError
from flexfa4.emulator.failures.copies import (
    CopyBarrierError,
    ExitedDestinationError,
    MulticastError,
)
from tests.copy_programs import NOTHING, ROW, SCHEDULES, Sent, alone, cast, load2, single


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("group", ["", ".cta_group::1"])
def test_a_multicast_reaches_the_same_place_in_each_block(group: str, schedule: str) -> None:
    found, run = Sent(cast(group), [128] * 4, mask=0b1111, sender=2).run(schedule=schedule)
    assert found == [ROW] * 4
    assert run.traffic.tensor_loaded == 128
    assert run.traffic.multicast == 3 * 128


def test_a_multicast_reaches_only_the_blocks_of_its_mask() -> None:
    found, _ = Sent(cast(""), [128, 0, 0, 128], mask=0b1001, sender=1).run()
    assert found == [ROW, NOTHING, NOTHING, ROW]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("parity", [0, 1])
def test_pairs_of_blocks_complete_on_the_even_or_the_odd_one(parity: int, schedule: str) -> None:
    expected = [256, 0, 256, 0] if parity == 0 else [0, 256, 0, 256]
    sent = Sent(cast(".cta_group::2"), expected, mask=0b1111, sender=3, bar=parity)
    assert sent.run(schedule=schedule)[0] == [ROW] * 4


@pytest.mark.parametrize("group", ["", ".cta_group::1", ".cta_group::2"])
def test_a_copy_may_go_to_another_block(group: str) -> None:
    found, _ = Sent(single(group), [0, 128], to=1, bar=1).run()
    assert found == [NOTHING, ROW]


def test_a_pair_may_wait_in_the_block_that_the_bytes_do_not_go_to() -> None:
    assert Sent(single(".cta_group::2"), [0, 128], bar=1).run()[0] == [ROW, NOTHING]
    own = "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
    code = own + ".cta_group::2 [a], [map, {0, 2}], [c4];"
    assert Sent(code, [0, 128], bar=1).run()[0] == [ROW, NOTHING]


@pytest.mark.parametrize(
    "sent,error,report",
    [
        (Sent(cast(""), [128] * 4), MulticastError, "the blocks 0x0 of a cluster of 4"),
        (Sent(cast(""), [128] * 2, mask=0b101), MulticastError, "the blocks 0x5 of a cluster"),
        (Sent(single(""), [128, 0], bar=1), CopyBarrierError, "the block of the destination"),
        (
            Sent(single(".cta_group::2"), [0, 0, 128, 0], bar=2),
            CopyBarrierError,
            "the pair of blocks",
        ),
    ],
)
def test_a_copy_into_the_wrong_block_is_refused(
    sent: Sent, error: type[EmulationError], report: str
) -> None:
    with pytest.raises(error, match=report):
        sent.run()


def test_a_copy_that_arrives_after_the_end_of_its_block_is_refused() -> None:
    with pytest.raises(ExitedDestinationError, match="have exited"):
        alone(load2(at=0, first="0, 0"), options={"schedule": "late"})
