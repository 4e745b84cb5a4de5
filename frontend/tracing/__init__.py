"""From the user's function to its graph, calling it once.

::

    trace            the entry: cache of traces, `resolve`, `Mod`
    forms            types of functions, texts and `Mod`s, for annotations
    contract         how many parameters a mod has, and what it may return
    combining        masks and score mods combined into one
    captures         one trace: what it declares, and the conditions under which it holds
    wrappers         what a mod sees instead of each captured value, by its type
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
    tape             the same under torch.compile, where Dynamo runs the user's function; replay
                     does what it records, dynamo knows Dynamo's internals
    locate, advice   where in the user's source something happened, and what to write instead
"""
