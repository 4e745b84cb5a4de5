"""Write docs/variants.md and docs/pictures/ from the library of variants.

    python docs/make_gallery.py            # text and pictures (needs the `plot` extra)

What a variant computes, its parameters and its source are read from its docstring; the lines of
Python that make a small one from `flexfa4.variant_examples`.  A test compares the text with the
committed file and sees that every variant has an example and a picture.
"""

from __future__ import annotations

import io
import itertools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import matplotlib
import torch
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from PIL import Image

import flexfa4
from flexfa4.frontend.sizes import Sizes
from flexfa4.plotting.figures import EMPTY, LINE, PARTIAL, SEEN, new_figure
from flexfa4.plotting.masks import draw_tokens
from flexfa4.plotting.scores import Scores, draw_curve, draw_matrix, draw_rows
from flexfa4.variant_examples import GALLERY, HEADS, Example, examples
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


def _links(group: tuple[Example, ...]) -> str:
    return " · ".join(f"[{row.name}](#{row.name})" for row in group)


def _section(row: Example, entry: Entry) -> str:
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


def picture(row: Example) -> Figure:
    """Return the picture of a row: of a mask one panel or two, of a bias two, of a curve one."""
    mod = row.made()
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


def _mask(row: Example, mask: Any) -> Figure:
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


def _draw_canvas(axes: Axes, row: Example, values: Any, colours: ScalarMappable) -> None:
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


def write(row: Example, file: Path | io.BytesIO) -> None:
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
    for row in examples():
        write(row, FOLDER / "pictures" / f"{row.name}.png")


if __name__ == "__main__":
    main()
