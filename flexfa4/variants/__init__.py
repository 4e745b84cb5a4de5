"""Attention variants ready to use: a class with its parameters, and an instance with the defaults.

    from flexfa4.variants import SlidingWindow, alibi, causal

    flexfa4.attention(q, k, v, score_mod=alibi, block_mask=SlidingWindow(256))
    flexfa4.attention(q, k, v, block_mask=causal & ~SlidingWindow(4))

Every variant is an ordinary mod, a frozen dataclass whose ``__call__`` has the signature that users
write; nothing in the compiler knows one of them by name.  Masks combine with ``&``, ``|``, ``~``.

A tensor with an axis of batch entries, heads or positions may be larger than a call, which then
reads its beginning; one that is smaller is an `OutOfRangeError` that names it.

How the tokens of an image or a video lie in the sequence is a parameter of the masks over canvases
(`flexfa4.variants.token_order`); `flexfa4.variants.video_tiles` selects tiles for `VideoSparse`.

A file here never has the name of an instance: the import of a submodule would replace the instance
of the same name in this package.
"""

import difflib
from typing import Any

from flexfa4.variants.activation_scores import ActivationScore, activation_score
from flexfa4.variants.alibi_bias import Alibi, alibi
from flexfa4.variants.axial_mask import Axial, axial
from flexfa4.variants.big_bird_mask import BigBird, big_bird
from flexfa4.variants.block_causal_mask import BlockCausal, block_causal
from flexfa4.variants.block_diffusion_mask import BlockDiffusion, block_diffusion
from flexfa4.variants.block_sparse_mask import BlockSparse, block_sparse
from flexfa4.variants.bottom_right_causal_mask import BottomRightCausal, bottom_right_causal
from flexfa4.variants.by_position_mask import ByPosition, by_position
from flexfa4.variants.causal_mask import Causal, causal
from flexfa4.variants.chunked_causal_mask import ChunkedCausal, chunked_causal
from flexfa4.variants.clipped_relative_bias import (
    RelativeBias,
    ShawRelative,
    relative_bias,
    shaw_relative,
)
from flexfa4.variants.dilated_window_mask import DilatedWindow, dilated_window
from flexfa4.variants.disentangled_bias import Deberta, deberta
from flexfa4.variants.document_mask import Document, document
from flexfa4.variants.draft_blocks_mask import DraftBlocks, draft_blocks
from flexfa4.variants.fire_mlp_bias import Fire, fire
from flexfa4.variants.folded_batch_mask import FoldedBatch, folded_batch
from flexfa4.variants.forgetting_bias import ForgettingGate, forgetting_gate
from flexfa4.variants.global_window_mask import GlobalWindow, global_window
from flexfa4.variants.graphormer_bias import (
    GraphormerEdge,
    GraphormerSpatial,
    graphormer_edge,
    graphormer_spatial,
)
from flexfa4.variants.head_scaling import HeadScale, head_scale
from flexfa4.variants.image_alibi_bias import Alibi2D, alibi_2d
from flexfa4.variants.image_cross_attention_mask import ImageCrossAttention, image_cross_attention
from flexfa4.variants.kerple_bias import KerpleLog, KerplePower, kerple_log, kerple_power
from flexfa4.variants.key_padding_mask import KeyPadding, key_padding
from flexfa4.variants.local_window_mask import LocalWindow, local_window
from flexfa4.variants.longnet_mask import LongNet, longnet
from flexfa4.variants.mla_rope_scores import MlaRope, mla_rope
from flexfa4.variants.neighborhood_mask import Neighborhood, neighborhood
from flexfa4.variants.offset_causal_mask import OffsetCausal, offset_causal
from flexfa4.variants.packed_causal_mask import PackedCausal, packed_causal
from flexfa4.variants.packed_documents_mask import PackedDocuments, packed_documents
from flexfa4.variants.pairwise_bias import PairBias, pair_bias
from flexfa4.variants.prefix_lm_mask import PrefixLM, prefix_lm
from flexfa4.variants.prefix_tree_mask import PrefixTree, prefix_tree
from flexfa4.variants.sandwich_bias import Sandwich, sandwich
from flexfa4.variants.shared_prefix_mask import SharedPrefix, shared_prefix
from flexfa4.variants.shifted_window_mask import ShiftedWindow, shifted_window
from flexfa4.variants.sink_window_mask import SinkWindow, sink_window
from flexfa4.variants.sliding_tile_mask import SlidingTile, sliding_tile
from flexfa4.variants.sliding_window_mask import SlidingWindow, sliding_window
from flexfa4.variants.softcapping import Softcap, softcap
from flexfa4.variants.spatial_head_mask import SpatialHead, spatial_head
from flexfa4.variants.swin_window_bias import SwinBias, swin_bias
from flexfa4.variants.t5_relative_bias import T5Bias, t5_bias
from flexfa4.variants.temporal_head_mask import TemporalHead, temporal_head
from flexfa4.variants.tree_attention_mask import TreeAttention, tree_attention
from flexfa4.variants.two_sided_alibi_bias import (
    AsymmetricAlibi,
    SymmetricAlibi,
    asymmetric_alibi,
    symmetric_alibi,
)
from flexfa4.variants.video_sparse_mask import VideoSparse, video_sparse

__all__ = [
    "ActivationScore",
    "Alibi",
    "Alibi2D",
    "AsymmetricAlibi",
    "Axial",
    "BigBird",
    "BlockCausal",
    "BlockDiffusion",
    "BlockSparse",
    "BottomRightCausal",
    "ByPosition",
    "Causal",
    "ChunkedCausal",
    "Deberta",
    "DilatedWindow",
    "Document",
    "DraftBlocks",
    "Fire",
    "FoldedBatch",
    "ForgettingGate",
    "GlobalWindow",
    "GraphormerEdge",
    "GraphormerSpatial",
    "HeadScale",
    "ImageCrossAttention",
    "KerpleLog",
    "KerplePower",
    "KeyPadding",
    "LocalWindow",
    "LongNet",
    "MlaRope",
    "Neighborhood",
    "OffsetCausal",
    "PackedCausal",
    "PackedDocuments",
    "PairBias",
    "PrefixLM",
    "PrefixTree",
    "RelativeBias",
    "Sandwich",
    "SharedPrefix",
    "ShawRelative",
    "ShiftedWindow",
    "SinkWindow",
    "SlidingTile",
    "SlidingWindow",
    "Softcap",
    "SpatialHead",
    "SwinBias",
    "SymmetricAlibi",
    "T5Bias",
    "TemporalHead",
    "TreeAttention",
    "VideoSparse",
    "activation_score",
    "alibi",
    "alibi_2d",
    "asymmetric_alibi",
    "axial",
    "big_bird",
    "block_causal",
    "block_diffusion",
    "block_sparse",
    "bottom_right_causal",
    "by_position",
    "causal",
    "chunked_causal",
    "deberta",
    "dilated_window",
    "document",
    "draft_blocks",
    "fire",
    "folded_batch",
    "forgetting_gate",
    "global_window",
    "graphormer_edge",
    "graphormer_spatial",
    "head_scale",
    "image_cross_attention",
    "kerple_log",
    "kerple_power",
    "key_padding",
    "local_window",
    "longnet",
    "mla_rope",
    "neighborhood",
    "offset_causal",
    "packed_causal",
    "packed_documents",
    "pair_bias",
    "prefix_lm",
    "prefix_tree",
    "relative_bias",
    "sandwich",
    "shared_prefix",
    "shaw_relative",
    "shifted_window",
    "sink_window",
    "sliding_tile",
    "sliding_window",
    "softcap",
    "spatial_head",
    "swin_bias",
    "symmetric_alibi",
    "t5_bias",
    "temporal_head",
    "tree_attention",
    "video_sparse",
]


def __getattr__(name: str) -> Any:
    near = difflib.get_close_matches(name, __all__, n=1, cutoff=0.7)
    hint = f"; {near[0]}, if that is what you mean" if near else "; `flexfa4 variants` lists them"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
