"""The chapter of the error catalogue for matrix instructions and tensor memory.

Texts only: the core's ``matrices`` folder decides when something is wrong.
"""

from __future__ import annotations

from flexfa4.emulator.errors import EmulationError


class MatrixError(EmulationError):
    """A matrix instruction that hardware would not do, or not as it is meant."""


# ---- descriptors --------------------------------------------------------------------------------


class SharedDescriptorError(MatrixError):
    """A descriptor of a matrix in shared memory with a field that is not known."""

    found = "{who}: bits {field} of {operand} {descriptor} are {value}"
    allowed = "{allowed}"
    instead = "build the descriptor from the layout of the matrix; its fields are in the PTX ISA"


class InstructionDescriptorError(MatrixError):
    """An instruction descriptor with a field that is not known."""

    found = "{who}: bits {field} of idesc {descriptor} ({meaning}) are {value} for {kind}"
    allowed = "{allowed}"
    instead = "build idesc from the types and the shape; its fields are in the PTX ISA"


class MatrixLayoutError(MatrixError):
    """A layout that a matrix of this type cannot have."""

    found = "{who}: {operand} is {major}-major, in a layout that its type has not there"
    allowed = "{allowed}"
    instead = "lay the matrix out along its other dimension, or with another swizzle"


class MatrixLaneError(MatrixError):
    """An address of tensor memory in a lane where the operand cannot begin."""

    found = "{who}: {operand} begins at lane {lane} of tensor memory"
    allowed = "{allowed}"
    instead = "clear the upper 16 bits of the address, or set them to such a lane"


class ShiftShapeError(MatrixError):
    """`.ashift` with too few rows."""

    found = "{who}: .ashift with M = {m}, of which a block has fewer than 128 rows"
    allowed = "M = 128 with cta_group::1, M = 256 with cta_group::2"
    instead = "a larger M, or tcgen05.shift"


class ScaleDError(MatrixError):
    """A power of two for D that is too great."""

    found = "{who}: scale-input-d is {scale}"
    allowed = "0 to 15; D is divided by 2 to the power of it"
    instead = "scale D beforehand"


class ScaleCopiesError(MatrixError):
    """Block scales that are not the same in all parts of tensor memory."""

    found = (
        "{who}: scale {scale} of row {row} is {first} in one part of 32 lanes,"
        " and {other} from lane {part} on"
    )
    allowed = "the same scales in each of the parts, as tcgen05.cp with .warpx4 writes them"
    instead = "copy the scales to all lanes"


class NotOneThreadError(MatrixError):
    """An operation of the tensor core that several threads issue."""

    found = "{who}: {threads} threads execute it, and each would issue the whole operation"
    allowed = "one thread"
    instead = "elect one thread of the warp by elect.sync"


# ---- pairs of blocks ----------------------------------------------------------------------------


class NoPairError(MatrixError):
    """`cta_group::2` in a block that has no other one beside it."""

    found = "{who}: cta_group::2 in a cluster of {blocks} blocks"
    allowed = "blocks whose ranks differ in the last bit only"
    instead = "launch clusters with an even number of blocks, or use cta_group::1"


class MixedGroupsError(MatrixError):
    """Instructions for one block and for two in one kernel."""

    found = "{who}: cta_group::{group} after instructions with cta_group::{other}"
    allowed = "one cta_group in all tcgen05 instructions of a kernel"
    instead = "use cta_group::{other} here"


class PairColumnsError(MatrixError):
    """Blocks of a pair that ask for different numbers of columns."""

    found = "{who}: {columns} columns, and the other block of the pair asks for {others}"
    allowed = "the same number in both"
    instead = "pass the same number of columns"


class MulticastMaskError(MatrixError):
    """A mask with blocks that the cluster has not."""

    found = "{who}: the mask {mask} for a cluster of {blocks} blocks"
    allowed = "a bit for each block of the cluster"
    instead = "make the mask from the ranks of the blocks"


# ---- tensor memory ------------------------------------------------------------------------------


class TensorMemoryError(EmulationError):
    """Tensor memory that is used as it cannot be."""


class ColumnCountError(TensorMemoryError):
    """A number of columns that cannot be allocated."""

    found = "{who}: {columns} columns"
    allowed = "32, 64, 128, 256 or 512"
    instead = "round up to one of these"


class RelinquishedError(TensorMemoryError):
    """An allocation after the block gave up the right to it."""

    found = "{who}: an allocation after tcgen05.relinquish_alloc_permit"
    allowed = "allocations before it"
    instead = "allocate all columns first"


class DeallocationError(TensorMemoryError):
    """Columns given back that are no allocation."""

    found = "{who}: columns {columns} are given back with cta_group::{group}"
    allowed = "whole allocations: {allocations}"
    instead = "give back what tcgen05.alloc returned, once, with the same number of columns"


class TensorMemoryLeakError(TensorMemoryError):
    """A block that ends with columns allocated."""

    found = "{block} ended and had not given back {allocations}"
    allowed = "blocks that give back all columns"
    instead = "tcgen05.dealloc before the block ends"


class TensorBoundsError(TensorMemoryError):
    """Cells of tensor memory that do not exist."""

    found = "{who}: lanes {lanes}, columns {columns} of tensor memory"
    allowed = "lanes 0-127, columns 0-511"
    instead = "check the address: the lane is in its upper 16 bits, the column in the lower ones"


class UnallocatedColumnsError(TensorMemoryError):
    """An access to columns that nobody has allocated."""

    found = "{who}: columns {columns} of {block} are used, and not all are allocated"
    allowed = "{allocations}"
    instead = "allocate more columns, or stay within these"


class UninitialisedTensorError(TensorMemoryError):
    """A read of cells that nobody has written."""

    found = "{who}: lane {lane}, column {column} of {block} is read, and was never written"
    allowed = "reads of cells that tcgen05.st, tcgen05.cp or tcgen05.mma has written"
    instead = "write the cells first; the first product of a sum has enable-input-d false"


class TensorLanesError(TensorMemoryError):
    """A warp that reaches for lanes of another one."""

    found = "{who}: {lanes} lanes of tensor memory from lane {lane} on, by warp {warp}"
    allowed = "the warp's own 32 lanes, from lane {first} on; here an address with lane {allowed}"
    instead = "add (warp % 4) * 32 lanes, in the upper 16 bits of the address"
