"""Attention for sm_100a: scores and outputs in tensor memory, online softmax in base 2.

One warp loads, one gives products, four warps take the softmax, a row for each thread.  The next
scores are made while a softmax goes on: there are two places for scores, and two stages for keys
and values.  Powers go back to tensor memory as a factor of the second product, whose result the
threads add to their sums.

Q, K, V (rows, 64) are float16, the output is float32; rows are multiples of a tile's.
"""

from __future__ import annotations

from typing import NamedTuple

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.utils import blackwell_helpers

QUERIES = 128  # rows of a tile
KEYS = 64  # of a step
WIDTH = 64  # of queries, keys and values
STAGES = 2  # of keys and values
PLACES = 2  # of scores
POWERS = PLACES * KEYS  # first column of the powers in tensor memory
OUTPUT = POWERS + KEYS // 2  # first column of a step's output
COLUMNS = 256
QUERY_BYTES = 2 * QUERIES * WIDTH
KEY_BYTES = 2 * 2 * KEYS * WIDTH  # of a stage: keys and values

SOFTMAX_THREADS = 128  # warps 0 to 3
PRODUCT_WARP = 4
LOAD_WARP = 5
THREADS = 192


@cute.jit
def commit(barrier: cute.Pointer) -> None:
    """Arrive at a barrier when the products so far are done."""
    with cute.arch.elect_one():
        tcgen05.commit(barrier)


class Inputs(NamedTuple):
    """A tile of queries and stages of keys and values; barriers tell that one is full, or empty."""

    q: cute.Tensor
    k: cute.Tensor
    v: cute.Tensor
    queries_full: cute.Pointer
    queries_empty: cute.Pointer
    keys_full: cute.Pointer
    keys_empty: cute.Pointer


class Results(NamedTuple):
    """What is in tensor memory; barriers tell that scores, powers and a step's output are there."""

    memory: cute.Pointer
    scores: cute.Tensor
    output: cute.Tensor
    scored: cute.Pointer
    powered: cute.Pointer
    weighed: cute.Pointer


class Work(NamedTuple):
    """The tiles of a block: every `step`th of `tiles`, from `first` on."""

    first: cutlass.Int32
    tiles: int
    step: cutlass.Int32
    key_tiles: int


@cute.jit
def load(
    copies: tuple[cute.CopyAtom, cute.CopyAtom, cute.CopyAtom],
    tiles: tuple[cute.Tensor, cute.Tensor, cute.Tensor],
    inputs: Inputs,
    work: Work,
) -> None:
    """Load queries, once for a tile, and keys and values, a stage at a time."""
    alone = cute.make_layout(1)
    (to_q, from_q), (to_k, from_k), (to_v, from_v) = (
        cpasync.tma_partition(
            copy, 0, alone, cute.group_modes(stages, 0, 3), cute.group_modes(tile, 0, 3)
        )
        for copy, stages, tile in zip(copies, inputs[:3], tiles, strict=True)
    )
    turn = cutlass.Int32(0)
    count = cutlass.Int32(0)
    for tile in cutlass.range(work.first, work.tiles, work.step, unroll=1):
        full = inputs.queries_full
        cute.arch.mbarrier_wait(inputs.queries_empty, (turn + 1) % 2)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(full, QUERY_BYTES)
        cute.copy(copies[0], from_q[(None, tile)], to_q[(None, 0)], tma_bar_ptr=full)
        for keys in cutlass.range(work.key_tiles, unroll=1):
            stage = count % STAGES
            full = inputs.keys_full + stage
            cute.arch.mbarrier_wait(inputs.keys_empty + stage, (count // STAGES + 1) % 2)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full, KEY_BYTES)
            cute.copy(copies[1], from_k[(None, keys)], to_k[(None, stage)], tma_bar_ptr=full)
            cute.copy(copies[2], from_v[(None, keys)], to_v[(None, stage)], tma_bar_ptr=full)
            count += 1
        turn += 1


@cute.jit
def multiply(
    scoring: cute.TiledMma,
    weighing: cute.TiledMma,
    layout_powers: cute.ComposedLayout,
    inputs: Inputs,
    results: Results,
    work: Work,
) -> None:
    """Give products to the tensor core: the scores of a step before the output of the last one."""
    q = scoring.make_fragment_A(inputs.q)[(None, None, None, 0)]
    k, v = scoring.make_fragment_B(inputs.k), weighing.make_fragment_B(inputs.v)
    packed = weighing.make_fragment_A(cute.make_tensor(results.memory, layout_powers.outer))
    powers = cute.make_tensor(
        cute.recast_ptr(results.memory + POWERS, dtype=cutlass.Float16),
        packed[(None, None, None, 0)].layout,
    )
    turn = cutlass.Int32(0)
    count = cutlass.Int32(0)  # of scores
    done = cutlass.Int32(0)  # of outputs
    for _tile in cutlass.range(work.first, work.tiles, work.step, unroll=1):
        cute.arch.mbarrier_wait(inputs.queries_full, turn % 2)
        for keys in cutlass.range(work.key_tiles + 1, unroll=1):
            if keys < work.key_tiles:
                stage = count % STAGES
                cute.arch.mbarrier_wait(inputs.keys_full + stage, count // STAGES % 2)
                into = results.scores[(None, None, None, count % PLACES)]
                scoring.set(tcgen05.Field.ACCUMULATE, False)
                for part in cutlass.range_constexpr(WIDTH // 16):
                    at = (None, None, part)
                    cute.gemm(scoring, into, q[at], k[(*at, stage)], into)
                    scoring.set(tcgen05.Field.ACCUMULATE, True)
                commit(results.scored + count % PLACES)
                if keys == work.key_tiles - 1:
                    commit(inputs.queries_empty)
                count += 1
            if keys > 0:
                stage = done % STAGES
                cute.arch.mbarrier_wait(results.powered, done % 2)
                into = results.output
                weighing.set(tcgen05.Field.ACCUMULATE, False)
                for part in cutlass.range_constexpr(KEYS // 16):
                    at = (None, None, part)
                    cute.gemm(weighing, into, powers[at], v[(*at, stage)], into)
                    weighing.set(tcgen05.Field.ACCUMULATE, True)
                commit(inputs.keys_empty + stage)
                commit(results.weighed)
                done += 1
        turn += 1


@cute.jit
def take_softmax(out: cute.Tensor, results: Results, work: Work) -> None:
    """Turn scores into powers, add up the steps' outputs, and store."""
    thread, _, _ = cute.arch.thread_idx()
    plain = results.scores[((None, None), 0, 0, None)]
    half = cute.make_layout((QUERIES, KEYS // 2))  # two powers in a word
    words = cute.make_tensor(
        results.memory + POWERS, cute.composition(plain[(None, None, 0)].layout, half)
    )
    read = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(KEYS)), cutlass.Float32)
    write = cute.make_copy_atom(tcgen05.St32x32bOp(tcgen05.Repetition(KEYS // 2)), cutlass.Float32)
    take = tcgen05.make_tmem_copy(read, plain[(None, None, 0)])
    give = tcgen05.make_tmem_copy(write, words)
    taking, giving = take.get_slice(thread), give.get_slice(thread)
    scores, target = taking.partition_S(plain), giving.partition_D(words)
    output = taking.partition_S(results.output[((None, None), 0, 0)])
    tiles = taking.partition_D(cute.local_tile(out, (QUERIES, WIDTH), (None, 0)))
    held = cute.make_rmem_tensor(tiles[(None, None, None, 0)].shape, cutlass.Float32)
    total = cute.make_rmem_tensor(held.shape, cutlass.Float32)
    given = giving.partition_S(cute.make_identity_tensor(half.shape)).shape
    power_words = cute.make_rmem_tensor(given, cutlass.Float32)
    powers = cute.recast_tensor(power_words, cutlass.Float16)
    count = cutlass.Int32(0)
    for tile in cutlass.range(work.first, work.tiles, work.step, unroll=1):
        maximum = -cutlass.Float32.inf
        weight = cutlass.Float32(0)
        total.fill(0.0)
        for _keys in cutlass.range(work.key_tiles, unroll=1):
            place = count % PLACES
            cute.arch.mbarrier_wait(results.scored + place, count // PLACES % 2)
            cute.copy(take, scores[(None, None, None, place)], held)
            cute.arch.fence_view_async_tmem_load()
            higher = held.load().reduce(cute.ReductionOp.MAX, maximum, 0)
            shrink = cute.math.exp2(maximum - higher, fastmath=True)
            maximum = higher
            exact = cute.math.exp2(held.load() - maximum, fastmath=True)
            weight = exact.reduce(cute.ReductionOp.ADD, weight * shrink, 0)
            powers.store(exact.to(cutlass.Float16).reshape(powers.shape))
            cute.copy(give, power_words, target)
            cute.arch.fence_view_async_tmem_store()
            cute.arch.mbarrier_arrive(results.powered)
            cute.arch.mbarrier_wait(results.weighed, count % 2)
            cute.copy(take, output, held)
            cute.arch.fence_view_async_tmem_load()
            total.store(total.load() * shrink + held.load())
            count += 1
        held.store(total.load() * cute.arch.rcp_approx(weight))
        cute.autovec_copy(held, tiles[(None, None, None, tile)])


@cute.kernel
def kernel(
    products: tuple[cute.TiledMma, cute.TiledMma],
    copies: tuple[cute.CopyAtom, cute.CopyAtom, cute.CopyAtom],
    given: tuple[cute.Tensor, cute.Tensor, cute.Tensor],
    out: cute.Tensor,
    layouts: tuple[cute.ComposedLayout, cute.ComposedLayout, cute.ComposedLayout],
    layout_powers: cute.ComposedLayout,
) -> None:
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    work = Work(block, out.shape[0] // QUERIES, blocks, given[1].shape[0] // KEYS)
    scoring, weighing = products

    shared = cutlass.memory.SmemAllocator()
    single = [shared.allocate_array(cutlass.Int64, 1) for _ in range(4)]
    double = [shared.allocate_array(cutlass.Int64, 2) for _ in range(3)]
    queries_full, queries_empty, powered, weighed = single
    keys_full, keys_empty, scored = double
    holder = shared.allocate_array(cutlass.Int32, 1)
    q, k, v = (
        shared.allocate_tensor(cutlass.Float16, layout.outer, 1024, swizzle=layout.inner)
        for layout in layouts
    )
    inputs = Inputs(q, k, v, queries_full, queries_empty, keys_full, keys_empty)
    if thread == 0:
        cute.arch.mbarrier_init(queries_full, 1)
        cute.arch.mbarrier_init(queries_empty, 1)
        cute.arch.mbarrier_init(powered, SOFTMAX_THREADS)
        cute.arch.mbarrier_init(weighed, 1)
        for index in cutlass.range_constexpr(2):
            cute.arch.mbarrier_init(keys_full + index, 1)
            cute.arch.mbarrier_init(keys_empty + index, 1)
            cute.arch.mbarrier_init(scored + index, 1)
        cute.arch.mbarrier_init_fence()
    if warp == 0:
        cute.arch.alloc_tmem(COLUMNS, holder)
    cute.arch.sync_threads()
    memory = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, holder)
    shape = cute.append(scoring.partition_shape_C((QUERIES, KEYS)), PLACES)
    scores = cute.make_tensor(memory, scoring.make_fragment_C(shape).layout)
    shape = weighing.partition_shape_C((QUERIES, WIDTH))
    output = cute.make_tensor(memory + OUTPUT, weighing.make_fragment_C(shape).layout)
    results = Results(memory, scores, output, scored, powered, weighed)

    if warp == LOAD_WARP:
        score, weigh = scoring.get_slice(0), weighing.get_slice(0)
        tiles = (
            score.partition_A(cute.local_tile(given[0], (QUERIES, WIDTH), (None, 0))),
            score.partition_B(cute.local_tile(given[1], (KEYS, WIDTH), (None, 0))),
            weigh.partition_B(cute.local_tile(given[2], (WIDTH, KEYS), (0, None))),
        )
        load(copies, tiles, inputs, work)
    elif warp == PRODUCT_WARP:
        multiply(scoring, weighing, layout_powers, inputs, results, work)
    else:
        take_softmax(out, results, work)
        cute.arch.barrier(barrier_id=1, number_of_threads=SOFTMAX_THREADS)
        if warp == 0:
            cute.arch.relinquish_tmem_alloc_permit()
            cute.arch.dealloc_tmem(memory, COLUMNS)


@cute.jit
def attention(
    q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, blocks: cutlass.Constexpr
) -> None:
    """Write softmax2(Q K^T) V, by this many blocks; softmax2 has powers of 2."""
    major = cute.nvgpu.OperandMajorMode
    one = tcgen05.CtaGroup.ONE
    kind = (q.element_type, q.element_type)
    v = cute.make_tensor(v.iterator, cute.select(v.layout, mode=[1, 0]))
    score_tile, out_tile = (QUERIES, KEYS, WIDTH), (QUERIES, WIDTH, KEYS)
    scoring = blackwell_helpers.make_trivial_tiled_mma(
        *kind, major.K, major.K, cutlass.Float32, one, score_tile[:2]
    )
    weighing = blackwell_helpers.make_trivial_tiled_mma(
        *kind, major.K, major.MN, cutlass.Float32, one, out_tile[:2], tcgen05.OperandSource.TMEM
    )
    layout_q = blackwell_helpers.make_smem_layout_a(scoring, score_tile, q.element_type, 1)
    layout_k = blackwell_helpers.make_smem_layout_b(scoring, score_tile, k.element_type, STAGES)
    layout_v = blackwell_helpers.make_smem_layout_b(weighing, out_tile, v.element_type, STAGES)
    layout_powers = blackwell_helpers.make_smem_layout_a(weighing, out_tile, q.element_type, 1)
    copy = cpasync.CopyBulkTensorTileG2SOp(one)
    stage_q, stage_k, stage_v = (
        cute.slice_(layout, (None, None, None, 0)) for layout in (layout_q, layout_k, layout_v)
    )
    load_q, seen_q = cute.nvgpu.make_tiled_tma_atom_A(copy, q, stage_q, score_tile, scoring)
    load_k, seen_k = cute.nvgpu.make_tiled_tma_atom_B(copy, k, stage_k, score_tile, scoring)
    load_v, seen_v = cute.nvgpu.make_tiled_tma_atom_B(copy, v, stage_v, out_tile, weighing)
    kernel(
        (scoring, weighing),
        (load_q, load_k, load_v),
        (seen_q, seen_k, seen_v),
        out,
        (layout_q, layout_k, layout_v),
        layout_powers,
    ).launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1])
