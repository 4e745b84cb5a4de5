"""From the user's function to its graph, calling it once.

::

    trace            the entry: cache of traces, `resolve`, `Mod`
    contract         how many parameters a mod has, and what it may return
    captures         wraps what a function closes over, so that a trace can record it
    recording        stand-ins for functions, objects and modules that note what is read
    sources          expressions that read a captured value again, and the checks of a trace
    hosts            captured numbers and tensors, and computations on them alone
    indexing         captured tensors indexed by traced values
    proxies          values that differ for each score
    torch_functions  torch's functions on proxies; torch_table, activations and conversions say
                     what each of them means
    locate, advice   where in the user's source something happened, and what to write instead
"""
