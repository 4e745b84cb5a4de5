"""Building blocks of attention that backends compose.

::

    key_runs        iteration over the non-empty blocks of a mask, as long runs of keys
    arithmetic      index arithmetic that is written once, for hosts and kernels; on values of a
                    kernel, device_arithmetic
    fast_division   division by sizes of a call as a product and a shift
    tile_walk       which tiles of keys a tile of queries visits
    scheduler       in which order the tiles of queries of all heads are worked on
    ragged          tensor maps whose boxes end where a sequence does
    makespan        how long that takes: a simulator
    turn_order      how long it takes where work adds to shared sums one after the other
    roofline        how long a tile takes, from its work on each resource
    dispatch        how blocks come by their items, in a kernel
    shared_bytes    shared memory that such hand-over takes
    online_softmax  running maximum and sum of rows, in base 2
    exponentials    2^x by additions and products, and how many of them; in a kernel,
                    device_exponentials

What follows is for kernels only, and needs CuTe-DSL::

    tma             copies of tensor tiles between global and shared memory
    pipeline        rings of buffers in shared memory
    shared_rows     a thread's row of a tile in shared memory, of its block or another one
    clusters        which block of a cluster a thread is of
    wgmma           Hopper's warpgroup matrix products
    tcgen05         Blackwell's matrix products
    tmem            tensor memory, which they accumulate in
    turns           warpgroups that issue products one after the other
    semaphores      blocks that add to the same sums one after the other
    arrivals        blocks that add to the same sums in any order: who comes first, and who last
    registers       a thread's numbers, read and written one by one
    packed          pairs of fp32 numbers, and Blackwell's arithmetic on them
    running_softmax  what the maximum and sum of a row mean while its keys are taken in
    row_softmax     rows that four threads share: Hopper's accumulators
    whole_row_softmax  rows that a thread has to itself: Blackwell's
    column_limits   hiding what lies outside of a row's limits, by words of bits
"""

if __name__ != "flexfa4.primitives":
    raise ImportError(
        "the folder primitives/ is not a top-level package: write `import flexfa4.primitives`"
    )
