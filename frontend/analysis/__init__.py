"""What is known about a graph without running it.

::

    intervals  a sound interval rule for each op
    bounds     intervals of a whole graph; proofs that loads stay in range
    shifts     masks that are the same all along the diagonal
    linear     affine forms in the score, linear forms in an index
    facts      what softmax and kernels can make of a mod, each with its proof obligation
    in_words   the facts as text for people
"""
