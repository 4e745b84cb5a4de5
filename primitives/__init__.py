"""Building blocks of attention that backends compose.

::

    key_runs        iteration over the non-empty blocks of a mask, as long runs of keys
    arithmetic      index arithmetic that is written once, for hosts and kernels; on values of a
                    kernel, device_arithmetic
    fast_division   division by sizes of a call as a product and a shift
    tile_walk       which tiles of keys a tile of queries visits
    scheduler       in which order the tiles of queries of all heads are worked on
    makespan        how long that takes: a simulator
    roofline        how long a tile takes, from its work on each resource
    dispatch        how blocks come by their items, in a kernel
    online_softmax  running maximum and sum of rows, in base 2; in a kernel, row_softmax

What follows is for kernels only, and needs CuTe-DSL::

    tma             copies of tensor tiles between global and shared memory
    pipeline        rings of buffers in shared memory
    wgmma           Hopper's warpgroup matrix products
    turns           warpgroups that issue products one after the other
"""

if __name__ != "flexfa4.primitives":
    raise ImportError(
        "the folder primitives/ is not a top-level package: write `import flexfa4.primitives`"
    )
