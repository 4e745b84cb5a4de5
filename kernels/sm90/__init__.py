"""Kernels for Hopper (compute capability 9.0): WGMMA, TMA and warp specialisation.

::

    architecture    what is particular to Hopper in serving a call
    tuning          the tiling of a call
    model           how long a kernel takes: chooses where nothing was measured
    describe        a plan in words
    forward         the forward kernel: a folder of warp roles, composed of `primitives`
    backward        the kernels of the backward pass

Only modules of `forward` and `backward` import CuTe-DSL, when a kernel is compiled.
"""
