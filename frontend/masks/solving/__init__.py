"""Closed forms: a mask solved for one index, as a short union of intervals.

linear_forms integer expressions as linear forms, and proofs that one is never negative
premises     what a solution rests on beside the predicate
spans        unions of intervals whose ends are linear forms
inversion    comparisons solved for one index, a rule for each op
solve        a mask solved for one index, with what the solution rests on
in_words     that as text for people
solved       the solution of a mask for the values of a call
"""
