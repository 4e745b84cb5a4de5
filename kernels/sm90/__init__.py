"""Kernels for Hopper (compute capability 9.0): WGMMA, TMA and warp specialisation.

::

    function    the backend: a request becomes a launch
    support     which calls are served, by device, dtype and head dims
    tuning      the tiling of a call
    model       how long a kernel takes: chooses where nothing was measured
    describe    a plan and a kernel in words
    forward     the forward kernel: a folder of warp roles, composed of `primitives`

There is no backward kernel: gradients are computed by the CPU backend's code.  Only modules of
`forward` import CuTe-DSL, when a kernel is compiled.
"""
