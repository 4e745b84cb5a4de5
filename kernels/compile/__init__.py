"""Compiling GPU kernels: a CuTe-DSL object becomes a `CompiledKernel` that owns all it needs.

::

    signature         the parameters of a kernel, in order: tensor maps, pointers, numbers
    compiled_kernel   what compiling makes: PTX, machine code, how to launch it, what it uses
    ptx_entry         the entry of a PTX text: its parameters, block, register budgets
    cubin             what machine code says of itself: registers, stack, parameters
    traced            what CuTe-DSL traced: the launch, the tensor maps of its parameters
    cute              one compilation by CuTe-DSL, without a GPU and without its settings
    casters           quicker ways to the values that CuTe-DSL makes of results
    compiler          `compile_kernel`: compile, check, and say what went wrong
    errors            the texts for that

Only `casters`, `cute` and `compiler` load cutlass.  A kernel that comes from a cache, or from a
file, is launched without it.
"""
