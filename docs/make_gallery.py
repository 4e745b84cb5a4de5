"""Write docs/variants.md and docs/pictures/ from the library of variants.

    python docs/make_gallery.py            # text and pictures (needs the `plot` extra)

What a variant computes, its parameters and its source are read from its docstring; the table here
adds, for each, the lines of Python that make a small one.  These lines are printed as the example
and run to draw the picture, so they are right.  A test compares the text with the committed file
and sees that every variant has a row and a picture.
"""

from __future__ import annotations

import io
import itertools
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import matplotlib
import torch
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from PIL import Image

import flexfa4
from flexfa4 import variants
from flexfa4.frontend.sizes import Sizes
from flexfa4.plotting import EMPTY, LINE, PARTIAL, SEEN, draw_tokens, new_figure
from flexfa4.score_plots import Scores, draw_curve, draw_matrix, draw_rows
from flexfa4.variant_index import Entry, entries
from flexfa4.variants import token_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER: Final = Path(__file__).resolve().parent
PANEL: Final = 2.1  # inches
DOTS: Final = 100  # for each inch
# Colours in a picture: of a mask, with those between its two, and of a bias with its lines.
COLOURS: Final = {"mask": 48, "score": 80}
SHADES: Final = 17  # of them in a scale of colours


@dataclass(frozen=True)
class Row:
    """How a variant is shown.

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


HEADS: Final = 4  # of every call that is drawn
RINGS: Final = (
    "ring = torch.eye(16).roll(1, 0)  # each node has an edge to the next one, and back",
    "adjacency = (ring + ring.T)[None]",
)

GALLERY: Final[dict[str, tuple[Row, ...]]] = {
    "Masks of text": (
        Row("causal", "causal"),
        Row("bottom_right_causal", "bottom_right_causal", lengths=(32, 64)),
        Row("offset_causal", "OffsetCausal(40)", lengths=(16, 64)),
        Row("sliding_window", "SlidingWindow(12)"),
        Row("local_window", "LocalWindow(left=10, right=4)"),
        Row("sink_window", "SinkWindow(sinks=4, window=12)"),
        Row("dilated_window", "DilatedWindow(window=6, dilation=3)"),
        Row("chunked_causal", "ChunkedCausal(16)"),
        Row("block_causal", "BlockCausal(8)"),
        Row("prefix_lm", "PrefixLM(20)"),
        Row("global_window", "GlobalWindow.from_positions([0, 30], length=64, window=6)"),
        Row(
            "big_bird",
            "BigBird.from_seed(1, length=64, random=1, shape=BigBird(block=4, global_blocks=1))",
        ),
        Row("longnet", "LongNet(8, 1) | LongNet(64, 4)"),
        Row("block_diffusion", "BlockDiffusion(length=32, block=8)"),
        Row("block_sparse", "BlockSparse(torch.rand(8, 8) < 0.3, block_size=(8, 8))"),
    ),
    "Masks of packed and padded text": (
        Row("document", "Document.from_lengths([14, 30, 20])"),
        Row("packed_causal", "PackedCausal.from_lengths([14, 30, 12])"),
        Row("packed_documents", "PackedDocuments.from_lengths([14, 30, 12], PrefixLM(8))"),
        Row("shared_prefix", "SharedPrefix.from_lengths([20, 12, 20, 12], [-1, 0, 0, 0])"),
        Row("prefix_tree", "PrefixTree.from_lengths([16, 12, 12, 10, 14], [-1, 0, 1, 1, 0])"),
        Row("folded_batch", "FoldedBatch(16, SlidingWindow(6))"),
        Row("key_padding", "KeyPadding(lengths=torch.tensor([44]))"),
        Row(
            "by_position",
            "ByPosition.from_pages(table, torch.tensor([28]), pages=8, page_size=8)",
            ("table = torch.tensor([[5, 2, 7, 0]])  # the pages of one text, in order",),
            (32, 64),
        ),
    ),
    "Masks of drafted tokens": (
        Row(
            "tree_attention",
            "TreeAttention.from_parents([(n - 1) // 2 for n in range(31)], prefix=24)",
            (),
            (31, 55),
        ),
        Row("draft_blocks", "DraftBlocks(prefix=24, block=8)", (), (40, 64)),
    ),
    "Masks of images and video": (
        Row("neighborhood", "Neighborhood((8, 8), kernel=(3, 5))", canvas=(8, 8), query=27),
        Row(
            "shifted_window",
            "ShiftedWindow((8, 8), window=(4, 4), shift=(2, 2))",
            canvas=(8, 8),
            query=27,
        ),
        Row("axial", "Axial((8, 8), axis=0) | Axial((8, 8), axis=1)", canvas=(8, 8), query=27),
        Row(
            "sliding_tile",
            "SlidingTile((8, 8), kernel=(6, 6), tile=(2, 2))",
            canvas=(8, 8),
            order="token_order.Tiled((2, 2))",
            query=45,
        ),
        Row(
            "spatial_head",
            "SpatialHead(text=4, frames=6, frame_tokens=10, width=1.5, multiple=1)",
        ),
        Row("temporal_head", "TemporalHead(text=4, frames=6, frame_tokens=10, width=1.5)"),
        Row(
            "video_sparse",
            "VideoTiles((4, 4, 4), (2, 2, 2)).mask(selected)",
            (
                "from flexfa4.variants.video_tiles import VideoTiles",
                "selected = torch.rand(1, 1, 8, 8).argsort(-1)[..., :3]  # 3 tiles for each",
            ),
        ),
        Row(
            "image_cross_attention",
            "ImageCrossAttention.from_image_positions([4, 20, 44], length=64, tokens=16)",
            lengths=(64, 48),
        ),
    ),
    "Biases by distance": (
        Row("alibi", "alibi"),
        Row("symmetric_alibi", "symmetric_alibi"),
        Row(
            "asymmetric_alibi",
            "AsymmetricAlibi(earlier, later)",
            (
                "earlier = torch.tensor([0.5, 0.25, 0.1, 0.05])",
                "later = torch.tensor([0.1, 0.25, 0.5, 0.05])",
            ),
        ),
        Row("alibi_2d", "Alibi2D(width=8)", canvas=(8, 8), query=27),
        Row("sandwich", "Sandwich(dimensions=32)", lengths=(40, 40)),
        Row(
            "kerple_log",
            "KerpleLog(r1, r2)",
            (
                "r1 = torch.tensor([1.0, 0.7, 0.4, 0.2])",
                "r2 = torch.tensor([1.0, 0.1, 1.0, 0.1])",
            ),
        ),
        Row(
            "kerple_power",
            "KerplePower(r1, r2)",
            (
                "r1 = torch.tensor([0.2, 0.2, 0.05, 0.05])",
                "r2 = torch.tensor([1.0, 0.5, 1.2, 0.8])",
            ),
        ),
        Row(
            "fire",
            "Fire.from_mlp(mlp, c=1.0, threshold=16.0)",
            (
                "mlp = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.ReLU(), "
                "torch.nn.Linear(32, 4))",
            ),
        ),
        Row("t5_bias", "T5Bias(table, max_distance=40)", ("table = torch.randn(16, 4)",)),
        Row(
            "relative_bias",
            "RelativeBias(table)",
            ("table = torch.randn(2 * 8 + 1, 4)  # a number for each distance up to 8",),
        ),
        Row(
            "swin_bias",
            "SwinBias(table, window=(8, 8))",
            (
                "d = torch.arange(-7.0, 8.0)  # query minus key, in each direction",
                "table = -(d[:, None] ** 2 + 3 * (d - 2) ** 2).view(15 * 15, 1).expand(-1, 4) / 40",
            ),
            canvas=(8, 8),
            query=27,
        ),
        Row(
            "forgetting_gate",
            "ForgettingGate.from_logits(logits)",
            ("logits = 4 + 2 * torch.randn(1, 4, 64)",),
        ),
    ),
    "Scores with vectors and tables of their own": (
        Row(
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
        Row(
            "shaw_relative",
            "ShawRelative(query, table)",
            ("query, table = torch.randn(1, 4, 24, 8), torch.randn(2 * 4 + 1, 8)",),
            (24, 24),
        ),
        Row(
            "deberta",
            "Deberta(query, key, q_pos, k_pos)",
            (
                "query, key = torch.randn(2, 1, 4, 12, 8)",
                "q_pos, k_pos = torch.randn(2, 4, 2 * 3, 8)",
            ),
            (12, 12),
        ),
        Row(
            "pair_bias",
            "PairBias(bias)",
            ("bias = -0.1 * (torch.arange(64)[:, None] - torch.arange(64).flip(0)).abs()",),
        ),
        Row(
            "graphormer_spatial",
            "GraphormerSpatial.from_adjacency(table, adjacency)",
            (
                *RINGS,
                "table = torch.linspace(2, -2, 7)[:, None] * torch.tensor([1.0, 0.7, 0.4, -0.2])",
            ),
            (16, 16),
        ),
        Row(
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
        Row("softcap", "Softcap(20.0)", limits=(-60.0, 60.0)),
        Row("activation_score", "ActivationScore(torch.nn.functional.gelu)"),
        Row(
            "head_scale",
            "HeadScale(factor)",
            ("factor = torch.tensor([0.5, 1.0, 2.0, 4.0])",),
        ),
    ),
}


def rows() -> Iterator[Row]:
    """Yield every row of the table."""
    for group in GALLERY.values():
        yield from group


def made(row: Row) -> Any:
    """Return the variant of a row, from its lines of Python."""
    names = {name: getattr(variants, name) for name in variants.__all__} | {"torch": torch}
    torch.manual_seed(0)
    for line in row.setup:
        exec(line, names)
    return eval(row.example, names)


# ---- text ----------------------------------------------------------------------------------------


def text() -> str:
    """Return docs/variants.md."""
    parts = [
        "# The variants, in pictures",
        "Written by `docs/make_gallery.py` from the docstrings of `flexfa4.variants`; do not edit.",
        "Each section begins with a picture and the call that it belongs to; names are those of "
        "`flexfa4.variants`. Pictures of masks have a row for each "
        "query and a column for each key, blue where the query sees the key; those of images also "
        "show the canvas, with what the orange token sees. Biases are drawn as what they add to a "
        f"score of 0 in the first of {HEADS} heads, and for the last query in all of them; "
        "functions of the score as a curve.",
        "In the shell, `flexfa4 variants` lists them all, `flexfa4 explain NAME` says what the "
        "compiler knows about one, and `flexfa4 plot NAME` draws it; both take "
        "`--set parameter=value`. Masks combine with `&`, `|` and `~`, score mods with "
        "`flexfa4.compose`. What is not in the library and why: "
        "[variants_not_expressible.md](variants_not_expressible.md).",
        *(f"**{title}.** {_links(group)}" for title, group in GALLERY.items()),
    ]
    for title, group in GALLERY.items():
        parts.append(f"## {title}")
        parts += [_section(row, entries()[row.name]) for row in group]
    return "\n\n".join(parts) + "\n"


def _links(group: tuple[Row, ...]) -> str:
    return " · ".join(f"[{row.name}](#{row.name})" for row in group)


def _section(row: Row, entry: Entry) -> str:
    parameters = [f"- `{p}`: {_prose(p.meaning)}" for p in entry.parameters]
    if parameters:
        parameters = [f"Parameters of `{entry.variant.__name__}`:", "", *parameters]
    parts = (
        f"### {entry.name}",
        f"![{entry.name}](pictures/{entry.name}.png)",
        _fenced("python", *row.setup, *_call(row.example, entry.kind)),
        *_paragraphs(entry.paragraphs),
        "\n".join(parameters),
        f"Source: {_prose(entry.source)}",
    )
    return "\n\n".join(filter(None, parts))


def _call(example: str, kind: str) -> tuple[str, ...]:
    """Return the lines that call attention with a variant: one where that is not too long."""
    name, parameter = {"mask": ("mask", "block_mask"), "score": ("mod", "score_mod")}[kind]
    call = f"out = flexfa4.attention(q, k, v, {parameter}={example})"
    if len(call) <= 100:
        return (call,)
    return (f"{name} = {example}", f"out = flexfa4.attention(q, k, v, {parameter}={name})")


def _fenced(language: str, *lines: str) -> str:
    return "\n".join((f"```{language}", *lines, "```"))


def _paragraphs(paragraphs: tuple[str, ...]) -> Iterator[str]:
    """Yield the paragraphs of a docstring as Markdown, indented ones as code.

    Prose comes out on one line, for a line that happens to begin with a minus would be a list.
    """
    language = "python"
    for indented, run in itertools.groupby(paragraphs, lambda p: p.startswith("    ")):
        if indented:
            yield _fenced(language, textwrap.dedent("\n\n".join(run)))
            continue
        for paragraph in run:
            # a paragraph that ends in :: says in words what follows
            language = "text" if paragraph.endswith("::") else "python"
            items = re.split(r"\n(?=- )", paragraph) if paragraph.startswith("- ") else [paragraph]
            yield "\n".join(map(_prose, items)).replace("::", ":")


def _prose(prose: str) -> str:
    """Return prose of a docstring as Markdown on one line."""
    return " ".join(prose.split()).replace("``", "`")


# ---- pictures ------------------------------------------------------------------------------------


def picture(row: Row) -> Figure:
    """Return the picture of a row: of a mask one panel or two, of a bias two, of a curve one."""
    mod = made(row)
    if entries()[row.name].kind == "mask":
        return _mask(row, mod)
    scores = Scores(mod, Sizes(1, HEADS, HEADS, *row.lengths))
    if not scores.reads_positions:
        figure = new_figure(width=1.4 * PANEL, height=PANEL)
        draw_curve(figure.subplots(), scores, limits=row.limits)
    else:
        figure = new_figure(width=2.6 * PANEL, height=PANEL)
        matrix, lines = figure.subplots(1, 2)
        draw_matrix(matrix, scores)
        shades = matrix.images[0]
        shades.set_cmap(shades.get_cmap().resampled(SHADES))
        if row.canvas:
            _draw_canvas(lines, row, shades.get_array()[row.query], shades)
        else:
            draw_rows(lines, scores)
    return figure


def _mask(row: Row, mask: Any) -> Figure:
    rows, columns = row.lengths
    blocks = flexfa4.create_block_mask(mask, batch=1, heads=HEADS, q_len=rows, kv_len=columns)
    width = 2 * PANEL if row.canvas else PANEL * max(1.0, min(columns / rows, 2.0)) ** 0.5
    figure = new_figure(width=width, height=PANEL)
    panels = figure.subplots(1, 2 if row.canvas else 1, squeeze=False)[0]
    draw_tokens(panels[0], blocks)
    legend = panels[0].get_legend()
    assert legend is not None
    legend.remove()  # the page says it once
    panels[0].set_title("")
    if row.canvas:
        kinds = blocks.to_dense()[0, 0, row.query].long()
        kinds[row.query] = 2
        colours = ListedColormap([EMPTY, SEEN, PARTIAL])
        _draw_canvas(panels[1], row, kinds, ScalarMappable(Normalize(0, 2), colours))
    return figure


def _draw_canvas(axes: Axes, row: Row, values: Any, colours: ScalarMappable) -> None:
    """Draw the row of one query as the canvas that its keys make up."""
    assert row.canvas is not None
    order = eval(row.order, {"token_order": token_order})
    on_canvas = torch.as_tensor(values)[order.positions(row.canvas)].view(row.canvas)
    low, high = colours.get_clim()
    axes.imshow(on_canvas.numpy(), cmap=colours.get_cmap(), vmin=low, vmax=high)
    for axis, size in ((axes.set_xticks, row.canvas[1]), (axes.set_yticks, row.canvas[0])):
        axis([edge - 0.5 for edge in range(1, size)], [""] * (size - 1))
    axes.grid(color="white", linewidth=0.8)
    axes.tick_params(length=0)
    axes.set_xlabel(f"token {row.query} on the canvas")
    axes.xaxis.set_label_position("top")
    for side in axes.spines.values():
        side.set_color(LINE)


def write(row: Row, file: Path | io.BytesIO) -> None:
    """Draw a row and write it as a PNG of few colours, which is a quarter of the size."""
    raw = io.BytesIO()
    with matplotlib.rc_context({"font.size": 7, "axes.linewidth": 0.6}):
        picture(row).savefig(raw, format="png", dpi=DOTS)
    colours = COLOURS[entries()[row.name].kind]
    image = Image.open(raw).convert("RGB").quantize(colours, dither=Image.Dither.NONE)
    image.save(file, format="png", optimize=True)


def main() -> None:
    """Write the text and all pictures."""
    (FOLDER / "variants.md").write_text(text(), encoding="utf-8")
    (FOLDER / "pictures").mkdir(exist_ok=True)
    for row in rows():
        write(row, FOLDER / "pictures" / f"{row.name}.png")


if __name__ == "__main__":
    main()
