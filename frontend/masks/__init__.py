"""Mask analysis: from a mask's graph and the values of its captures to the structure of its blocks.

grid         the index space and the grid of blocks over it
classes      batches and heads that share one mask
loads        proof that the loads of a mask are in range, or the error
solving      masks that come to a few intervals for each query: the intervals, in symbols
search       any other mask: boxes of queries and keys that are split until they are decided
limits       how large all that may be
overlay      weighted stretches laid over lines and added up: unions and counts by their ends
runs         runs of blocks along rows or columns, and lists in CSR form made of them
sweep        runs and counts of blocks from a closed form
cuts         blocks of some queries, from those of all
structure    what kernels and `BlockMask` ask: all of the above behind one object
"""
