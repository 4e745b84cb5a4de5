"""torch's compiled FlexAttention as a backend, for GPUs that there are no kernels of ours for.

::

    function    the backend: a request becomes a call of what torch compiled, and its gradients
    support     which calls are served, by device, dtype and head dims
    elements    short vectors in a mod taken apart
    source      a graph as a Python function of torch's operations
    blocks      the blocks of a mask as torch's lists
    compiled    mods and lists in one function that torch.compile takes
    describe    what becomes of a mod, in words
    errors      the chapter of the error catalogue

What torch cannot do is refused before it compiles anything.  Imports torch's FlexAttention and
compiler on the first call only.
"""
