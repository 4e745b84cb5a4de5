"""Kernels for Blackwell (compute capability 10.0 and 10.3): tcgen05, tensor memory and TMA.

::

    architecture    what is particular to Blackwell in serving a call
    tuning          the tiling of a call: a row of `tilings`, or what `search` finds
    search          all tilings that fit, ranked
    tilings         the table of the best ones; written by benchmarks/sm100_search.py
    model           how long a kernel takes: what the search ranks by
    dispatch        how items reach blocks, and whether another way would be faster
    describe        a plan in words
    forward         the forward kernel: a folder of warp roles, composed of `primitives`
    backward        the backward kernels, likewise

The kernels have run in the emulator only.  Only modules of `forward` and `backward` import
CuTe-DSL, when a kernel is compiled.
"""
