"""Simplification: `patterns` (how a rule is written), `rule_table`, and `rules` (the engine)."""
