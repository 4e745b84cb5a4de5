"""The blocks of any mask: boxes are split until they are proved, or are tiles and evaluated.

labels       ids that a mask compares for equality, numbered so that boxes tell them apart
membership   lists that a mask looks for a number in, as tables
zones        least and greatest values of captured tensors, for any range of indices
sparse_table the same of one tensor: extremes of cells, and of ranges of cells
boxes        three-valued evaluation of a mask over many boxes at once: ALWAYS, NEVER, MAYBE
quadtree     the geometry of boxes that are split: their levels, lanes and parts
tiles        exact decision of tiles that boxes leave open
parts        tiles decided by their parts, where many of them are of one value
refine       boxes split down to tiles, and those decided: the runs of blocks of any mask
"""
