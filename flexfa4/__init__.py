"""FlexFA4: a compiler for attention variants.

    out = flexfa4.attention(q, k, v, score_mod=alibi, block_mask=sliding_window)

Everything here is loaded on first use, so that ``import flexfa4`` costs next to nothing and loads
neither cutlass nor triton.
"""
