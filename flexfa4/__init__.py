"""FlexFA4: a compiler for attention variants.

    out = flexfa4.attention(q, k, v, score_mod=alibi, block_mask=sliding_window)

Names are loaded on first use (PEP 562), so that ``import flexfa4`` costs next to nothing and loads
neither cutlass nor triton.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flexfa4 import errors as errors
    from flexfa4 import flex as flex
    from flexfa4 import typing as typing
    from flexfa4 import variants as variants
    from flexfa4.ahead_of_time import compile
    from flexfa4.api import Options, attention
    from flexfa4.block_mask import BlockMask, create_block_mask
    from flexfa4.combine import MaskMod, ScoreMod, compose, mask
    from flexfa4.counters import Stats, stats
    from flexfa4.errors import FlexFA4Error
    from flexfa4.frontend.tracing.proxies import kv_len, num_heads, num_kv_heads, q_len
    from flexfa4.frontend.tracing.trace import Mod, parse, trace
    from flexfa4.plotting.masks import plot_mask
    from flexfa4.plotting.scores import plot_score_mod
    from flexfa4.report import explain
    from flexfa4.varlen import attention_varlen

__version__ = "0.1.0"

__all__ = [
    "BlockMask",
    "FlexFA4Error",
    "MaskMod",
    "Mod",
    "Options",
    "ScoreMod",
    "Stats",
    "attention",
    "attention_varlen",
    "compile",
    "compose",
    "create_block_mask",
    "explain",
    "kv_len",
    "mask",
    "num_heads",
    "num_kv_heads",
    "parse",
    "plot_mask",
    "plot_score_mod",
    "q_len",
    "stats",
    "trace",
]

_HOME = {
    "BlockMask": "block_mask",
    "FlexFA4Error": "errors",
    "MaskMod": "combine",
    "Mod": "frontend.tracing.trace",
    "Options": "api",
    "ScoreMod": "combine",
    "Stats": "counters",
    "attention": "api",
    "attention_varlen": "varlen",
    "compile": "ahead_of_time",
    "compose": "combine",
    "create_block_mask": "block_mask",
    "explain": "report",
    "kv_len": "frontend.tracing.proxies",
    "mask": "combine",
    "num_heads": "frontend.tracing.proxies",
    "num_kv_heads": "frontend.tracing.proxies",
    "parse": "frontend.tracing.trace",
    "plot_mask": "plotting.masks",
    "plot_score_mod": "plotting.scores",
    "q_len": "frontend.tracing.proxies",
    "stats": "counters",
    "trace": "frontend.tracing.trace",
}

# Modules that users read names from: ``flexfa4.variants.causal``.
_MODULES = frozenset(("errors", "flex", "typing", "variants"))


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"flexfa4.{name}")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'flexfa4' has no attribute {name!r}")
    with importlib.import_module("flexfa4.collector").no_collection():
        value = getattr(importlib.import_module(f"flexfa4.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    own = (name for name in globals() if name.startswith("__"))
    return sorted({*own, *__all__, *_MODULES})
