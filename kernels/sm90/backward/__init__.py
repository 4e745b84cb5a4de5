"""Hopper's backward kernels: gradients of q, k and v, tile by tile, from the saved lse.

::

    architecture what is particular to Hopper in serving a backward pass
    tuning       how the work of a block is cut
    tilings      likewise, by head dims: written by benchmarks/h200_tilings.py
    plan         all that the code of the main kernel depends on
    storage      what lies where in shared memory

What follows needs CuTe-DSL::

    kernel       the main kernel's block: set-up, and which warps do what
    load         producer warp: TMA loads of K and V, and of Q and dO tile by tile
    consume      consumer warpgroups: the five products, probabilities and their gradients
    lagged       likewise, where the product for dQ begins behind the scores of the next tile
    outbox       parts of dQ through shared memory to their sums, by warps of their own
    ordered      an outbox that waits for the turn of each part
    finish       an outbox behind which dQ is finished by who adds the last part to a tile
    epilogue     consumer warpgroups: dK and dV to shared memory
    postprocess  the kernel behind the main one, where dQ is not finished there: from sums to dq

What all architectures have in common: `flexfa4.kernels.backward`.  Probabilities and their
gradients are operands of the products for dV and dK as they lie in registers.
"""
