"""The parameters of a kernel: tensor maps, pointers and numbers, in the order that we own.

A signature is the contract between who writes a kernel, who launches it and who keeps it in a file.
The compiler checks it against what was compiled (`flexfa4.kernels.compile.compiler`); launches pack
values by it (`flexfa4.kernels.launch.arguments`).

This module knows neither the driver nor CuTe-DSL: the limits of tensor maps below are the
hardware's ("Tensor Map Object Management" in CUDA's driver API; PTX ISA, "Tensors").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final

from flexfa4.kernels.compile.errors import TensorMapSpecError

MAX_RANK: Final = 5
MAX_BOX: Final = 256  # elements along an axis
UNIT: Final = 16  # bytes: of what a row of a box is a multiple
MAP_NBYTES: Final = 128
SWIZZLES: Final = (0, 32, 64, 128)
PROMOTIONS: Final = (0, 64, 128, 256)


@dataclass(frozen=True)
class Element:
    """A type of elements that tensor maps know.

    Attributes:
        nbytes: of an element.
        code: of enum CUtensorMapDataType.
        cute: how CuTe-DSL calls the format of its tensor maps.
        floating: NaN may fill what lies outside of the tensor.
    """

    nbytes: int
    code: int
    cute: str
    floating: bool = True


ELEMENTS: Final = {
    "u8": Element(1, 0, "U8", floating=False),
    "u32": Element(4, 2, "U32", floating=False),
    "f16": Element(2, 6, "F16_RN"),
    "f32": Element(4, 7, "F32_RN"),
    "bf16": Element(2, 9, "BF16_RN"),
}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel.

    Attributes:
        name: what messages and callers call it; unique in a signature.
    """

    name: str

    nbytes: ClassVar[int]
    alignment: ClassVar[int]
    ptx: ClassVar[str]  # its type in an entry's declaration
    format: ClassVar[str] = ""  # of module struct; empty for what has none


@dataclass(frozen=True)
class Pointer(Parameter):
    """An address in global memory; its value is an int."""

    nbytes = 8
    alignment = 8
    ptx = ".u64"
    format = "Q"


@dataclass(frozen=True)
class Int32(Parameter):
    """A signed number of 32 bits."""

    nbytes = 4
    alignment = 4
    ptx = ".u32"
    format = "i"


@dataclass(frozen=True)
class Int64(Parameter):
    """A signed number of 64 bits."""

    nbytes = 8
    alignment = 8
    ptx = ".u64"
    format = "q"


@dataclass(frozen=True)
class Float32(Parameter):
    """A number of type float."""

    nbytes = 4
    alignment = 4
    ptx = ".f32"
    format = "f"


@dataclass(frozen=True)
class TensorMap(Parameter):
    """A tensor that tensor copies read or write: what a kernel is compiled for.

    What a call adds, address, sizes and strides, is `flexfa4.kernels.launch.tensor_map.Tensor`.

    Attributes:
        element: a key of `ELEMENTS`.
        box: elements along each axis that one copy moves; the contiguous axis first.
        swizzle: bytes of a row of the swizzled order in shared memory; 0 for none.
        l2_promotion: bytes that a copy fetches to L2 at least; 0 for what it needs.
        nan_fill: elements of a box outside of the tensor are NaN, and not 0.

    Raises:
        TensorMapSpecError: for what no tensor map can say.
    """

    element: str
    box: tuple[int, ...]
    swizzle: int = 0
    l2_promotion: int = 128
    nan_fill: bool = False

    nbytes = MAP_NBYTES
    alignment = 64
    ptx = ".b8"

    def __post_init__(self) -> None:
        for holds, found, allowed in self._rules():
            if not holds:
                raise TensorMapSpecError(name=self.name, found_value=found, expected=allowed)

    def _rules(self) -> Iterator[tuple[bool, str, str]]:
        """Yield what has to hold, what was found, and what is allowed; later ones build on it."""
        yield self.element in ELEMENTS, f"elements {self.element!r}", ", ".join(ELEMENTS)
        yield self.swizzle in SWIZZLES, f"swizzle {self.swizzle}", f"one of {SWIZZLES}"
        yield (
            self.l2_promotion in PROMOTIONS,
            f"l2_promotion {self.l2_promotion}",
            f"one of {PROMOTIONS}",
        )
        yield 1 <= len(self.box) <= MAX_RANK, f"a box of {len(self.box)} axes", f"1 to {MAX_RANK}"
        yield (
            all(1 <= extent <= MAX_BOX for extent in self.box),
            f"box {self.box}",
            f"1 to {MAX_BOX} elements along each axis",
        )
        row = self.box[0] * self.row_element.nbytes
        yield row % UNIT == 0, f"rows of {row} bytes", f"a multiple of {UNIT} bytes"
        yield (
            not self.swizzle or row <= self.swizzle,
            f"rows of {row} bytes with swizzle {self.swizzle}",
            "rows no longer than the swizzle",
        )
        yield (
            not self.nan_fill or self.row_element.floating,
            f"NaN as fill of {self.element}",
            "NaN for floating-point types",
        )

    @property
    def row_element(self) -> Element:
        """What is known of its elements."""
        return ELEMENTS[self.element]

    @property
    def rank(self) -> int:
        """Number of axes, 1 to 5."""
        return len(self.box)


Signature = tuple[Parameter, ...]

_KINDS: Final = {kind.__name__: kind for kind in (Pointer, Int32, Int64, Float32, TensorMap)}


def to_data(signature: Signature) -> list[dict[str, Any]]:
    """Return a signature as lists, dicts and numbers, for a file."""
    return [{"kind": type(p).__name__, **asdict(p)} for p in signature]


def from_data(data: list[Mapping[str, Any]]) -> Signature:
    """Return the signature that `to_data` made this of."""
    return tuple(_read(entry) for entry in data)


def _read(entry: Mapping[str, Any]) -> Parameter:
    fields = {key: value for key, value in entry.items() if key != "kind"}
    if "box" in fields:
        fields["box"] = tuple(fields["box"])
    kind: type[Parameter] = _KINDS[entry["kind"]]
    return kind(**fields)
