"""What PTX has without declaring it: special registers, functions of the device, pragmas.

What this module deliberately does not do: give any of them a value or an effect.
"""

from __future__ import annotations

from flexfa4.emulator.ptx.types import TYPES, ScalarType

_AXES = ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid")
_PLAIN = """
    laneid warpid nwarpid smid nsmid cluster_ctarank cluster_nctarank clock clock_hi globaltimer_lo
    globaltimer_hi lanemask_eq lanemask_le lanemask_lt lanemask_ge lanemask_gt total_smem_size
    aggr_smem_size dynamic_smem_size reserved_smem_offset_begin reserved_smem_offset_end
    reserved_smem_offset_cap
"""

SPECIAL_REGISTERS: dict[str, ScalarType] = {
    **{f"%{n}.{axis}": TYPES["u32"] for n in (*_AXES, "cluster_nctaid") for axis in "xyz"},
    **{f"%{n}": TYPES["u32"] for n in _PLAIN.split()},
    **{f"%{n}": TYPES["u64"] for n in ("gridid", "clock64", "globaltimer")},
    "%is_explicit_cluster": TYPES["pred"],
    "WARP_SZ": TYPES["u32"],
}
"""The registers that can only be read, and their types."""

HOST_FUNCTIONS = frozenset({"vprintf", "__assertfail"})
"""Functions that a kernel may call without a body: the device's run-time library."""

PRAGMAS = {
    "nounroll": "it advises the assembler not to unroll the loop",
    "used_bytes_mask": "it tells which bytes of the next load are used",
}
"""Pragmas that change no result, and why."""
