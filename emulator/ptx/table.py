"""The table of instructions: what is not in it is refused.

One row is one instruction in one form: its name, the modifiers it may carry, its operands, and the
architectures that have it, in the notation that `flexfa4.emulator.ptx.forms` explains.  To add an
instruction, add a row; `flexfa4.emulator.ptx.slots` has the places of modifiers, and
`flexfa4.emulator.ptx.matrix_rows` the rows of matrices and tensor memory.  Forms that differ in one
word are rows of a loop.

The rows follow the PTX ISA, version 9, and were held against what ptxas 13.5 takes.  They cover
what CuTe-DSL 4.8 writes for attention and matrix products.

What this module deliberately does not do: say how an instruction is executed.
"""

from __future__ import annotations

import itertools

from flexfa4.emulator.ptx.architectures import ALL, BLACKWELL
from flexfa4.emulator.ptx.forms import Form, Reader, Row, form_of
from flexfa4.emulator.ptx.matrix_rows import MATRIX_ROWS
from flexfa4.emulator.ptx.slots import SLOTS

_TILE = "[tensor@generic,coordinates*dim]"
_WAIT = "done=pred, [a@cta_space]"
_TWO = "p=pred or _|?q=pred or _"

# a vector's modifier, the types that it goes with, and how many elements it has
_VECTORS = (("", "mem", ""), (".v2", "mem64", "*2"), (".v4", "mem32", "*4"))
_WIDE_VECTORS = ((".v8", "each32", "*8"), (".v4", "each64", "*4"))  # of 256 bits

# operations of atom and red, and their types
_REDUCED = (
    ("boolean", "bits_word"),
    ("add", "summed"),
    ("inc_dec", "u32"),
    ("min_max", "carry_int"),
    ("add.noftz", "half"),
    ("add.noftz", "brain"),
)
# those in the shared memory of another CTA, and those of a copy to global memory
_REDUCED_REMOTELY = (
    ("boolean", "b32"),
    ("add", "summed_int"),
    ("inc_dec", "u32"),
    ("min_max", "word"),
)
_REDUCED_IN_BULK = (
    ("boolean", "bits_word"),
    ("add", "summed_bulk"),
    ("inc_dec", "u32"),
    ("min_max", "ordered_bulk"),
    ("add.noftz", "narrow"),
)


def _held(kind: str) -> str:
    """The type of an operand of cvt: registers may be wider, but for bf16."""
    return kind if kind == "bf16" else f"{kind}+"


def _holds(to: str, of: str) -> bool:
    """Whether one type of integers has all numbers of another; `cvt` has no ``.sat`` then."""
    bits, source = int(to[1:]), int(of[1:])
    return bits >= source if to[0] == of[0] else of[0] == "u" and bits > source


_ROWS: tuple[Row, ...] = (
    # ---- integers
    ("add sub", ".int", "d=int, a:int, b:int"),
    ("add sub", ".sat.s32", "d=s32, a:s32, b:s32"),
    ("add min max", ".packed_int", "d=packed_int, a:packed_int, b:packed_int"),
    ("add sub", ".cc.carry_int", "d=carry_int, a:carry_int, b:carry_int"),
    ("addc subc", "{.cc}.carry_int", "d=carry_int, a:carry_int, b:carry_int"),
    ("mul", ".lohi.int", "d=int, a:int, b:int"),
    ("mul", ".wide.short", "d=wide(short), a:short, b:short"),
    ("mad", ".lohi.int", "d=int, a:int, b:int, c:int"),
    ("mad", ".lohi.cc.carry_int", "d=carry_int, a:carry_int, b:carry_int, c:carry_int"),
    ("madc", ".lohi{.cc}.carry_int", "d=carry_int, a:carry_int, b:carry_int, c:carry_int"),
    ("mad", ".wide.short", "d=wide(short), a:short, b:short, c:wide(short)"),
    ("mul24", ".lohi.word", "d=word, a:word, b:word"),
    ("mad24", ".lohi.word", "d=word, a:word, b:word, c:word"),
    ("sad", ".int", "d=int, a:int, b:int, c:int"),
    ("div rem", ".int", "d=int, a:int, b:int"),
    ("abs neg", ".signed", "d=signed, a:signed"),
    ("min max", ".int", "d=int, a:int, b:int"),
    ("min max", ".relu.s32", "d=s32, a:s32, b:s32"),
    ("min max", ".relu.s16x2", "d=s16x2, a:s16x2, b:s16x2"),
    ("popc clz", ".bits_word", "d=u32, a:bits_word"),
    ("brev", ".bits_word", "d=bits_word, a:bits_word"),
    ("bfind", "{.shiftamt}.carry_int", "d=u32, a:carry_int"),
    ("fns", ".b32", "d=b32, mask:b32, base:b32, offset:s32"),
    ("bfe", ".carry_int", "d=carry_int, a:carry_int, start:u32, length:u32"),
    ("bfi", ".bits_word", "d=bits_word, a:bits_word, b:bits_word, start:u32, length:u32"),
    ("bmsk", ".wrap.b32", "d=b32, start:b32, length:b32"),
    ("szext", ".wrap.word", "d=word, a:word, length:u32"),
    ("dp2a.lo dp2a.hi dp4a", ".a_word.b_word", "d=b32, a:b32, b:b32, c:b32"),
    # ---- bits
    ("and or xor", ".logic", "d=logic, a:logic, b:logic"),
    ("not", ".logic", "d=logic, a:logic"),
    ("cnot", ".bits", "d=bits, a:bits"),
    ("shl", ".bits", "d=bits, a:bits, b:u32"),
    ("shr", ".bits", "d=bits, a:bits, b:u32"),
    ("shr", ".int", "d=int, a:int, b:u32"),
    ("shf.l shf.r", ".wrap.b32", "d=b32, a:b32, b:b32, c:u32"),
    ("lop3", ".b32", "d=b32, a:b32, b:b32, c:b32, table#u32"),
    ("lop3", ".and_or.b32", "d=b32 or _|p=pred, a:b32, b:b32, c:b32, table#u32, q:!pred"),
    ("prmt", ".b32{.prmt_mode}", "d=b32, a:b32, b:b32, c:b32"),
    # ---- floats
    ("add sub mul", "{.rnd}{.ftz}{.sat}.f32", "d=f32, a:f32, b:f32"),
    ("add sub mul", "{.rnd}{.ftz}.f32x2", "d=f32x2, a:f32x2, b:f32x2", BLACKWELL),
    ("add sub mul", "{.rnd}.f64", "d=f64, a:f64, b:f64"),
    ("add sub mul", "{.rn}{.ftz}{.sat}.half", "d=half, a:half, b:half"),
    ("add sub mul", "{.rn}.brain", "d=brain, a:brain, b:brain"),
    ("add sub", "{.rnd}{.sat}.f32.narrow", "d=f32, a:narrow, c:f32", BLACKWELL),
    ("fma mad", ".rnd{.ftz}{.sat}.f32", "d=f32, a:f32, b:f32, c:f32"),
    ("fma", ".rnd{.ftz}.f32x2", "d=f32x2, a:f32x2, b:f32x2, c:f32x2", BLACKWELL),
    ("fma mad", ".rnd.f64", "d=f64, a:f64, b:f64, c:f64"),
    ("fma", ".rn{.ftz}{.sat}.half", "d=half, a:half, b:half, c:half"),
    ("fma", ".rn{.ftz}.relu.half", "d=half, a:half, b:half, c:half"),
    ("fma", ".rn{.relu}.brain", "d=brain, a:brain, b:brain, c:brain"),
    ("fma", ".rnd{.sat}.f32.narrow", "d=f32, a:narrow, b:narrow, c:f32", BLACKWELL),
    ("div", ".approx{.ftz}.f32", "d=f32, a:f32, b:f32"),
    ("div", ".full{.ftz}.f32", "d=f32, a:f32, b:f32"),
    ("div", ".rnd{.ftz}.f32", "d=f32, a:f32, b:f32"),
    ("div", ".rnd.f64", "d=f64, a:f64, b:f64"),
    ("abs neg", "{.ftz}.f32", "d=f32, a:f32"),
    ("abs neg", ".f64", "d=f64, a:f64"),
    ("abs neg", "{.ftz}.half", "d=half, a:half"),
    ("abs neg", ".brain", "d=brain, a:brain"),
    ("copysign", ".float", "d=float, a:float, b:float"),
    ("min max", "{.ftz}{.NaN}{.xorsign.abs}.f32", "d=f32, a:f32, b:f32"),
    ("min max", "{.ftz}{.NaN}{.abs}.f32", "d=f32, a:f32, b:f32, c:f32", BLACKWELL),
    ("min max", ".f64", "d=f64, a:f64, b:f64"),
    ("min max", "{.ftz}{.NaN}{.xorsign.abs}.half", "d=half, a:half, b:half"),
    ("min max", "{.NaN}{.xorsign.abs}.brain", "d=brain, a:brain, b:brain"),
    ("ex2 lg2 rcp rsqrt sqrt sin cos", ".approx{.ftz}.f32", "d=f32, a:f32"),
    ("ex2", ".approx.half", "d=half, a:half"),
    ("ex2", ".approx.ftz.brain", "d=brain, a:brain"),
    ("rcp sqrt", ".rnd{.ftz}.f32", "d=f32, a:f32"),
    ("rcp sqrt", ".rnd.f64", "d=f64, a:f64"),
    ("rcp rsqrt", ".approx.ftz.f64", "d=f64, a:f64"),
    ("tanh", ".approx.f32", "d=f32, a:f32"),
    ("tanh", ".approx.half", "d=half, a:half"),
    ("tanh", ".approx.brain", "d=brain, a:brain"),
    ("testp", ".test.float", "p=pred, a:float"),
    # ---- comparisons and choices
    *(
        row
        for order, ftz, kind, written in (
            ("same", "", "bits", _TWO),
            ("order", "", "signed", _TWO),
            ("order_unsigned", "", "unsigned", _TWO),
            ("order_float", "{.ftz}", "f32", _TWO),
            ("order_float", "", "f64", _TWO),
            ("order_float", "{.ftz}", "f16", "p=pred"),
            ("order_float", "", "bf16", "p=pred"),
        )
        for row in (
            ("setp", f".{order}{ftz}.{kind}", f"{written}, a:{kind}, b:{kind}"),
            ("setp", f".{order}.boolean{ftz}.{kind}", f"{written}, a:{kind}, b:{kind}, c:!pred"),
            ("set", f".{order}{ftz}.word.{kind}", f"d=word, a:{kind}, b:{kind}"),
        )
    ),
    ("setp", ".order_float{.ftz}.f16x2", "p=pred or _|q=pred or _, a:f16x2, b:f16x2"),
    ("setp", ".order_float.bf16x2", "p=pred or _|q=pred or _, a:bf16x2, b:bf16x2"),
    ("selp", ".plain", "d=plain, a:plain, b:plain, c:pred"),
    ("slct", "{.ftz}.plain.f32", "d=plain, a:plain, b:plain, c:f32"),
    ("slct", ".plain.s32", "d=plain, a:plain, b:plain, c:s32"),
    # ---- moves and conversions
    ("mov", ".plain", "d=plain, a:plain or special or symbol"),
    ("mov", ".b128", "d=b128, a:b128"),
    ("mov", ".pred", "d=pred, a:pred"),
    ("mov", ".bits", "{d}=bits, a:bits"),
    ("mov", ".bits", "d=bits, {a}:bits"),
    ("mov", ".b128", "{d}=b128, a:b128"),
    ("mov", ".b128", "d=b128, {a}:b128"),
    ("cvt", ".to_int.from_int", "d=to_int+, a:from_int+ or special"),
    *(
        ("cvt", f".sat.{to}.{of}", f"d={to}+, a:{of}+ or special")
        for to, of in itertools.product(SLOTS["to_int"].values, SLOTS["from_int"].values)
        if not _holds(to, of)
    ),
    ("cvt", ".rnd{.sat}.to_float.from_int", "d=to_float+, a:from_int+"),
    ("cvt", ".rnd.bf16.int", "d=bf16, a:int+"),
    ("cvt", ".to_nearest_int{.ftz}{.sat}.to_int.f32", "d=to_int+, a:f32+"),
    ("cvt", ".to_nearest_int{.sat}.to_int.f16", "d=to_int+, a:f16+"),
    ("cvt", ".to_nearest_int{.sat}.to_int.f64", "d=to_int+, a:f64"),
    ("cvt", ".to_nearest_int.int.bf16", "d=int+, a:bf16"),
    *(
        ("cvt", f"{rounding}.{to}.{of}", f"d={_held(to)}, a:{_held(of)}")
        for rounding, pairs in (
            ("{.to_nearest_int}{.ftz}{.sat}", ("f32 f32",)),
            ("{.to_nearest_int}{.sat}", ("f64 f64", "f16 f16")),
            ("{.to_nearest_int}", ("bf16 bf16",)),
            ("{.ftz}{.sat}", ("f32 f16", "f64 f32")),
            ("{.ftz}", ("f32 bf16",)),
            ("{.sat}", ("f64 f16",)),
            ("", ("f64 bf16",)),
            (".rnd{.ftz}{.sat}", ("f16 f32", "f32 f64")),
            (".rnd{.ftz}", ("bf16 f32",)),
            (".rnd{.sat}", ("f16 f64",)),
            (".rnd", ("bf16 f64", "f16 bf16", "bf16 f16")),
        )
        for to, of in (pair.split() for pair in pairs)
    ),
    ("cvt", ".rn_rz.relu{.satfinite}.narrow.f32", "d=narrow, a:f32"),
    ("cvt", ".rn_rz.satfinite.narrow.f32", "d=narrow, a:f32"),
    ("cvt", ".rn_rz{.relu}{.satfinite}.pair16.f32", "d=pair16, a:f32, b:f32"),
    ("cvt", ".rs{.relu}{.satfinite}.pair16.f32", "d=pair16, a:f32, b:f32, random:b32", BLACKWELL),
    ("cvt", ".rna{.satfinite}.tf32.f32", "d=tf32, a:f32"),
    ("cvt", ".rn_rz{.relu}.tf32.f32", "d=tf32, a:f32"),
    ("cvt", ".rn_rz.satfinite{.relu}.tf32.f32", "d=tf32, a:f32", BLACKWELL),
    *(
        row
        for kind, targets in (("fp8_pair", ALL), ("small_pair", BLACKWELL))
        for row in (
            ("cvt", f".rn.satfinite{{.relu}}.{kind}.f32", f"d={kind}, a:f32, b:f32", targets),
            ("cvt", f".rn.satfinite{{.relu}}.{kind}.f16x2", f"d={kind}, a:f16x2", targets),
            ("cvt", f".rn{{.relu}}.f16x2.{kind}", f"d=f16x2, a:{kind}", targets),
        )
    ),
    (
        "cvt",
        ".rs{.relu}.satfinite.small_quad.f32",
        "d=small_quad, a:f32*4, random:b32",
        BLACKWELL,
    ),
    ("cvt", ".rz_rp{.satfinite}.ue8m0x2.f32", "d=ue8m0x2, a:f32, b:f32", BLACKWELL),
    ("cvt", ".rz_rp{.satfinite}.ue8m0x2.bf16x2", "d=ue8m0x2, a:bf16x2", BLACKWELL),
    ("cvt", ".rn.bf16x2.ue8m0x2", "d=bf16x2, a:ue8m0x2", BLACKWELL),
    # ---- addresses
    # ptxas takes .u32 too, for programs of 32 bits, which these architectures do not run
    ("cvta", ".space.u64", "d=u64, a:u64 or symbol"),
    ("cvta.to", ".space.u64", "d=u64, a:u64"),
    ("isspacep", ".space", "p=pred, a:u64"),
    ("mapa", "{.cluster_space}.pointer", "d=pointer, a:pointer or symbol, rank:u32"),
    ("getctarank", "{.cluster_space}.pointer", "d=u32, a:pointer or symbol"),
    # ---- loads and stores
    *(
        (
            name,
            f"{place}{{.evict1}}{{.cache_hint}}{{.prefetch_size}}{vector}.{kind}",
            f"d={kind}+{count}, [a@{space}], policy:b64 if cache_hint",
        )
        for name, place, space in (
            ("ld", "{.weak}{.space}{.cop_ld}", "space"),
            ("ld", ".sem_ld.scope{.shared_or_global}", "shared_or_global"),
            ("ld", ".global.nc{.cop_nc}", "global"),
        )
        for vector, kind, count in _VECTORS
    ),
    *(
        (
            name,
            f"{place}{{.evict1}}{{.evict2}}{{.cache_hint}}{{.prefetch_size}}{vector}.{kind}",
            f"d={kind}+{count}, [a@global], policy:b64 if cache_hint",
            BLACKWELL,
        )
        for name, place in (
            ("ld", "{.weak}{.global}{.cop_ld}"),
            ("ld", ".sem_ld.scope{.global}"),
            ("ld", ".global.nc{.cop_nc}"),
        )
        for vector, kind, count in _WIDE_VECTORS
    ),
    *(
        (
            "st",
            f"{place}{{.evict1}}{{.cache_hint}}{vector}.{kind}",
            f"[a@{space}], b:{kind}+{count}, policy:b64 if cache_hint",
        )
        for place, space in (
            ("{.weak}{.writable}{.cop_st}", "writable"),
            (".sem_st.scope{.shared_or_global}", "shared_or_global"),
        )
        for vector, kind, count in _VECTORS
    ),
    *(
        (
            "st",
            f"{place}{{.evict1}}{{.evict2}}{{.cache_hint}}{vector}.{kind}",
            f"[a@global], b:{kind}+{count}, policy:b64 if cache_hint",
            BLACKWELL,
        )
        for place in ("{.weak}{.global}{.cop_st}", ".sem_st.scope{.global}")
        for vector, kind, count in _WIDE_VECTORS
    ),
    *(
        (name, f".volatile{{.shared_or_global}}{vector}.{kind}", operands)
        for vector, kind, count in _VECTORS
        for name, operands in (
            ("ld", f"d={kind}+{count}, [a@shared_or_global]"),
            ("st", f"[a@shared_or_global], b:{kind}+{count}"),
        )
    ),
    *(
        ("st", f".call_space{vector}.{kind}", f"[a@call], b:{kind}+{count}")
        for vector, kind, count in _VECTORS
    ),
    *(
        (
            "st.async",
            f"{scope}{{.cluster_space}}.bytes{vector}.{kind}",
            f"[a@shared::cluster], b:{kind}{count}, [barrier@shared::cluster]",
        )
        for scope in ("{.weak}", ".cluster")
        for vector, kind, count in (
            ("", "plain_word", ""),
            (".v2", "plain_word", "*2"),
            (".v4", "each32", "*4"),
        )
    ),
    ("st.bulk", "{.weak}{.own_space}", "[a@own_space], size:u64, value#u64", BLACKWELL),
    ("prefetch", "{.hinted_space}.level", "[a@hinted_space]"),
    ("prefetch", "{.map_origin}.tensormap", "[a@map_origin]"),
    (
        "createpolicy.fractional",
        ".evict_first{.evict_second}.b64",
        "policy=b64, fraction:f32 if given",
    ),
    ("discard", "{.global}.L2", "[a@global], size#u32"),
    # ---- atomic operations
    *(
        row
        for place, space, hint, policy in (
            ("{.global}", "global", "{.cache_hint}", ", policy:b64 if cache_hint"),
            (".near_space", "near_space", "", ""),
        )
        for op, kind in _REDUCED
        for row in (
            (
                "atom",
                f"{{.sem_atom}}{{.scope}}{place}.{op}{hint}.{kind}",
                f"d={kind} or _, [a@{space}], b:{kind}{policy}",
            ),
            (
                "red",
                f"{{.sem_st}}{{.scope}}{place}.{op}{hint}.{kind}",
                f"[a@{space}], b:{kind}{policy}",
            ),
        )
    ),
    *(
        (
            "atom",
            f"{{.sem_atom}}{{.scope}}{{.shared_or_global}}.exch.{kind}",
            f"d={kind} or _, [a@shared_or_global], b:{kind}",
        )
        for kind in ("bits_word", "b128")
    ),
    *(
        (
            "atom",
            f"{{.sem_atom}}{{.scope}}{{.shared_or_global}}.cas.{kind}",
            f"d={kind} or _, [a@shared_or_global], b:{kind}, c:{kind}",
        )
        for kind in ("bits", "b128")
    ),
    *(
        row
        for vector, kind, count in ((".v2", "f32", "*2"), (".v4", "f32", "*4"))
        for row in (
            (
                "atom",
                f"{{.sem_atom}}{{.scope}}{{.global}}.add{{.cache_hint}}{vector}.{kind}",
                f"d={kind}{count} or _, [a@global], b:{kind}{count}, policy:b64 if cache_hint",
            ),
            (
                "red",
                f"{{.sem_st}}{{.scope}}{{.global}}.add{{.cache_hint}}{vector}.{kind}",
                f"[a@global], b:{kind}{count}, policy:b64 if cache_hint",
            ),
        )
    ),
    *(
        (
            "red",
            f"{{.sem_st}}{{.scope}}{{.global}}.{op}.noftz{{.cache_hint}}.{vector}.{kind}",
            f"[a@global], b:{kind}*{vector[1:]}, policy:b64 if cache_hint",
        )
        for op in ("add", "min_max")
        for kind, vectors in (("narrow", ("v2", "v4", "v8")), ("pair16", ("v2", "v4")))
        for vector in vectors
    ),
    *(
        (
            "red.async",
            f".relaxed.cluster{{.cluster_space}}.bytes.{op}.{kind}",
            f"[a@shared::cluster], b:{kind}, [barrier@shared::cluster]",
        )
        for op, kind in _REDUCED_REMOTELY
    ),
    # ---- control
    ("bra", "{.uni}", "target->label"),
    ("brx.idx", "{.uni}", "index:u32, targets->labels"),
    (
        "call",
        "{.uni}",
        "returns->variables if given, function->function, arguments->variables if given",
    ),
    ("ret", "{.uni}", ""),
    ("exit trap brkpt", "", ""),
    ("nanosleep", ".u32", "t:u32"),
    ("griddepcontrol.wait griddepcontrol.launch_dependents", "", ""),
    ("setmaxnreg", ".inc_dec.sync.aligned.u32", "count#u32"),
    # ---- warps
    ("activemask", ".b32", "d=b32"),
    ("elect.sync", "", "d=b32 or _|p=pred, members:b32"),
    ("shfl.sync", ".shuffle.b32", "d=b32|?p=pred, a:b32, b:b32, c:b32, members:b32"),
    ("vote.sync", ".vote.pred", "d=pred, a:!pred, members:b32"),
    ("vote.sync.ballot", ".b32", "d=b32, a:!pred, members:b32"),
    ("match.any.sync", ".bits_word", "d=b32, a:bits_word, members:b32"),
    ("match.all.sync", ".bits_word", "d=b32 or _|?p=pred, a:bits_word, members:b32"),
    ("redux.sync", ".add.word", "d=word, a:word, members:b32"),
    ("redux.sync", ".min_max.word", "d=word, a:word, members:b32"),
    ("redux.sync", ".boolean.b32", "d=b32, a:b32, members:b32"),
    ("redux.sync", ".min_max{.abs}{.NaN}.f32", "d=f32, a:f32, members:b32", BLACKWELL),
    ("bar.warp.sync", "", "members:b32"),
    # ---- barriers and fences
    ("bar.sync barrier.sync", "", "a:u32, b:u32 if given"),
    ("bar.arrive barrier.arrive", "", "a:u32, b:u32"),
    ("barrier.sync", ".aligned", "a:u32, b:u32 if given"),
    ("barrier.arrive", ".aligned", "a:u32, b:u32"),
    ("bar.cta.sync", "", "a:u32, b:u32 if given"),
    ("bar.cta.arrive", "", "a:u32, b:u32"),
    ("barrier.cta.sync", "{.aligned}", "a:u32, b:u32 if given"),
    ("barrier.cta.arrive", "{.aligned}", "a:u32, b:u32"),
    *(
        row
        for name, aligned in (("bar.red", ""), ("barrier.red", "{.aligned}"))
        for count in ("", "b:u32, ")
        for row in (
            (name, f".and_or{aligned}.pred", f"p=pred, a:u32, {count}c:!pred"),
            (name, f".popc{aligned}.u32", f"d=u32, a:u32, {count}c:!pred"),
        )
    ),
    ("barrier.cluster.arrive", "{.sem_st}{.aligned}", ""),
    ("barrier.cluster.wait", "{.acquire}{.aligned}", ""),
    ("fence", "{.sem_fence}.scope", ""),
    ("fence.mbarrier_init.release.cluster", "", ""),
    ("fence.proxy.alias fence.proxy.async", "", ""),
    ("fence.proxy.async", ".proxy_space", ""),
    ("fence.proxy.tensormap::generic.release", ".scope", ""),
    ("fence.proxy.tensormap::generic.acquire", ".scope", "[a@generic], size#u32"),
    ("fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster", "", ""),
    ("fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster", "", ""),
    ("membar", ".level_fence", ""),
    # ---- mbarriers
    ("mbarrier.init", "{.cta_space}.b64", "[a@cta_space], count:u32"),
    ("mbarrier.inval", "{.cta_space}.b64", "[a@cta_space]"),
    ("mbarrier.expect_tx", "{.relaxed.near_scope}{.near_space}.b64", "[a@near_space], bytes:u32"),
    (
        "mbarrier.complete_tx",
        "{.relaxed.near_scope}{.near_space}.b64",
        "[a@near_space], bytes:u32",
    ),
    (
        "mbarrier.arrive mbarrier.arrive_drop",
        "{.sem_st.near_scope}{.cta_space}.b64",
        "state=b64 or _, [a@cta_space], count:u32 if given",
    ),
    (
        "mbarrier.arrive mbarrier.arrive_drop",
        "{.sem_st.near_scope}.cluster_space.b64",
        "_, [a@cluster_space], count:u32 if given",
    ),
    (
        "mbarrier.arrive.expect_tx mbarrier.arrive_drop.expect_tx",
        "{.sem_st.near_scope}{.cta_space}.b64",
        "state=b64 or _, [a@cta_space], bytes:u32",
    ),
    (
        "mbarrier.arrive.expect_tx mbarrier.arrive_drop.expect_tx",
        "{.sem_st.near_scope}.cluster_space.b64",
        "_, [a@cluster_space], bytes:u32",
    ),
    (
        "mbarrier.arrive.noComplete mbarrier.arrive_drop.noComplete",
        "{.release.cta}{.cta_space}.b64",
        "state=b64 or _, [a@cta_space], count:u32",
    ),
    ("mbarrier.pending_count", ".b64", "count=u32, state:b64"),
    ("mbarrier.test_wait", "{.sem_ld.near_scope}{.cta_space}.b64", _WAIT + ", state:b64"),
    ("mbarrier.test_wait.parity", "{.sem_ld.near_scope}{.cta_space}.b64", _WAIT + ", parity:u32"),
    (
        "mbarrier.try_wait",
        "{.sem_ld.near_scope}{.cta_space}.b64",
        _WAIT + ", state:b64, nanoseconds:u32 if given",
    ),
    (
        "mbarrier.try_wait.parity",
        "{.sem_ld.near_scope}{.cta_space}.b64",
        _WAIT + ", parity:u32, nanoseconds:u32 if given",
    ),
    # ---- asynchronous copies
    (
        "cp.async.ca cp.async.cg",
        ".cta_space.global{.prefetch_size}",
        "[d@cta_space], [a@global], size#u32, src_size:u32 if given",
    ),
    *(
        (
            "cp.async.ca cp.async.cg",
            ".cta_space.global.cache_hint{.prefetch_size}",
            f"[d@cta_space], [a@global], size#u32, {src_size}policy:b64",
        )
        for src_size in ("", "src_size:u32, ")
    ),
    ("cp.async.commit_group", "", ""),
    ("cp.async.wait_group", "", "n#u32"),
    ("cp.async.wait_all", "", ""),
    ("cp.async.mbarrier.arrive", "{.noinc}{.cta_space}.b64", "[a@cta_space]"),
    (
        "cp.async.bulk",
        ".shared::cta.global.bytes{.cache_hint}",
        "[d@shared], [a@global], size:u32, [barrier@shared], policy:b64 if cache_hint",
    ),
    (
        "cp.async.bulk",
        ".shared::cluster.global.bytes{.multicast}{.cache_hint}",
        "[d@shared::cluster], [a@global], size:u32, [barrier@shared::cluster],"
        " ctas:b16 if multicast, policy:b64 if cache_hint",
    ),
    (
        "cp.async.bulk",
        ".shared::cluster.shared::cta.bytes",
        "[d@shared::cluster], [a@shared], size:u32, [barrier@shared::cluster]",
    ),
    (
        "cp.async.bulk",
        ".global.shared::cta.bulk_group{.cache_hint}",
        "[d@global], [a@shared], size:u32, policy:b64 if cache_hint",
    ),
    (
        "cp.async.bulk",
        ".global.shared::cta.bulk_group{.cache_hint}.cp_mask",
        "[d@global], [a@shared], size:u32, policy:b64 if cache_hint, mask:b16",
        BLACKWELL,
    ),
    (
        "cp.async.bulk.prefetch",
        ".L2.global{.cache_hint}",
        "[a@global], size:u32, policy:b64 if cache_hint",
    ),
    ("cp.async.bulk.commit_group", "", ""),
    ("cp.async.bulk.wait_group", "{.read}", "n#u32"),
    *(
        (
            "cp.reduce.async.bulk",
            f".shared::cluster.shared::cta.bytes.{op}.{kind}",
            "[d@shared::cluster], [a@shared], size:u32, [barrier@shared::cluster]",
        )
        for op, kind in _REDUCED_REMOTELY
    ),
    *(
        (
            "cp.reduce.async.bulk",
            f".global.shared::cta.bulk_group{{.cache_hint}}.{op}.{kind}",
            "[d@global], [a@shared], size:u32, policy:b64 if cache_hint",
        )
        for op, kind in _REDUCED_IN_BULK
    ),
    # ---- tensor copies: cta_group stands before the hint in the ISA, after it in CuTe-DSL's text
    *(
        (
            "cp.async.bulk.tensor",
            f".dim.{written}.global{{.tile}}.bytes{multicast}{group_and_hint}",
            f"[d@{space}], {_TILE}, [barrier@{space}]{ctas}, policy:b64 if cache_hint",
            targets,
        )
        for written, space, multicast, ctas in (
            ("shared::cta", "shared", "", ""),
            ("shared::cluster", "shared::cluster", "{.multicast}", ", ctas:b16 if multicast"),
        )
        for group_and_hint, targets in (
            ("{.cache_hint}", ALL),
            (".cta_group{.cache_hint}", BLACKWELL),
        )
    ),
    (
        "cp.async.bulk.tensor",
        ".dim.global.shared::cta{.tile}.bulk_group{.cache_hint}",
        f"{_TILE}, [a@shared], policy:b64 if cache_hint",
    ),
    (
        "cp.reduce.async.bulk.tensor",
        ".dim.global.shared::cta.red_op{.tile}.bulk_group{.cache_hint}",
        f"{_TILE}, [a@shared], policy:b64 if cache_hint",
    ),
    (
        "cp.async.bulk.prefetch.tensor",
        ".dim.L2.global{.tile}{.cache_hint}",
        f"{_TILE}, policy:b64 if cache_hint",
    ),
    *(
        ("tensormap.replace.tile", f".{what}{{.map_space}}.b1024.{kind}", f"[a@map_space], {value}")
        for what, kind, value in (
            ("global_address", "b64", "value:b64"),
            ("rank", "b32", "value:b32"),
            ("map_axis_word", "b32", "axis#u32, value:b32"),
            ("global_stride", "b64", "axis#u32, value:b64"),
        )
    ),
    ("tensormap.replace.tile", ".map_mode{.map_space}.b1024.b32", "[a@map_space], value#u32"),
    (
        "tensormap.replace.tile",
        ".swizzle_atomicity{.map_space}.b1024.b32",
        "[a@map_space], value#u32",
        BLACKWELL,
    ),
    (
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release",
        ".scope.sync.aligned",
        "[d@global], [a@shared], size#u32",
    ),
    # ---- cluster launch control
    (
        "clusterlaunchcontrol.try_cancel.async",
        "{.own_space}.bytes{.multicast_all}.b128",
        "[d@own_space], [barrier@own_space]",
        BLACKWELL,
    ),
    (
        "clusterlaunchcontrol.query_cancel.is_canceled",
        ".pred.b128",
        "p=pred, response:b128",
        BLACKWELL,
    ),
    (
        "clusterlaunchcontrol.query_cancel",
        ".first_ctaid.b32.b128",
        "d=b32, response:b128",
        BLACKWELL,
    ),
    (
        "clusterlaunchcontrol.query_cancel.get_first_ctaid",
        ".v4.b32.b128",
        "d=b32*4, response:b128",
        BLACKWELL,
    ),
    *MATRIX_ROWS,
)


def _forms() -> tuple[Form, ...]:
    return tuple(
        form_of(name, row[1], row[2], row[3] if len(row) == 4 else ALL)
        for row in _ROWS
        for name in row[0].split()
    )


READER = Reader(_forms(), SLOTS)
"""Reads any opcode by this table."""
