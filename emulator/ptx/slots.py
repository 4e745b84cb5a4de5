"""Places of modifiers: which modifiers may stand in each.

The rows of `flexfa4.emulator.ptx.table` name these places.  A slot whose modifiers change no result
says why: an execution core may leave those aside, and no others.

What this module deliberately does not do: say which instructions have which places.
"""

from __future__ import annotations

from flexfa4.emulator.ptx.forms import Slot


def _slot(values: str, no_effect: str = "") -> Slot:
    return Slot(tuple(values.split()), no_effect)


_HINT = "a hint for caches, which are not modelled"
_ONLY = "the only way to complete that these instructions have"
_POLICY = "says what a cache policy is, which only hints for caches read"

SLOTS: dict[str, Slot] = {
    # types
    "carry_int": _slot("u32 s32 u64 s64"),
    "packed_int": _slot("u16x2 s16x2"),
    "plain_word": _slot("b32 b64 u32 u64 s32 s64 f32 f64"),
    "mem": _slot("b8 b16 b32 b64 b128 u8 u16 u32 u64 s8 s16 s32 s64 f32 f64"),
    "mem64": _slot("b8 b16 b32 b64 u8 u16 u32 u64 s8 s16 s32 s64 f32 f64"),
    "mem32": _slot("b8 b16 b32 u8 u16 u32 s8 s16 s32 f32"),
    "each64": _slot("b64 u64 s64 f64"),
    "each32": _slot("b32 u32 s32 f32"),
    "from_int": _slot("u8 u16 u32 u64 s8 s16 s32 s64"),
    "to_int": _slot("u8 u16 u32 u64 s8 s16 s32 s64"),
    "to_float": _slot("f16 f32 f64"),
    "unsigned": _slot("u16 u32 u64"),
    "summed": _slot("u32 s32 u64 f32 f64"),
    "summed_int": _slot("u32 s32 u64"),
    "summed_bulk": _slot("u32 s32 u64 f32 f64"),
    "ordered_bulk": _slot("u32 s32 u64 s64 f16 bf16"),
    "int": _slot("u16 u32 u64 s16 s32 s64"),
    "signed": _slot("s16 s32 s64"),
    "short": _slot("u16 u32 s16 s32"),
    "word": _slot("u32 s32"),
    "a_word": _slot("u32 s32"),
    "b_word": _slot("u32 s32"),
    "bits": _slot("b16 b32 b64"),
    "logic": _slot("pred b16 b32 b64"),
    "bits_word": _slot("b32 b64"),
    "plain": _slot("b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64"),
    "float": _slot("f32 f64"),
    "half": _slot("f16 f16x2"),
    "brain": _slot("bf16 bf16x2"),
    "narrow": _slot("f16 bf16"),
    "pair16": _slot("f16x2 bf16x2"),
    "fp8_pair": _slot("e4m3x2 e5m2x2"),
    "small_pair": _slot("e2m3x2 e3m2x2 e2m1x2"),
    "small_quad": _slot("e4m3x4 e5m2x4 e2m3x4 e3m2x4 e2m1x4"),
    "pointer": _slot("u32 u64"),
    # arithmetic
    "to_nearest_int": _slot("rni rzi rmi rpi"),
    "same": _slot("eq ne"),
    "order": _slot("eq ne lt le gt ge"),
    "order_unsigned": _slot("eq ne lt le gt ge lo ls hi hs"),
    "order_float": _slot("eq ne lt le gt ge equ neu ltu leu gtu geu num nan"),
    "boolean": _slot("and or xor"),
    "rnd": _slot("rn rz rm rp"),
    "rn_rz": _slot("rn rz"),
    "rz_rp": _slot("rz rp"),
    "lohi": _slot("lo hi"),
    "wrap": _slot("wrap clamp"),
    "prmt_mode": _slot("f4e b4e rc8 ecl ecr rc16"),
    "test": _slot("finite infinite number notanumber normal subnormal"),
    # memory
    "space": _slot("global shared shared::cta shared::cluster local const param param::entry"),
    "writable": _slot("global shared shared::cta shared::cluster local"),
    "call_space": _slot("param param::func"),
    "shared_or_global": _slot("global shared shared::cta shared::cluster"),
    "near_space": _slot("shared shared::cta shared::cluster"),
    "cta_space": _slot("shared shared::cta"),
    "own_space": _slot("shared::cta"),
    "proxy_space": _slot("global shared::cta shared::cluster"),
    "map_space": _slot("global shared::cta"),
    "cop_ld": _slot("ca cg cs lu cv", _HINT),
    "cop_nc": _slot("ca cg cs", _HINT),
    "cluster_space": _slot("shared::cluster"),
    "hinted_space": _slot("global local"),
    "map_origin": _slot("const param"),
    "sem_ld": _slot("relaxed acquire"),
    "sem_st": _slot("relaxed release"),
    "sem_atom": _slot("relaxed acquire release acq_rel"),
    "sem_fence": _slot("sc acq_rel acquire release"),
    "scope": _slot("cta cluster gpu sys"),
    "near_scope": _slot("cta cluster", "all threads of a cluster see its mbarriers at once"),
    "cop_st": _slot("wb cg cs wt", _HINT),
    "evict1": _slot(
        "L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate",
        _HINT,
    ),
    "evict2": _slot("L2::evict_normal L2::evict_first L2::evict_last", _HINT),
    "evict_first": _slot(
        "L2::evict_last L2::evict_normal L2::evict_first L2::evict_unchanged", _POLICY
    ),
    "evict_second": _slot("L2::evict_first L2::evict_unchanged", _POLICY),
    "cache_hint": _slot("L2::cache_hint", _HINT),
    "prefetch_size": _slot("L2::64B L2::128B L2::256B", _HINT),
    "level": _slot("L1 L2", _HINT),
    "min_max": _slot("min max"),
    "level_fence": _slot("cta gl sys"),
    # threads
    "shuffle": _slot("up down bfly idx"),
    "vote": _slot("all any uni"),
    "and_or": _slot("and or"),
    "uni": _slot("uni", "it promises that threads do not diverge, which is seen anyway"),
    "inc_dec": _slot("inc dec"),
    # copies
    "dim": _slot("1d 2d 3d 4d 5d"),
    "cta_group": _slot("cta_group::1 cta_group::2"),
    "red_op": _slot("and or xor add inc dec min max"),
    "multicast": _slot("multicast::cluster"),
    "multicast_all": _slot("multicast::cluster::all"),
    "bytes": _slot("mbarrier::complete_tx::bytes", _ONLY),
    "bulk_group": _slot("bulk_group", _ONLY),
    "tile": _slot("tile", "the mode of tensor copies without it, and the only one in the table"),
    # matrices
    "cp_shape": _slot("128x256b 4x256b 128x128b"),
    "mx4_scales": _slot("scale_vec::2X block32"),
    "nvf4_scales": _slot("scale_vec::2X scale_vec::4X block16 block32"),
    "mx8_scales": _slot("scale_vec::1X block32"),
    "times": _slot("x1 x2 x4"),
    "few_times": _slot("x1 x2"),
    "first_ctaid": _slot("get_first_ctaid::x get_first_ctaid::y get_first_ctaid::z"),
    "map_axis_word": _slot("box_dim global_dim element_stride"),
    "map_mode": _slot("elemtype interleave_layout swizzle_mode fill_mode"),
    **{
        f"wgmma_k{k}": _slot(" ".join(f"m64n{n}k{k}" for n in range(8, 257, 8)))
        for k in (8, 16, 32)
    },
    # integers leave out some widths
    "wgmma_k32_int": _slot(
        "m64n8k32 m64n24k32 " + " ".join(f"m64n{n}k32" for n in range(16, 257, 16))
    ),
    "a_fp8": _slot("e4m3 e5m2"),
    "b_fp8": _slot("e4m3 e5m2"),
    "a_int8": _slot("s8 u8"),
    "b_int8": _slot("s8 u8"),
    "tmem_times": _slot("x1 x2 x4 x8 x16 x32 x64 x128"),
    "tmem_times_more": _slot("x2 x4 x8 x16 x32 x64 x128"),
    "tmem_times_64": _slot("x1 x2 x4 x8 x16 x32 x64"),
    "tmem_times_32": _slot("x1 x2 x4 x8 x16 x32"),
    "cp_64": _slot("warpx2::02_13 warpx2::01_23"),
    "packed_source": _slot("b6x16_p32 b4x16_p64"),
    "scaling_kind": _slot("kind::f16 kind::tf32"),
    "mma_kind": _slot("kind::f16 kind::tf32 kind::f8f6f4"),
    "collector": _slot(
        "collector::a::fill collector::a::use collector::a::lastuse collector::a::discard",
        "a promise that a buffer of A may be reused, which leaves A's values as they are",
    ),
}
