"""`explain`: every section, for every form of a mod."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4 import create_block_mask, explain, report
from flexfa4.errors import ArgumentError, ArityError, TextSyntaxError
from flexfa4.kernels.compile.errors import MissingCompilerPackageError
from flexfa4.report import COMPUTED, UNCOUNTED, Explanation, Section
from flexfa4.variants import Alibi, SlidingWindow, causal
from tests.compiled_kernels import compiled_kernel


def titles(explanation: Explanation) -> list[str]:
    return [section.title for section in explanation.sections]


def rows(explanation: Explanation, title: str) -> dict[str, str]:
    return dict(explanation[title].rows)


def test_a_score_mod_has_its_graph_captures_facts_and_way_to_run() -> None:
    slope, table = 0.5, torch.zeros(4, requires_grad=True)
    found = explain(lambda score, b, h, q, kv: score + slope * (kv - q) + table[h])
    assert titles(found) == ["score mod", "captures", "facts", "rewrites", "on the CPU"]
    assert rows(found, "captures") == {
        "slope": "0.5, read on each call",
        "table": "float32 (4,) on cpu, gets a gradient",
    }
    assert "slope: f32" in str(found["score mod"]) and "table: f32[_]" in str(found["score mod"])
    assert rows(found, "facts")["score"] == "read"
    assert "bias" in rows(found, "on the CPU")["form"]


def test_a_mask_has_what_it_reads_and_how_its_blocks_are_found() -> None:
    window, ids = 5, torch.arange(8)
    found = explain(lambda b, h, q, kv: (q - kv < window) & (ids[q] == ids[kv]) & (h < 2))
    assert titles(found) == ["mask mod", "captures", "facts", "closed form", "on the CPU"]
    assert rows(found, "captures") == {
        "window": "5, read on each call",
        "ids": "int64 (8,) on cpu",
    }
    assert rows(found, "facts")["reads"] == "h, q, kv"
    assert "skipped" in rows(found, "on the CPU")["blocks"]


@pytest.mark.parametrize(
    ("mod", "used"),
    [
        ("score * 2 + q", {"fold affine into the exponent", "derivative without the score",
                           "fold inner scale into the score's scale"}),
        ("tanh(score / 30) + h", {"fold inner scale into the score's scale"}),
        ("score + 0.5 * (kv - q)", {"fold affine into the exponent",
                                    "derivative without the score"}),
        ("tanh(score)", set()),
    ],
)  # fmt: skip
def test_each_rewrite_says_whether_it_is_allowed_and_whether_the_backend_uses_it(
    mod: str, used: set[str]
) -> None:
    found = explain(mod)
    listed = rows(found, "rewrites") if "rewrites" in titles(found) else {}
    assert {name for name, text in listed.items() if "\non the CPU used: " in text} == used
    assert all("proved" in listed[name] for name in used)
    unused = [text for name, text in listed.items() if name not in used]
    assert all("\non the CPU not used: " in text for text in unused)


def test_a_row_constant_that_softmax_cannot_see_is_added_all_the_same_for_the_sake_of_lse() -> None:
    text = rows(explain("score + h"), "rewrites")["drop row constant"]
    assert text.startswith("proved") and "lse needs it" in text


def test_a_mod_without_captures_says_so() -> None:
    assert str(explain(causal)["captures"]) == "captures\n  nothing"


@pytest.mark.parametrize(
    ("mod", "kind"),
    [
        ("score * 2", "score"),
        ("q >= kv", "mask"),
        (flexfa4.parse("score + s", s=1.5), "score"),
        (flexfa4.trace(causal), "mask"),
        (Alibi(4), "score"),
        (causal & ~SlidingWindow(3), "mask"),
        (flexfa4.mask("q >= kv") | causal, "mask"),
    ],
)
def test_every_form_of_a_mod_is_explained(mod: Any, kind: str) -> None:
    assert titles(explain(mod))[0] == f"{kind} mod"


def test_the_kind_can_be_named_where_the_parameters_do_not_decide() -> None:
    def mod(*arguments: Any) -> Any:
        return arguments[-1] > 3

    with pytest.raises(ArityError):
        explain(mod)
    assert titles(explain(mod, kind="mask"))[0] == "mask mod"


def test_what_a_trace_is_specialised_on_is_listed() -> None:
    causal_only, mode = True, "soft"

    def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        scaled = torch.tanh(score) if mode == "soft" else score
        return torch.where(q >= kv, scaled, -torch.inf) if causal_only else scaled

    guards = [text for _, text in explain(score_mod)["specialised on"].rows]
    assert "mode == 'soft'" in guards and "causal_only == True" in guards
    assert "tanh" in str(explain(score_mod))
    mode = "hard"
    assert "tanh" not in str(explain(score_mod))


def test_tensors_that_make_attention_find_the_blocks_on_every_call_are_named() -> None:
    ids = torch.arange(12) // 3
    with torch.inference_mode():
        frozen = torch.arange(12) // 3
    computed = explain(lambda b, h, q, kv: (ids + 1)[q] == ids[kv])
    assert sorted(COMPUTED in text for text in rows(computed, "captures").values()) == [False, True]
    uncounted = explain(lambda b, h, q, kv: frozen[q] == frozen[kv])
    assert all(UNCOUNTED in text for text in rows(uncounted, "captures").values())
    view = explain(lambda b, h, q, kv: ids[:6][q] == ids[kv])
    assert not any("again" in text for text in rows(view, "captures").values())


def test_a_mask_promises_no_gradient_and_a_score_mod_no_blocks() -> None:
    weights = torch.rand(12, requires_grad=True)
    found = explain(lambda b, h, q, kv: weights[q] > weights[kv])
    assert "gradient" not in str(found["captures"])
    found = explain(lambda score, b, h, q, kv: score + (2 * weights)[q])
    assert "blocks" not in str(found["captures"])
    assert "gets a gradient" in str(found["captures"])


def test_a_block_mask_adds_its_blocks() -> None:
    made = create_block_mask(causal, q_len=512, kv_len=512)
    found = explain(made)
    assert titles(found)[-2:] == ["on the CPU", "blocks"]
    assert rows(found, "blocks") == {
        "made for": repr(made),
        "empty": "6 (37.5%)",
        "partial": "4 (25.0%)",
        "full": "6 (37.5%)",
        "found": "from the closed form",
        "memory": "0 bytes: what is known of the blocks, and copies of captures",
    }


def test_the_blocks_of_batches_and_heads_are_counted_together() -> None:
    lengths, window = torch.tensor([20, 64, 20]), torch.tensor([5, 100])
    made = create_block_mask(
        lambda b, h, q, kv: (kv < lengths[b]) & (q - kv < window[h]) & (q >= kv) & ((q ^ kv) < 20),
        batch=3,
        heads=2,
        q_len=64,
        kv_len=64,
        block_size=16,
    )
    found, kinds = rows(explain(made), "blocks"), made.block_kinds()
    for kind, name in enumerate(("empty", "partial", "full")):
        assert found[name].split(" ")[0] == str(int((kinds == kind).sum()))
    assert found["classes"] == "4, of 6 pairs of batch and head"
    assert found["found"].startswith("by splitting boxes, not in closed form: `q ^ kv`")


def test_a_mask_shows_the_intervals_that_were_proved_and_what_they_rest_on() -> None:
    w, ids = 5, torch.arange(12) // 4
    found = explain(lambda b, h, q, kv: (ids[q] == ids[kv]) & ~(kv > q) & (q < kv + w))
    form = rows(found, "closed form")
    assert "<= kv <= q" in form["keys of a query"] and "q - w + 1" in form["keys of a query"]
    assert "kv <= q < " in form["queries of a key"] and "kv + w" in form["queries of a key"]
    assert form["rests on"] == (
        "equal elements of `ids` stand together\nchecked for each block mask"
    )


def test_the_documentation_prints_a_closed_form_as_it_is() -> None:
    masks = Path(__file__).parents[3] / "docs" / "masks.md"
    packed = flexfa4.parse("q >= kv and ids[q] == ids[kv]", ids=[0, 0, 0, 1, 1])
    assert f"\n{explain(packed)['closed form']}\n" in masks.read_text(encoding="utf-8")


def test_a_mask_without_a_closed_form_shows_which_part_has_none_and_what_is_done_instead() -> None:
    form = rows(explain("(q >= kv) & ((q ^ kv) < 20)"), "closed form")
    assert form == {
        "keys of a query": "not in closed form: `q ^ kv` is not solved for kv;\n"
        "blocks are found by splitting boxes",
        "queries of a key": "not in closed form: `q ^ kv` is not solved for q;\n"
        "columns of blocks are made from the rows",
    }


def test_a_block_mask_without_blocks_can_be_explained() -> None:
    found = explain(create_block_mask(causal, q_len=0, kv_len=512))
    assert rows(found, "blocks")["empty"] == "0 (0.0%)"


def test_blocks_that_are_too_many_to_count_are_explained_without_counts() -> None:
    found = rows(explain(create_block_mask(causal, q_len=1 << 40, kv_len=1 << 40)), "blocks")
    assert found["counts"].startswith("not made: the number of rows or columns of blocks")
    assert found["found"] == "from the closed form" and "partial" not in found


def test_sections_are_found_by_title_and_printed_in_order() -> None:
    found = explain("score * 2")
    assert str(found) == "\n\n".join(str(section) for section in found.sections)
    with pytest.raises(KeyError):
        found["blocks"]


def test_rows_are_aligned_and_continued_under_their_text() -> None:
    section = Section("title", (("a", "one\ntwo"), ("longer", "three"), ("", "alone\nbelow")))
    assert str(section) == (
        "title\n  a       one\n          two\n  longer  three\n  alone\n  below"
    )


def test_explaining_runs_nothing_and_wrong_input_is_refused() -> None:
    before = flexfa4.stats()
    explain("q - kv < 5")
    done = flexfa4.stats() - before
    assert done.calls == done.block_lists == 0
    with pytest.raises(ArgumentError, match="kind is 'masks'"):
        explain("q >= kv", kind="masks")  # type: ignore[arg-type]
    with pytest.raises(TextSyntaxError):
        explain("q >=")


# ---- kernels for GPUs ----------------------------------------------------------------------------


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: Any) -> Any:
        raise MissingCompilerPackageError(arch="sm_90a", reason="No module named 'cutlass'")

    monkeypatch.setattr(report, "kernel_for", absent)


def test_an_architecture_adds_how_its_kernel_runs_the_mod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "kernel_for", lambda *_: compiled_kernel())
    found = explain(Alibi(), arch="sm_90a", head_dim=64, heads=8, kv_heads=2)
    told = rows(found, "on sm_90a")
    assert "4 query heads" in told["heads"] and "constant step" in told["term along kv"]
    assert "24 of a producer, 240 of a consumer" in told["registers"]
    assert "three kernels" in told["gradients"] and "bytes of" in told["shared memory"]
    told = rows(explain(causal, arch="sm_90a"), "on sm_90a")
    assert "closed form" in told["blocks"] and "in the exponent" in told["per score"]
    assert "on sm_90a" not in titles(explain(causal))


@pytest.mark.usefixtures("no_compiler")
def test_without_cute_dsl_the_plan_is_told_all_the_same() -> None:
    told = rows(explain("score * 2", arch="sm_90a"), "on sm_90a")
    assert "cutlass" in told["not compiled"] and "tile" in told


@pytest.mark.usefixtures("no_compiler")
def test_what_no_kernel_serves_is_told_with_what_serves_it() -> None:
    table = torch.zeros(8192, 256)
    for mod, chosen, word in (
        ("score", {"head_dim": 72}, "head dimensions 72"),
        ("score", {"dtype": torch.float32}, "float32"),
        (lambda s, b, h, q, kv: s + (table[q] * table[kv]).sum(-1), {}, "512 elements"),
    ):
        told = rows(explain(mod, arch="sm_90a", **chosen), "on sm_90a")
        assert word in told["no kernel"] and "torch code on the GPU" in told["instead"]


@pytest.mark.usefixtures("no_compiler")
def test_a_mask_for_its_own_sizes_is_explained_by_its_block_mask() -> None:
    ids = torch.arange(100) // 30
    mask: Any = lambda b, h, q, kv: ids[q] == ids[kv]  # noqa: E731
    told = rows(explain(mask, arch="sm_90a"), "on sm_90a")
    assert "size 100" in told["not planned"] and "create_block_mask" in told["not planned"]
    block_mask = create_block_mask(mask, q_len=100, kv_len=100)
    assert "tile" in rows(explain(block_mask, arch="sm_90a"), "on sm_90a")


def test_an_architecture_without_kernels_is_told_what_serves_it() -> None:
    table, rows_of = torch.zeros(64, 4, requires_grad=True), torch.zeros(64, 32)
    told = rows(explain(causal, arch="sm_80"), "on sm_80")
    assert set(told) == {"no kernel", "instead"} and 'backend="flex"' in told["instead"]
    mod: Any = lambda s, b, h, q, kv: s + (table[q] * table[kv]).sum(-1)  # noqa: E731
    told = rows(explain(mod, arch="sm_80"), "on sm_80")
    assert "taken apart" in told["vectors"] and "compared with the size" in told["captured tensors"]
    assert "8 fp32 copies" in told["gradients"]
    mod = lambda s, b, h, q, kv: s + (rows_of[q] * rows_of[kv]).sum(-1)  # noqa: E731
    told = rows(explain(mod, arch="sm_80"), "on sm_80")
    assert "32 elements" in told["not by torch"] and "torch code on the GPU" in told["instead"]


def test_what_is_no_architecture_is_refused() -> None:
    with pytest.raises(ArgumentError, match="sm_90a"):
        explain(causal, arch="hopper")
