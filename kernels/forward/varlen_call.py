"""A call of packed sequences: from tensors and a request to a plan, and the values it is given.

What differs from other calls (`call`): tensors are given to the kernel with the axis of positions
twice (`flexfa4.primitives.ragged`), its work comes from a table (`flexfa4.kernels.varlen`), and
what is known of lengths is their total.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.frontend.binding import BoundGraph
from flexfa4.kernels.forward.architecture import AnyArchitecture
from flexfa4.kernels.forward.call import (
    ELEMENTS,
    CaptureValues,
    Outputs,
    PlannedCall,
    Template,
    captures_of,
    group_of,
    score_program,
)
from flexfa4.kernels.forward.plan import VariantPlan
from flexfa4.kernels.launch.tensor_map import Tensor
from flexfa4.kernels.request import Inputs, Request
from flexfa4.kernels.varlen.walk import walk_of
from flexfa4.primitives.ragged import sizes_and_strides
from flexfa4.primitives.tile_walk import TileShape

_POSITIONS: Final = (2, 1, 1, 2)  # axes of q, k, v and out, as tensor maps have them


@dataclass(frozen=True, eq=False)
class VarlenCall:
    """What a call of packed sequences is, but for its tensors.

    Attributes:
        request: everything but the mask.
        mask: of one sequence; None for none.
        sequences: how many there are.
    """

    request: Request
    mask: BoundGraph | None
    sequences: int


def plan_varlen(
    architecture: AnyArchitecture, call: VarlenCall, inputs: Inputs, tiling: Any
) -> PlannedCall | None:
    """Return what serves a call; None where the lengths would have to be known.

    Args:
        architecture: that it is for.
        call: the call.
        inputs: all sequences as one row, of a batch of 1.
        tiling: how work is cut.
    """
    request, mask = call.request, call.mask
    sizes = inputs.sizes._replace(batch=call.sequences)
    group = group_of(sizes, architecture.row_unit, mask is None or not _varies_by_head(mask))
    walk = walk_of(mask, TileShape(tiling.rows // group, tiling.keys, group), sizes)
    if walk is None:
        return None
    program, known = score_program(request.score, sizes, request.scale, any_length=True)
    plan = architecture.plan(
        tiling,
        element=ELEMENTS[inputs.q.dtype],
        head_dims=(inputs.q.shape[3], inputs.v.shape[3]),
        walk=walk.plan,
        score=program,
        score_captures=known,
        limit_captures=captures_of(walk.interval, sizes, any_length=True),
        sink=inputs.sink is not None,
        lse=request.return_lse,
        tau=request.choices.tau,
        varlen=True,
    )
    return PlannedCall(architecture, plan, walk, request.score, None)


def _varies_by_head(mask: BoundGraph) -> bool:
    return "h" in mask.graph.root.depends


class VarlenTemplate(Template):
    """The values of a call's signature, see `Template`."""

    def __init__(self, call: PlannedCall, inputs: Inputs, out: torch.Tensor) -> None:
        super().__init__(call, inputs, out)
        names = [parameter.name for parameter in call.plan.signature]
        own = [name.startswith("limit.") for name in names]
        at = own.index(True) if True in own else len(names)
        self._limit = CaptureValues(call.walk.interval, call.plan.limit_captures, at)

    def _maps(self, plan: VariantPlan, *tensors: Tensor) -> tuple[Tensor, ...]:
        maps, back = [], []
        for spec, tensor, axis in zip(plan.maps, tensors, _POSITIONS, strict=True):
            sizes, strides, distance = sizes_and_strides(
                tensor.sizes, tensor.strides, axis, spec.box[axis]
            )
            back.append(distance)
            maps.append(Tensor(tensor.address - distance, sizes, strides))
        self._back = tuple(back)
        return tuple(maps)

    def fill_varlen(
        self,
        inputs: Inputs,
        outputs: Outputs,
        request: Request,
        table: torch.Tensor,
        interval: BoundGraph | None,
    ) -> list[Any]:
        """Return the values of a call, see `Template.fill`.

        Args:
            inputs: in the form of those the template was made of.
            outputs: likewise.
            request: likewise.
            table: of work items.
            interval: of the mask, with what it captures.
        """
        values = self.fill(inputs, outputs, request)
        for i, distance in enumerate(self._back):
            address, sizes, strides = values[i]
            values[i] = (address - distance, sizes, strides)
        values[self._places["table"]] = table.data_ptr()
        if interval is not None:
            self._limit.fill(values, interval, inputs.q.data_ptr())
        return values
