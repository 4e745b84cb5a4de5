"""`attention_varlen` where Dynamo traces: left to Python, which can read cumulative lengths.

Loaded only while Dynamo traces.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from flexfa4 import varlen

attend: Final[Any] = torch.compiler.disable(
    varlen.attend,
    reason="flexfa4.attention_varlen reads cu_seqlens: compile without fullgraph=True, or use"
    " flexfa4.attention with a mask of documents",
)  # type: ignore[no-untyped-call]
