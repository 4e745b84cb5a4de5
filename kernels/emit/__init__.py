"""Graphs of mods as values of a GPU kernel: what the kernels call where a mod takes part.

A kernel is traced once for each plan, and while it is traced it asks for the value of a graph at
places of its tiles; what it gets is code that computes the value.  Nothing is printed or parsed::

    access      how a captured tensor is read from column to column
    captures    captured tensors and numbers as parameters of a kernel: what a plan knows of them,
                their order, their values in a call
    widths      which integers fit 32 bits, for 64-bit arithmetic is slow on GPUs
    program     a score mod split around the matrix product, a mask; what the kernel does when
    gradient    a score mod and its derivatives, split as a backward kernel computes them
    number_facts  what a plan rests on about captured numbers
    structure   what values vary with, in what order they are computed, what follows from what
    places      rows and columns that a thread holds
    cost        instructions for each score, for performance models
    builders    single instructions, by type
    table       one row for each row of the frontend's ops table: how it becomes instructions
    loads       reads of captured tensors
    evaluator   values at rows and columns of a tile, each computed once where it varies least
    pairs       values at two neighbouring columns, by Blackwell's instructions on pairs
    lanes       what a score mod does at one column, or at two
    sites       what a kernel calls: a score mod, a mask
    gradient_sites  what a backward kernel calls: exponents, gradients of scores and of captures

Those before `builders` are plain Python that a warm launch may import, and so is `errors`, with the
texts for what kernels have no code for; the others need CuTe-DSL.  Decides neither tile shapes nor
which blocks are visited, and never names a variant.
"""
