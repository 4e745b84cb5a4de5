"""`kernel_options`: what torch's options for its GPU kernels mean here.

Each is a row of a table that says what it is for in torch and why it has no effect here, so that a
program that sets them runs unchanged and its author can read what became of them
(`explain_kernel_options`).  None changes what is computed; the only mistakes are names and values
that torch refuses too.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict, get_args

from flexfa4.errors import ArgumentError, describe
from flexfa4.flex.errors import (
    ExclusiveKernelOptionsError,
    KernelOptionValueError,
    UnknownKernelOptionError,
)

BackendName = Literal["AUTO", "TRITON", "FLASH", "TRITON_DECODE"]


class FlexKernelOptions(TypedDict, total=False):
    """The options of torch's kernels, all optional; ``fwd_`` and ``bwd_`` may precede a name.

    `explain_kernel_options` says what each means here.
    """

    num_warps: int
    num_stages: int
    BLOCK_M: int
    BLOCK_N: int
    BLOCK_M1: int
    BLOCK_N1: int
    BLOCK_M2: int
    BLOCK_N2: int
    PRESCALE_QK: bool
    ROWS_GUARANTEED_SAFE: bool
    BLOCKS_ARE_CONTIGUOUS: bool
    WRITE_DQ: bool
    FORCE_USE_FLEX_ATTENTION: bool
    USE_TMA: bool
    kpack: int
    matrix_instr_nonkdim: int
    waves_per_eu: int
    BACKEND: BackendName


@dataclass(frozen=True)
class Option:
    """A kernel option: the values that it takes, and what became of it."""

    values: tuple[Any, ...] | type
    here: str

    def takes(self, value: Any) -> bool:
        """Return whether torch takes this value."""
        if isinstance(self.values, tuple):
            return value in self.values
        return type(value) is self.values

    def allowed(self) -> str:
        """Return the values in words."""
        if isinstance(self.values, tuple):
            return ", ".join(map(repr, self.values))
        return {int: "an int", bool: "True or False"}[self.values]


_TILES: Final = "the tile of a Triton kernel; tiles are chosen by the backend"
_TUNING: Final = "tunes a Triton kernel, and there is none"
_ROCM: Final = "tunes a ROCm kernel, and there is none"

OPTIONS: Final[dict[str, Option]] = {
    "num_warps": Option(int, _TUNING),
    "num_stages": Option(int, _TUNING),
    "BLOCK_M": Option(int, _TILES),
    "BLOCK_N": Option(int, _TILES),
    "BLOCK_M1": Option(int, _TILES),
    "BLOCK_N1": Option(int, _TILES),
    "BLOCK_M2": Option(int, _TILES),
    "BLOCK_N2": Option(int, _TILES),
    "PRESCALE_QK": Option(
        bool, "moves the scale into q; done wherever it is proved to change rounding only"
    ),
    "ROWS_GUARANTEED_SAFE": Option(
        bool,
        "a promise that each row sees a key, which torch's kernel does not check; a row that sees"
        " none is always 0 with lse = -inf, never NaN",
    ),
    "BLOCKS_ARE_CONTIGUOUS": Option(
        bool, "a promise about the order of blocks, which is found from the mask itself"
    ),
    "WRITE_DQ": Option(
        bool, "where gradients of captured tensors are added up; they are exact either way"
    ),
    "FORCE_USE_FLEX_ATTENTION": Option(
        bool, "keeps torch from its decoding kernel; one kernel serves all lengths"
    ),
    "USE_TMA": Option(bool, "how a Triton kernel loads, and there is none"),
    "kpack": Option(int, _ROCM),
    "matrix_instr_nonkdim": Option(int, _ROCM),
    "waves_per_eu": Option(int, _ROCM),
    "BACKEND": Option(
        get_args(BackendName),
        "names a kernel of torch, and all of them compute the same; FlexFA4's own backends have"
        " names in flexfa4.attention(backend=...)",
    ),
}
_PREFIXES: Final = ("fwd_", "bwd_")
_INSTEAD: Final = {
    "OUTPUT_LOGSUMEXP": "return_aux=AuxRequest(lse=True)",
    "OUTPUT_MAX": "return_aux=AuxRequest(max_scores=True)",
}


def check_kernel_options(options: Any) -> None:
    """Refuse options that torch does not have.

    Raises:
        ArgumentError: `options` is no dict.
        KernelOptionError: an unknown name, a value that its option does not take, or two options
            that exclude each other.
    """
    if not isinstance(options, Mapping):
        raise ArgumentError(
            name="kernel_options",
            found_value=describe(options),
            expected="a dict of options, or None",
            rewrite="kernel_options=None",
        )
    for name, value in options.items():
        option = _option(name)
        if not option.takes(value):
            raise KernelOptionValueError(
                name=name, found_value=describe(value), values=option.allowed()
            )
    if "BACKEND" in options and options.get("FORCE_USE_FLEX_ATTENTION"):
        raise ExclusiveKernelOptionsError


def explain_kernel_options(options: Mapping[str, Any] | None = None) -> str:
    """Return what each option means here, a line for each.

    Args:
        options: those of a program; None: all that there are.

    Raises:
        ArgumentError, KernelOptionError: see `check_kernel_options`.
    """
    if options is None:
        return "\n".join(f"{name}: {option.here}" for name, option in OPTIONS.items())
    check_kernel_options(options)
    lines = [f"{name}={value!r}: {_option(name).here}" for name, value in options.items()]
    return "\n".join(lines) or "no options"


def _option(name: Any) -> Option:
    bare = name
    for prefix in _PREFIXES:
        bare = bare.removeprefix(prefix) if isinstance(bare, str) else bare
    found = OPTIONS.get(bare)
    if found is None:
        near = difflib.get_close_matches(str(bare), OPTIONS, n=1, cutoff=0.5)
        advice = (
            f"kernel_options={{{near[0]!r}: ...}}" if near else f"kernel_options without {name!r}"
        )
        raise UnknownKernelOptionError(
            name=name, names=", ".join(OPTIONS), rewrite=_INSTEAD.get(bare, advice)
        )
    return found
