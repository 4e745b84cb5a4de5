"""The backward kernels: gradients of q, k and v, tile by tile, from the saved lse.

::

    function     from out, lse and their gradients to those of every input
    call         from the tensors of a call to its plans, and to the values of a launch
    tuning       how the work of a block is cut
    plan         all that the code of the three kernels depends on, and the order of parameters
    storage      what lies where in shared memory
    compiled     the compiled kernels of a call, from memory, disk or the compiler
    describe     what a backward pass does, in words

    preprocess   statistics of each query; clears the sums of dQ; what follows needs CuTe-DSL
    parameters   the values of a launch of the main kernel, in the kernel that is traced
    kernel       the main kernel's block: set-up, and which warps do what
    scores       where mod and mask, and their derivatives, are spliced in
    captures     sums of the gradients of captured tensors
    load         producer warp: TMA loads of K and V, and of Q and dO tile by tile
    consume      consumer warpgroups: the five products, probabilities and their gradients
    dq           consumer warpgroups: a tile of dQ to its sums in global memory
    epilogue     consumer warpgroups and the storing warp: dK and dV to global memory
    postprocess  from the sums to dq

A block of the main kernel has a tile of keys and meets tiles of queries.  Scores are computed
transposed, keys by queries, so that probabilities and their gradients are operands of the products
for dV and dK as they lie in registers.
"""
