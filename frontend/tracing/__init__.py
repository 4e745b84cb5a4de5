"""From the user's function to its graph, calling it once.

::

    trace            the entry: cache of traces, `resolve`, `Mod`
    contract         how many parameters a mod has, and what it may return
    captures         wraps what a function closes over, so that a trace can record it
    recording        functions rebuilt so that what they read is noted
    objects          stand-ins for objects and modules that note what is read
    classes          stand-ins for classes, and for super()
    escapes          the net below: code of the user's that runs without being rebuilt is refused
    sources          expressions that read a captured value again, and the checks of a trace
    hosts            captured numbers and tensors, and computations on them alone
    indexing         captured tensors indexed by traced values
    proxies          values that differ for each score
    torch_functions  torch's functions on proxies; torch_table, activations and conversions say
                     what each of them means
    numpy_functions  numpy's functions on captured values, refused on proxies
    locate, advice   where in the user's source something happened, and what to write instead
"""
