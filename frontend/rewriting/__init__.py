"""Graphs to graphs.

patterns     how a rule of simplification is written
rule_table   the rules
rules        the engine that applies them
packed       mods of packed sequences, from mods of one sequence
"""
