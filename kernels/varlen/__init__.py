"""Packed sequences on kernels: lengths that only the device knows.

::

    walk      which tiles are visited, whatever the lengths turn out to be
    table     the table of work items: its layout, and what the host knows of its size
    plan      what the code of the kernel that makes a table depends on
    kernel    that kernel; needs CuTe-DSL
    call      from the tensors of a call to its launch

The host reads no length: a call launches the kernel that makes the table, and behind it the kernel
of attention, which takes its work from there.  So lengths may change between replays of a CUDA
graph.  Masks without a closed form of one interval, which would need lists of tiles, are not for
this package.
"""
