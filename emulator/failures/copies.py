"""The chapter of errors of asynchronous copies: bulk copies, tensor copies, and their tensor maps.

What this module deliberately does not do: cover ``cp.async``, or what any access can do wrong;
the chapter of memory does.
"""

from __future__ import annotations

from flexfa4.emulator.errors import EmulationError


class CopyError(EmulationError):
    """A copy that cannot be done, or that the PTX ISA leaves undefined."""


# ---- what is copied where -----------------------------------------------------------------------


class CopyAlignmentError(CopyError, ValueError):
    """An address or a size that a copy cannot have."""

    found = "{who}: {what} is {value}"
    allowed = "multiples of {unit}"
    instead = "align the buffer, or pad it"


class CopyBarrierError(CopyError):
    """A copy that would complete on an mbarrier too far away."""

    found = "{who}: copies into {to}, and completes on an mbarrier of {barrier}"
    allowed = "an mbarrier in {allowed}"
    instead = "mapa of the mbarrier's address to the block of the destination"


class MulticastError(CopyError, ValueError):
    """A multicast to blocks that the cluster does not have."""

    found = "{who}: a multicast to the blocks {blocks} of a cluster of {size}"
    allowed = "a mask with at least one bit, and none beyond the blocks of the cluster"
    instead = "compute the mask from the cluster's shape"


class SameBlockError(CopyError):
    """A copy to another block that goes to the block itself."""

    found = "{who}: copies from shared memory of {block} to the same block"
    allowed = "destinations in another block of the cluster"
    instead = "ld.shared and st.shared, or mapa with the rank of another block"


class LoneBlockError(CopyError):
    """A remote operation in a cluster of one block."""

    found = "{who}: the cluster has one block only"
    allowed = "st.async and red.async in clusters of several blocks"
    instead = "a cluster dimension at the launch, or a plain store"


class ExitedDestinationError(CopyError):
    """Bytes that arrive in a block whose threads have exited."""

    found = "{who}: {what} would reach {block}, whose threads have exited"
    allowed = "exits after everything that is under way to a block has arrived"
    instead = "wait for the mbarrier before the end of the kernel, or meet at the cluster's barrier"


class ExitedSourceError(CopyError):
    """A copy from a block whose threads have exited."""

    found = "{who}: the copy reads shared memory of {block}, whose threads have exited"
    allowed = "exits after what a block copies has been read"
    instead = "cp.async.bulk.wait_group.read 0 before the end of the kernel"


# ---- tensor maps --------------------------------------------------------------------------------


class TensorMapPlaceError(CopyError):
    """A tensor map where copies cannot read one."""

    found = "{who}: a tensor map at the generic address {address}, in {space} memory"
    allowed = "addresses in global, const or param memory, that are multiples of 64"
    instead = "pass the map as a kernel's parameter, or copy it to global memory"


class TensorMapFieldError(CopyError, ValueError):
    """A tensor map with a field that is not supported, or that no encoder writes."""

    found = "{who}: a tensor map with {field}"
    allowed = "{allowed}"
    instead = "a tiled map, as CuTe-DSL's make_tiled_tma_atom or cuTensorMapEncodeTiled makes it"


class TensorRankError(CopyError, ValueError):
    """A copy with another number of coordinates than its map has axes."""

    found = "{who}: {dimensions} coordinates for a tensor map of rank {rank}"
    allowed = "as many coordinates as the map has axes"
    instead = "the form of the instruction for {rank}d"


class CoordinateError(CopyError, ValueError):
    """A box that begins where it cannot."""

    found = "{who}: coordinate {coordinate} of axis {axis}"
    allowed = "{allowed}"
    instead = "check the coordinates; a box may reach beyond the end of the tensor"


class ReductionTypeError(CopyError, TypeError):
    """A reduction of elements for which there is none."""

    found = "{who}: .{reduction} of elements of type {type}"
    allowed = ".{reduction} of {allowed}"
    instead = "another type in the tensor map"


class TensorMapSizeError(CopyError, ValueError):
    """A size that is not that of a tensor map."""

    found = "{who}: {size} bytes of a tensor map"
    allowed = "128, the size of every tensor map"
    instead = "128"


class TensorMapAxisError(CopyError, ValueError):
    """An axis that a field of a tensor map does not have."""

    found = "{who}: {field} of axis {axis}"
    allowed = "axes 0 to {most}; strides begin with that of axis 1, which is number 0"
    instead = "an axis of the tensor"


class TensorMapValueError(CopyError, ValueError):
    """A value that a field of a tensor map cannot have."""

    found = "{who}: {field} {value} for a tensor map"
    allowed = "{least} to {most}, in steps of {unit}"
    instead = "another value"
