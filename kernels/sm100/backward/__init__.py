"""Blackwell's backward kernels: gradients of q, k and v, tile by tile, from the saved lse.

::

    architecture what is particular to Blackwell in serving a backward pass
    model        how many cycles a tile takes at least
    tuning       how the work of a block is cut
    plan         all that the code of the main kernel depends on
    storage      what lies where in shared memory
    tmem         what lies where in tensor memory, and for how long

What follows needs CuTe-DSL::

    kernel       the main kernel's block: set-up, which warps do what, and where they meet
    barriers     the mbarriers of a block
    load         one warp: K and V, and Q, dO and statistics tile by tile
    mma          one warp: issues the five products
    compute      two warpgroups: probabilities and their gradients; dK and dV at the end
    reduce       one warpgroup: tiles of dQ to their sums in global memory
    postprocess  the kernel behind the main one: from the sums to dq

One block has a tile of 128 keys, or two blocks have one of 256 and compute together, as the 2-CTA
mode of FlashAttention-4 (arXiv 2603.05451): each reads half of the second operands, and has half of
the queries of dQ, for which it gets their gradients of scores from the other one.

What all architectures have in common: `flexfa4.kernels.backward`.  Scores and gradients, and the
sums of dK and dV, stay in tensor memory; through shared memory go the tiles that are loaded, dS as
the operand of dQ, and dQ on its way to global memory.
"""
