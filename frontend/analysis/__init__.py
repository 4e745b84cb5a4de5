"""What is known about a graph without running it.

::

    ends                ends of intervals: a number, or a tensor with one for each of many boxes
    intervals           a sound interval rule for each op
    interval_bits       those of bit operations
    interval_functions  those of powers and of functions of one float
    bounds              intervals of a whole graph; proofs that loads stay in range
    shifts              masks that are the same all along the diagonal
    linear              affine forms in the score, linear forms in an index
    facts               what softmax and kernels can make of a mod, each with its proof obligation
    peeling             a score mod as a factor and terms around what is left for each score
    in_words            the facts as text for people
"""
