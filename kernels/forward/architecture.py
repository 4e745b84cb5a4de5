"""`Architecture`: what is particular to an architecture of GPUs in serving a call.

The way from a request to a launch is the same everywhere (`function`, `call`).  What differs is
behind this interface: how work is cut, how a plan is compiled, what is not served, and how to say
it.  The ones that there are: `flexfa4.kernels.architectures`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch

from flexfa4.kernels.compile.compiled_kernel import CompiledKernel
from flexfa4.kernels.forward.plan import VariantPlan
from flexfa4.kernels.launch.target import Target
from flexfa4.kernels.refusal import Refusal
from flexfa4.kernels.request import Choices, Request, Results, Tile
from flexfa4.primitives.exponentials import EmulatedFraction

Row = tuple[str, str]
"""A label and a text, for reports."""


@dataclass(frozen=True)
class Gpus:
    """The GPUs that kernels are for.

    Attributes:
        capabilities: compute capabilities, and what is compiled for each, such as ``sm_90a``.
        products: examples, in words.
        cached_bytes: of the L2 cache, what keys and values of a section of heads may take.
        multiprocessors: of the product; the order of work is made for so many.
    """

    capabilities: Mapping[tuple[int, int], str]
    products: str
    cached_bytes: int
    multiprocessors: int

    def __str__(self) -> str:
        shown = " or ".join("{}.{}".format(*capability) for capability in self.capabilities)
        return f"tensors on a GPU of compute capability {shown}, such as {self.products}"


class BackwardPass(Protocol):
    """The backward passes of the calls of one form."""

    def gradients(
        self,
        request: Request,
        inputs: Sequence[Any],
        results: Results,
        wanted: Sequence[bool],
    ) -> list[torch.Tensor | None]:
        """Return the gradient of each input; see `flexfa4.kernels.autograd.Backend`."""


P = TypeVar("P", bound=VariantPlan)
T = TypeVar("T")


def emulating(tiling: T, choices: Choices) -> T:
    """Return how work is cut, with the share of exponentials that a user wants emulated.

    Args:
        tiling: an architecture's dataclass, whose `emulated` says which are.
        choices: of the call.
    """
    if choices.emulated is None:
        return tiling
    return replace(tiling, emulated=EmulatedFraction.of(choices.emulated))  # type: ignore[type-var]


class Architecture(ABC, Generic[P, T]):
    """See the module; with the types of its plans, and of how work is cut.

    Attributes:
        backend: its name, see `flexfa4.kernels.backends`.
        gpus: that it is for.
        roles: of warps, in the order of `CompiledKernel.resources.register_budgets`.
        row_unit: rows of a tile that are moved together: they hold whole queries.
        halves: a tile of queries is worked on in two halves, which may be left out of a visit.
    """

    backend: ClassVar[str]
    gpus: ClassVar[Gpus]
    roles: ClassVar[tuple[str, ...]]
    row_unit: ClassVar[int]
    halves: ClassVar[bool] = False

    @property
    def names(self) -> tuple[str, ...]:
        """What kernels are compiled for, such as ``sm_90a``."""
        return tuple(self.gpus.capabilities.values())

    def name_of(self, capability: tuple[int, int]) -> str:
        """Return what is compiled for a compute capability that is served."""
        return self.gpus.capabilities[capability]

    def capability_of(self, name: str) -> tuple[int, int]:
        """Return the compute capability that is compiled for by a name."""
        return next(c for c, known in self.gpus.capabilities.items() if known == name)

    @abstractmethod
    def refused_head_dims(self, head_dims: tuple[int, int]) -> Refusal | None:
        """Return why head dims of q and v are not served; None where they are."""

    @abstractmethod
    def tiling(self, head_dims: tuple[int, int], tile: Tile, name: str) -> T | Refusal:
        """Return how work is cut before the variant is known, or why there is no way.

        Args:
            head_dims: of q and v, that are served.
            tile: what the user chose.
            name: what is compiled for.
        """

    @abstractmethod
    def tiling_of(self, plan: P, tile: Tile, name: str) -> T:
        """Return how the work of a plan is cut best: that of the plan, or another one.

        Args:
            plan: made with what `tiling` gave.
            tile: what the user chose: that stays.
            name: what is compiled for.
        """

    def fitting(self, plan: P, choices: Choices, name: str) -> T:
        """Return how the work of a plan is cut for a call.

        Args:
            plan: made with what `tiling` gave.
            choices: of the call.
            name: what is compiled for.
        """
        return emulating(self.tiling_of(plan, choices.tile, name), choices)

    @abstractmethod
    def plan(self, tiling: T, **variant: Any) -> P:
        """Return a plan: the attributes of `VariantPlan`, and how work is cut."""

    @abstractmethod
    def kernel(self, plan: P) -> Any:
        """Return what CuTe-DSL traces; it takes the tensor maps, and the other parameters."""

    def backwards(self, target: Target) -> BackwardPass | None:
        """Return new backward passes; None where there are no kernels for them.

        Args:
            target: where they are launched.
        """
        return None

    @abstractmethod
    def describe(self, plan: P, name: str) -> list[Row]:
        """Return rows about a plan."""

    def registers(self, kernel: CompiledKernel) -> dict[str, int]:
        """Return the registers of a thread of each warp role."""
        return dict(zip(self.roles, kernel.resources.register_budgets, strict=True))


AnyArchitecture = Architecture[Any, Any]
"""One of which it is not said which."""
