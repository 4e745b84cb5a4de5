"""Compiled kernels that are kept: in memory, and in files that processes share.

::

    keys      the key of a kernel: a canonical text of its plan, our sources, CuTe-DSL's release
    entry     one file for one kernel: a header in JSON, then machine code and PTX
    locks     one process compiles a kernel, others wait for it
    store     `KernelCache`: look up, or compile and keep

Nothing here loads cutlass: that a kernel is found takes some milliseconds of reading.
"""
