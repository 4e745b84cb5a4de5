"""The inputs of a graph as nodes, for tests that build graphs by hand."""

from __future__ import annotations

from flexfa4.frontend.ir import input_

SCORE, B, H, Q, KV = map(input_, ("score", "b", "h", "q", "kv"))
