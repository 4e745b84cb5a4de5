"""A small example of each variant: the lines of Python that make it, and how it is shown.

The command line explains and draws them where a variant has no data of its own, and
docs/variants.md shows them all: these lines are printed and run, so what is printed is right.  What
a variant computes and what its parameters mean stands in its docstring (`variant_index`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4 import variants


@dataclass(frozen=True)
class Example:
    """A small instance of a variant, and how it is shown.

    Attributes:
        name: of the default instance.
        example: the expression that makes a small one.
        setup: lines before it, for the tensors that it needs.
        lengths: queries and keys.
        canvas: of an image, then drawn with what one query sees on it.
        order: how the tokens of the canvas lie in the sequence.
        query: the position of that query.
        limits: the scores of a curve.
    """

    name: str
    example: str
    setup: tuple[str, ...] = ()
    lengths: tuple[int, int] = (64, 64)
    canvas: tuple[int, int] | None = None
    order: str = "token_order.row_major"
    query: int = 0
    limits: tuple[float, float] = (-6.0, 6.0)

    @property
    def is_default(self) -> bool:
        """Whether it is the default instance, shown at no lengths of its own."""
        return self.example == self.name and self.lengths == (64, 64)

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines of Python that make it."""
        return (*self.setup, self.example)

    def made(self) -> Any:
        """Return the variant, from its lines of Python; random tensors are the same each time."""
        names = {name: getattr(variants, name) for name in variants.__all__} | {"torch": torch}
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            for line in self.setup:
                exec(line, names)  # lines of this module, none of a user's
            return eval(self.example, names)


HEADS: Final = 4  # of every call that is drawn
RINGS: Final = (
    "ring = torch.eye(16).roll(1, 0)  # each node has an edge to the next one, and back",
    "adjacency = (ring + ring.T)[None]",
)

GALLERY: Final[dict[str, tuple[Example, ...]]] = {
    "Masks of text": (
        Example("causal", "causal"),
        Example("bottom_right_causal", "bottom_right_causal", lengths=(32, 64)),
        Example("offset_causal", "OffsetCausal(40)", lengths=(16, 64)),
        Example("sliding_window", "SlidingWindow(12)"),
        Example("local_window", "LocalWindow(left=10, right=4)"),
        Example("sink_window", "SinkWindow(sinks=4, window=12)"),
        Example("dilated_window", "DilatedWindow(window=6, dilation=3)"),
        Example("chunked_causal", "ChunkedCausal(16)"),
        Example("block_causal", "BlockCausal(8)"),
        Example("prefix_lm", "PrefixLM(20)"),
        Example("global_window", "GlobalWindow.from_positions([0, 30], length=64, window=6)"),
        Example(
            "big_bird",
            "BigBird.from_seed(1, length=64, random=1, shape=BigBird(block=4, global_blocks=1))",
        ),
        Example("longnet", "LongNet(8, 1) | LongNet(64, 4)"),
        Example("block_diffusion", "BlockDiffusion(length=32, block=8)"),
        Example("block_sparse", "BlockSparse(torch.rand(8, 8) < 0.3, block_size=(8, 8))"),
    ),
    "Masks of packed and padded text": (
        Example("document", "Document.from_lengths([14, 30, 20])"),
        Example("packed_causal", "PackedCausal.from_lengths([14, 30, 12])"),
        Example("packed_documents", "PackedDocuments.from_lengths([14, 30, 12], PrefixLM(8))"),
        Example("shared_prefix", "SharedPrefix.from_lengths([20, 12, 20, 12], [-1, 0, 0, 0])"),
        Example("prefix_tree", "PrefixTree.from_lengths([16, 12, 12, 10, 14], [-1, 0, 1, 1, 0])"),
        Example("folded_batch", "FoldedBatch(16, SlidingWindow(6))"),
        Example("key_padding", "KeyPadding(lengths=torch.tensor([44]))"),
        Example(
            "by_position",
            "ByPosition.from_pages(table, torch.tensor([28]), pages=8, page_size=8)",
            ("table = torch.tensor([[5, 2, 7, 0]])  # the pages of one text, in order",),
            (32, 64),
        ),
    ),
    "Masks of drafted tokens": (
        Example(
            "tree_attention",
            "TreeAttention.from_parents([(n - 1) // 2 for n in range(31)], prefix=24)",
            (),
            (31, 55),
        ),
        Example("draft_blocks", "DraftBlocks(prefix=24, block=8)", (), (40, 64)),
    ),
    "Masks of images and video": (
        Example("neighborhood", "Neighborhood((8, 8), kernel=(3, 5))", canvas=(8, 8), query=27),
        Example(
            "shifted_window",
            "ShiftedWindow((8, 8), window=(4, 4), shift=(2, 2))",
            canvas=(8, 8),
            query=27,
        ),
        Example("axial", "Axial((8, 8), axis=0) | Axial((8, 8), axis=1)", canvas=(8, 8), query=27),
        Example(
            "sliding_tile",
            "SlidingTile((8, 8), kernel=(6, 6), tile=(2, 2))",
            canvas=(8, 8),
            order="token_order.Tiled((2, 2))",
            query=45,
        ),
        Example(
            "spatial_head",
            "SpatialHead(text=4, frames=6, frame_tokens=10, width=1.5, multiple=1)",
        ),
        Example("temporal_head", "TemporalHead(text=4, frames=6, frame_tokens=10, width=1.5)"),
        Example(
            "video_sparse",
            "VideoTiles((4, 4, 4), (2, 2, 2)).mask(selected)",
            (
                "from flexfa4.variants.video_tiles import VideoTiles",
                "selected = torch.rand(1, 1, 8, 8).argsort(-1)[..., :3]  # 3 tiles for each",
            ),
        ),
        Example(
            "image_cross_attention",
            "ImageCrossAttention.from_image_positions([4, 20, 44], length=64, tokens=16)",
            lengths=(64, 48),
        ),
    ),
    "Biases by distance": (
        Example("alibi", "alibi"),
        Example("symmetric_alibi", "symmetric_alibi"),
        Example(
            "asymmetric_alibi",
            "AsymmetricAlibi(earlier, later)",
            (
                "earlier = torch.tensor([0.5, 0.25, 0.1, 0.05])",
                "later = torch.tensor([0.1, 0.25, 0.5, 0.05])",
            ),
        ),
        Example("alibi_2d", "Alibi2D(width=8)", canvas=(8, 8), query=27),
        Example("sandwich", "Sandwich(dimensions=32)", lengths=(40, 40)),
        Example(
            "kerple_log",
            "KerpleLog(r1, r2)",
            (
                "r1 = torch.tensor([1.0, 0.7, 0.4, 0.2])",
                "r2 = torch.tensor([1.0, 0.1, 1.0, 0.1])",
            ),
        ),
        Example(
            "kerple_power",
            "KerplePower(r1, r2)",
            (
                "r1 = torch.tensor([0.2, 0.2, 0.05, 0.05])",
                "r2 = torch.tensor([1.0, 0.5, 1.2, 0.8])",
            ),
        ),
        Example(
            "fire",
            "Fire.from_mlp(mlp, c=1.0, threshold=16.0)",
            (
                "mlp = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.ReLU(), "
                "torch.nn.Linear(32, 4))",
            ),
        ),
        Example("t5_bias", "T5Bias(table, max_distance=40)", ("table = torch.randn(16, 4)",)),
        Example(
            "relative_bias",
            "RelativeBias(table)",
            ("table = torch.randn(2 * 8 + 1, 4)  # a number for each distance up to 8",),
        ),
        Example(
            "swin_bias",
            "SwinBias(table, window=(8, 8))",
            (
                "d = torch.arange(-7.0, 8.0)  # query minus key, in each direction",
                "table = -(d[:, None] ** 2 + 3 * (d - 2) ** 2).view(15 * 15, 1).expand(-1, 4) / 40",
            ),
            canvas=(8, 8),
            query=27,
        ),
        Example(
            "forgetting_gate",
            "ForgettingGate.from_logits(logits)",
            ("logits = 4 + 2 * torch.randn(1, 4, 64)",),
        ),
    ),
    "Scores with vectors and tables of their own": (
        Example(
            "mla_rope",
            "MlaRope(q_rope, k_rope, scale=0.25)",
            (
                "angle = torch.arange(40.0) / 4",
                "rotated = torch.stack([angle.cos(), angle.sin()], -1)  # (1, 0), turned",
                "size = torch.tensor([1.0, 0.7, 0.4, 0.1])[:, None, None]  # of each head",
                "q_rope, k_rope = (size * rotated)[None], rotated[None, None]",
            ),
            (40, 40),
        ),
        Example(
            "shaw_relative",
            "ShawRelative(query, table)",
            ("query, table = torch.randn(1, 4, 24, 8), torch.randn(2 * 4 + 1, 8)",),
            (24, 24),
        ),
        Example(
            "deberta",
            "Deberta(query, key, q_pos, k_pos)",
            (
                "query, key = torch.randn(2, 1, 4, 12, 8)",
                "q_pos, k_pos = torch.randn(2, 4, 2 * 3, 8)",
            ),
            (12, 12),
        ),
        Example(
            "pair_bias",
            "PairBias(bias)",
            ("bias = -0.1 * (torch.arange(64)[:, None] - torch.arange(64).flip(0)).abs()",),
        ),
        Example(
            "graphormer_spatial",
            "GraphormerSpatial.from_adjacency(table, adjacency)",
            (
                *RINGS,
                "table = torch.linspace(2, -2, 7)[:, None] * torch.tensor([1.0, 0.7, 0.4, -0.2])",
            ),
            (16, 16),
        ),
        Example(
            "graphormer_edge",
            "GraphormerEdge.from_adjacency(table, adjacency, types)",
            (
                *RINGS,
                "types = torch.randint(3, (1, 16, 16))",
                "table = torch.randn(4, 3, 4)  # for paths of 4 edges, 3 types, 4 heads",
            ),
            (16, 16),
        ),
    ),
    "Functions of the score": (
        Example("softcap", "Softcap(20.0)", limits=(-60.0, 60.0)),
        Example("activation_score", "ActivationScore(torch.nn.functional.gelu)"),
        Example(
            "head_scale",
            "HeadScale(factor)",
            ("factor = torch.tensor([0.5, 1.0, 2.0, 4.0])",),
        ),
    ),
}


def examples() -> Iterator[Example]:
    """Yield every example of the table."""
    for group in GALLERY.values():
        yield from group


def example_of(name: str) -> Example:
    """Return the example of a variant, by the name of its default instance."""
    return next(example for example in examples() if example.name == name)
