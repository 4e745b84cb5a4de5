"""The chapter of errors of instructions in which the lanes of a warp see each other.

What this module deliberately does not do: cover barriers between warps.
"""

from __future__ import annotations

from flexfa4.emulator.errors import EmulationError


class WarpError(EmulationError):
    """A collective operation of a warp that its lanes do not agree on."""


class NotMemberError(WarpError):
    """A lane that executes a collective operation whose mask leaves it out."""

    found = "{who}: lanes {lanes} execute it with the member mask {members}, which leaves them out"
    allowed = "member masks that contain every lane that executes the instruction"
    instead = "add the lanes to the mask, or take the instruction into a branch of its members"


class DifferentMembersError(WarpError):
    """Members of one collective operation that have different masks."""

    found = (
        "{who}: the member mask {members} contains lane {other_lane},"
        " which executes the instruction with the mask {other_members}"
    )
    allowed = "one mask for all of its members"
    instead = "compute the mask once, before the branches, and use it in all lanes"
