"""The execution core in C++, and what Python needs of it.

::

    compiler    finds a C++ compiler, and says how to call it on this machine
    build       compiles the sources at first use; a cache keeps what has been compiled
    library     the functions of the built library, for Python

    program/    a decoded kernel, and which code executes which operation
    machine/    warps, blocks, clusters, the schedules and the asynchronous engines
    memory/     the memories, and the instructions that touch them
    arithmetic/ integers, floats, conversions
    sync/       barriers, fences, and what warps do together
    copies/     bulk and tensor copies
    matrices/   tensor memory, tcgen05, wgmma and mma
    races/      the race detector
    interface.cpp  what the library exports

Each instruction is registered by the file that executes it; `program/operation.hpp` says how.
"""
