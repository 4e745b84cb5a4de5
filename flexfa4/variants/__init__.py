"""Attention variants ready to use: a class with its parameters, and an instance with the defaults.

    from flexfa4.variants import SlidingWindow, alibi, causal

    flexfa4.attention(q, k, v, score_mod=alibi, block_mask=SlidingWindow(256))
    flexfa4.attention(q, k, v, block_mask=causal & ~SlidingWindow(4))

Every variant is an ordinary mod, a frozen dataclass whose ``__call__`` has the signature that users
write; nothing in the compiler knows one of them by name.  Masks combine with ``&``, ``|``, ``~``.

A file here never has the name of an instance: the import of a submodule would replace the instance
of the same name in this package.
"""

from flexfa4.variants.alibi_bias import Alibi, alibi
from flexfa4.variants.causal_mask import Causal, causal
from flexfa4.variants.document_mask import Document, document
from flexfa4.variants.prefix_lm_mask import PrefixLM, prefix_lm
from flexfa4.variants.sliding_window_mask import SlidingWindow, sliding_window
from flexfa4.variants.softcapping import Softcap, softcap

__all__ = [
    "Alibi",
    "Causal",
    "Document",
    "PrefixLM",
    "SlidingWindow",
    "Softcap",
    "alibi",
    "causal",
    "document",
    "prefix_lm",
    "sliding_window",
    "softcap",
]
