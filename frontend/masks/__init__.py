"""Mask analysis: from a mask's graph and the values of its captures to the structure of its blocks.

grid         the index space and the grid of blocks over it
classes      batches and heads that share one mask
contents     least and greatest elements of captured tensors
loads        proof that the loads of a mask are in range, or the error
unroll       vectors taken apart into their elements, for `solving` and `search`
solving      masks that come to a few intervals for each query: the intervals, in symbols
search       any other mask: boxes of queries and keys that are split until they are decided
limits       how large all that may be
overlay      weighted stretches laid over lines and added up: unions and counts by their ends
runs         runs of blocks along rows or columns, and lists in CSR form made of them
sweep        runs and counts of blocks from a closed form
cuts         blocks of some queries, from those of all
structure    what kernels and `BlockMask` ask: all of the above behind one object

Words: an *interval* bounds a value (`analysis`); a *span* is the symbolic interval of positions of
a closed form.  A *line* is a row or a column of blocks, a *run* blocks of one kind along a line; a
*stretch* is like a run, with any weight, and may overlap others; *steps* are numbers along lines
and the places where they change.  A *box* is a range of queries by a range of keys, about which
something is proved; a *tile* is a block that is evaluated.
"""
