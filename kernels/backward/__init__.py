"""What the backward passes of all architectures have in common: gradients from the saved lse.

::

    function     from out, lse and their gradients to those of every input
    call         from the tensors of a call to its plans, and to the values of a launch
    plan         what the code of the three kernels depends on, and the order of parameters
    fragment     how a tile of scores lies in the registers of a warpgroup
    architecture what differs between architectures
    waiting      how long blocks wait for their turns, simulated
    compiled     the compiled kernels of a call, from memory, disk or the compiler
    describe     what a backward pass does, in words

What follows needs CuTe-DSL::

    preprocess   statistics of each query; clears the sums of dQ, or counts on who will add to them
    parameters   the values of a launch of the main kernel, in the kernel that is traced
    pairs        the batches and query heads that a tile of keys belongs to
    scores       where mod and mask, and their derivatives, are spliced in
    captures     sums of the gradients of captured tensors
    dq           a tile of dQ to its sums in global memory, and back
    store        dK and dV to global memory

A block of the main kernel has a tile of keys and meets tiles of queries.  Scores are computed
transposed, keys by queries, so that probabilities and their gradients are operands of the products
for dV and dK where they are made.  The kernels themselves are architectures' own: main kernel, and
the one behind it, which knows how tiles of dQ were accumulated.
"""
