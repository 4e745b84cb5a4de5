"""From a Python function or a text to a verified, simplified graph, and what is known about it.

In the order in which data passes through them::

    tracing     the user's function -> graph; what it captures, read again on every call
    text        text <-> graph
    ir, ops     the graph, and one table row for each op
    composed    functions of several ops that text and tracing share
    integers    integer operations that have no result in 64 bits
    verify      what a well-formed graph is
    rewriting   simplification, a table of rules
    pipeline    the passes from a traced graph to the graph that is analysed and run
    derivative  d graph / d score and d graph / d captured element
    analysis    intervals, linear forms, and the facts that kernels build on
    binding     a graph with the captured values of one call
    sizes       the sizes of one call, which mods may read
    places      where the user's source reads captured tensors, for messages
    contraction sums of products of two tensors, as matrix products
    pool        memory for large temporaries that is used again
    layout      how the output of attention lies in memory
    csr         lists of lists in flat tensors
    value_runs  runs of equal values in captured tensors, and searches in them
    gather      elements of a tensor at indices that broadcast
    lanes       where a graph is evaluated: a rectangle of scores, or scattered tiles
    evaluate    a graph's meaning on torch tensors, at such lanes
    eager       the same on tensors of any shapes, for mods called as functions
    masks       which blocks of a mask are empty, partial or full, proved from its graph

Knows torch on the CPU, and lark where a text is read.  It does not know GPUs, cutlass, kernels or
any variant's name.
"""

if __name__ != "flexfa4.frontend":
    raise ImportError(
        "the folder frontend/ is not a top-level package: write `import flexfa4.frontend`"
    )
