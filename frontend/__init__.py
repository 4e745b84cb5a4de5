"""From a Python function to a verified, simplified graph and the facts known about it.

Stages, in the order in which data passes through them::

    locate      where in the user's source something happened
    captures    what the function closes over, and how to read it again on the next call
    proxies     values that record what the function does with them
    trace       function -> graph, cached; the one entry of this package for functions
    text        text <-> graph
    ir, ops     the graph, and one table row for each op
    rules       simplification
    derivative  d graph / d score and d graph / d captured value
    intervals   what values a node can take
    facts       what softmax and the kernels can make of a score graph
    evaluate    a graph's meaning on torch tensors
    blocks      which tiles of a mask are empty, partial or full

Knows torch (CPU), sympy and lark.  It does not know GPUs, cutlass, kernels or any variant's name.
"""

if __name__ != "flexfa4.frontend":
    raise ImportError(
        "the folder frontend/ is not a top-level package: write `import flexfa4.frontend`"
    )
