"""Pictures hold what the mask says, pixel for pixel, and leave no global state behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from torch.nn.attention import flex_attention as torch_flex

import flexfa4
import flexfa4.flex
from flexfa4.errors import ArgumentError, MissingPackageError
from flexfa4.plotting import masks
from flexfa4.variants import Document, alibi, causal


def panels(figure: Figure) -> tuple[list[list[int]], list[list[int]]]:
    """Return the values that the two panels draw, row by row."""
    tokens, blocks = (axes.images[0].get_array() for axes in figure.axes)
    assert tokens is not None and blocks is not None
    return tokens.tolist(), blocks.tolist()


def triangle(rows: int, columns: int) -> list[list[int]]:
    return [[int(column <= row) for column in range(columns)] for row in range(rows)]


def test_both_panels_show_the_mask_of_a_function() -> None:
    tokens, blocks = panels(flexfa4.plot_mask(causal, 48, 64, block_size=16))
    assert tokens == triangle(48, 64)
    assert blocks == [[1, 0, 0, 0], [2, 1, 0, 0], [2, 2, 1, 0]]


def test_a_text_is_drawn_with_as_many_keys_as_queries_by_default() -> None:
    tokens, _ = panels(flexfa4.plot_mask("q >= kv", 32, block_size=16))
    assert tokens == triangle(32, 32)


def test_the_chosen_batch_entry_of_a_block_mask_is_drawn() -> None:
    ids = torch.tensor([[0] * 32, [0] * 16 + [1] * 16])
    made = flexfa4.create_block_mask(
        Document(ids), batch=2, q_len=32, kv_len=32, block_size=(16, 32)
    )
    _, first = panels(flexfa4.plot_mask(made))
    tokens, second = panels(flexfa4.plot_mask(made, batch_index=1))
    assert first == [[2], [2]] and second == [[1], [1]]
    assert sum(map(sum, tokens)) == 2 * 16 * 16


@pytest.mark.parametrize("module", [flexfa4.flex, torch_flex], ids=["ours", "torch's"])
def test_block_masks_of_flex_attention_are_drawn_with_the_blocks_of_their_lists(
    module: Any,
) -> None:
    def later_by_head(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx >= kv_idx + 8 * h

    made = module.create_block_mask(later_by_head, None, 2, 40, 40, "cpu", BLOCK_SIZE=20)
    tokens, blocks = panels(flexfa4.plot_mask(made, head_index=1))
    assert tokens == [[int(row >= column + 8) for column in range(40)] for row in range(40)]
    assert blocks == [[1, 0], [1, 1]]
    assert "made for" in str(flexfa4.explain(made)["blocks"])


def test_lists_for_every_head_are_drawn_with_the_mask_function_of_the_chosen_head() -> None:
    num, indices = (
        torch.ones(1, 1, 1, dtype=torch.int32),
        torch.zeros(1, 1, 1, 1, dtype=torch.int32),
    )
    made = flexfa4.flex.BlockMask.from_kv_blocks(
        num, indices, BLOCK_SIZE=16, mask_mod=lambda b, h, q_idx, kv_idx: q_idx >= kv_idx + h
    )
    tokens, _ = panels(flexfa4.plot_mask(made, head_index=1))
    assert tokens == [[int(row > column) for column in range(16)] for row in range(16)]


def test_a_million_tokens_are_drawn_one_score_to_a_pixel_and_several_blocks_to_another() -> None:
    figure = flexfa4.plot_mask(causal, 2**20)
    tokens, blocks = map(torch.tensor, panels(figure))
    assert tokens.shape == blocks.shape == (1024, 1024)
    below, on = torch.ones(1024, 1024).tril(-1).bool(), torch.eye(1024).bool()
    assert torch.equal(tokens.bool() & ~on, below)
    assert torch.equal(blocks, 2 * below + 1 * on)
    scores, grouped = (axes.get_title() for axes in figure.axes)
    assert scores.startswith("1024 x 1024 of the scores: 50.0% visible")
    assert grouped == "blocks of 128 x 128, 8 x 8 to a pixel: 50.0% skipped"
    legend = figure.axes[1].get_legend()
    assert legend is not None
    assert legend.get_texts()[1].get_text() == "partly visible: 8192"


def test_a_pixel_shows_a_score_of_its_own_stretch_of_queries_and_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(masks, "MOST_SCORES", 1)
    monkeypatch.setattr(masks, "_MOST_PIXELS", 10)
    coarse = "q // 10 >= kv // 20 and (q // 10 + kv // 20) % 3 != 0"  # one value for each pixel
    tokens, _ = panels(flexfa4.plot_mask(coarse, 100, 200))
    assert tokens == [[int(i >= j and (i + j) % 3 != 0) for j in range(10)] for i in range(10)]


def test_drawing_a_mask_of_flex_attention_writes_no_lists() -> None:
    made = flexfa4.flex.create_block_mask("q >= kv", None, None, 2**18, 2**18)
    flexfa4.plot_mask(made)
    assert "kv_indices" not in vars(made)


def test_titles_give_the_share_that_is_visible_and_skipped() -> None:
    figure = flexfa4.plot_mask(causal, 64, block_size=16, title="causal")
    tokens, blocks = (axes.get_title() for axes in figure.axes)
    assert tokens == f"scores: {65 / 128:.1%} visible"
    assert blocks == f"blocks of 16 x 16: {6 / 16:.1%} skipped"
    assert figure.get_suptitle() == "causal"


def test_the_legend_counts_the_blocks_of_each_kind() -> None:
    legend = flexfa4.plot_mask(causal, 64, block_size=16).axes[1].get_legend()
    assert legend is not None
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["skipped: 6", "partly visible: 4", "fully visible: 6"]


def test_drawing_neither_needs_a_display_nor_loads_pyplot(tmp_path: Path) -> None:
    code = (
        "import sys, flexfa4\n"
        f"flexfa4.plot_mask('q >= kv', 64).savefig({str(tmp_path / 'mask.png')!r})\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert (tmp_path / "mask.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'flexfa4\[plot\]'"):
        flexfa4.plot_mask(causal, 16)


@pytest.mark.parametrize("mod", [alibi, "score + 1.0"], ids=str)
def test_a_score_mod_is_sent_to_the_picture_for_it(mod: Any) -> None:
    with pytest.raises(ArgumentError, match="plot_score_mod") as raised:
        flexfa4.plot_mask(mod, 16)
    assert "a score mod" in raised.value.fields["found_value"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"q_len": None}, "q_len is None"),
        ({"q_len": 0}, "q_len is 0"),
        ({"q_len": "3"}, "q_len is '3'"),
        ({"q_len": 3, "kv_len": 2.5}, "kv_len is 2.5"),
        ({"q_len": 32, "block_mask": True}, "q_len, kv_len is 32, None"),
        ({"q_len": None, "block_mask": True, "batch_index": 2}, "batch_index is 2"),
        ({"block_mask": True, "block_size": "nonsense"}, "block_size is 'nonsense'"),
        ({"block_mask": True, "block_size": 128}, "block_size is 128"),
        ({"q_len": 32, "batch_index": -1}, "batch_index is -1"),
        ({"q_len": 32, "head_index": 0.5}, "head_index is 0.5"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    ids = torch.zeros(2, 16, dtype=torch.long)
    made = flexfa4.create_block_mask(Document(ids), batch=2, q_len=16, kv_len=16)
    mask = made if arguments.pop("block_mask", False) else causal
    with pytest.raises(ArgumentError, match=message):
        flexfa4.plot_mask(mask, **arguments)
