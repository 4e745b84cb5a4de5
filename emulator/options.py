"""How a launch is run: the order in which things happen, and what is checked.

What this module deliberately does not do: describe the launch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from flexfa4.emulator.failures.options import OptionError

SCHEDULES: Final = ("eager", "late", "random", "priority")
"""Orders in which warps and asynchronous operations take their turns, in the core's order.

``eager``: warps in turn, asynchronous operations at once.  ``late``: these only when nothing else
can go on.  ``random``: whatever a generator picks.  ``priority``: the warp of the highest priority
runs alone, in slices of a few instructions, and priorities change at random now and then.
"""

CHECKS: Final = ("races", "uninitialised")
"""What can be checked beyond what always is: conflicting accesses that nothing orders, and reads of
bytes that nobody wrote."""


@dataclass(frozen=True)
class Options:
    """How a launch is run.

    Attributes:
        schedule: one of `SCHEDULES`.
        seed: of what is random.
        check: of `CHECKS`, those that are done.
        workers: threads of the host; each runs clusters by itself.
        sms: blocks that are resident at once; None for the architecture's multiprocessors.
        max_instructions: of all warps, after which a launch is given up; None for no limit.
    """

    schedule: str = "eager"
    seed: int = 0
    check: frozenset[str] = frozenset(CHECKS)
    workers: int = 1
    sms: int | None = None
    max_instructions: int | None = None

    @classmethod
    def of(
        cls,
        schedule: str = "eager",
        seed: int = 0,
        check: Iterable[str] = CHECKS,
        workers: int = 1,
        sms: int | None = None,
        max_instructions: int | None = None,
    ) -> Options:
        """Return options as a caller gives them.

        Raises:
            OptionError: a value is none that the option has.
        """
        given: object = (check,) if isinstance(check, str) else check
        named = tuple(given) if isinstance(given, Iterable) else (given,)
        checks = frozenset(name for name in named if isinstance(name, str))
        rules = (
            ("schedule", schedule, schedule in SCHEDULES, f"one of {', '.join(SCHEDULES)}"),
            ("seed", seed, _whole(seed, 0, 2**64), "a whole number from 0 up to 2**64 - 1"),
            ("check", check, all(name in CHECKS for name in named), f"some of {', '.join(CHECKS)}"),
            ("workers", workers, _whole(workers, 1, 1025), "a whole number from 1 to 1024"),
            ("sms", sms, sms is None or _whole(sms, 1, 2**31), "a whole number from 1, or None"),
            (
                "max_instructions",
                max_instructions,
                max_instructions is None or _whole(max_instructions, 1, 2**63),
                "a whole number from 1, or None",
            ),
        )
        for name, value, holds, expected in rules:
            if not holds:
                raise OptionError(name=name, found_value=repr(value), expected=expected)
        return cls(schedule, seed, checks, workers, sms, max_instructions)


def _whole(value: object, start: int, stop: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and start <= value < stop
