"""Backends: from graphs, facts and sizes to attention that runs.

A call goes through::

    backends          which backend serves it
    request           what a backend is handed: a checked call, its tensors, what came out
    forms             calls that are alike, found again by one look-up
    refusal           why a backend does not serve it, as a value; `errors` has the texts
    architectures     the GPUs that there are kernels for
    autograd          around every backend, with gradient_batches for torch's batched gradients
    load_gradients    what loads of captured tensors get, added into the tensors

    cpu               the backend in plain torch: the definition of what the others compute
    flex              torch's compiled FlexAttention
    sm90              kernels for Hopper
    sm100             kernels for Blackwell

and kernels are made by packages that know no architecture::

    forward           what forward kernels of all architectures have in common
    backward          what backward kernels of all architectures have in common
    blocks            from a mask to the tiles that a kernel visits
    varlen            the work of packed sequences whose lengths only the device knows
    emit              graphs as instructions of a kernel
    compile           a traced object becomes machine code, checked against its signature
    cache             compiled kernels in memory and in files
    launch            CUDA's driver

Kernels for another architecture get a folder beside `sm90` and `sm100`.  Never names a variant.
"""

if __name__ != "flexfa4.kernels":
    raise ImportError(
        "the folder kernels/ is not a top-level package: write `import flexfa4.kernels`"
    )
