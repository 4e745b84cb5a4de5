"""From a mask to the visits of a kernel: which tiles of keys, how, and in which order.

A forward pass goes by tiles of queries, a backward pass by tiles of keys, which visit queries::

    steps         how much an expression changes from one query, or key, to the next
    intervals     a closed form of one interval as a graph that a kernel can evaluate
    lists         the visits of each line of tiles, listed on the device
    counts        how many tiles each query tile visits, and the order of work that follows
    ranks         turns at tiles that several lines visit, and the order in which these wait least
    walk          the choice among these for a mask, and what it needs on the device
    work_counter  the counter from which the blocks of a launch fetch their work
    emitted       the ends of intervals as values of a kernel that is traced

What kernels do with it is in `primitives.tile_walk` and `primitives.scheduler`.  All but `emitted`
imports no kernel language: it runs on the host, for any GPU backend.
"""
