"""Interval rules: sound bounds of each op's result from bounds of its operands.

An `Interval` holds every value a node can take: ``lo <= value <= hi`` for all values that are not
NaN, and `nan` tells whether NaN is possible.  Integers are exact Python ints (or infinities where
unbounded), bools are 0 and 1.  A rule may be loose; it may never be wrong.

One function for each row of the ops table; `ops` refers to them.  Evaluation of a whole graph is
`bound`.
"""
