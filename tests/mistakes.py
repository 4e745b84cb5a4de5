"""Small programs with one mistake each, for every class of the catalogue and every bad input.

Each row of `MISTAKES` is a program of a user.  This module only holds them; `tests.test_errors`
runs them, and says which names they find.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from flexfa4 import errors
from flexfa4.errors import FlexFA4Error
from flexfa4.flex import errors as flex_errors


@dataclass(frozen=True)
class Mistake:
    """A program with a mistake.

    Attributes:
        name: of the golden file.
        error: the class that it raises.
        program: source, run with the names of `user_names`; without a mod it is one call.
        repaired: the program with ``{instead}`` where the message's advice is pasted; empty where
            the advice cannot be pasted, since it depends on what the user meant.
        late: raised while computing or differentiating, by its nature.
    """

    name: str
    error: type[FlexFA4Error]
    program: str
    repaired: str = ""
    late: bool = False


def score_mod(body: str, *, before: str = "") -> str:
    """Return a program whose score mod has this body."""
    return mod("score_mod(score, b, h, q_idx, kv_idx)", "score_mod=score_mod", body, before)


def mask_mod(body: str, *, before: str = "") -> str:
    """Return a program whose mask has this body."""
    return mod("mask_mod(b, h, q_idx, kv_idx)", "block_mask=mask_mod", body, before)


def mod(head: str, argument: str, body: str, before: str) -> str:
    indented = textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    call = f"attention(query, key, value, {argument})"
    return "\n".join([*([before] if before else []), f"def {head}:", indented, call])


CALL = "attention(query, key, value)"
MAKE = "create_block_mask(mask_mod, q_len=8, kv_len=12)"
CAUSAL = "def mask_mod(b, h, q_idx, kv_idx):\n    return q_idx >= kv_idx\n"
BY_HEAD = "def mask_mod(b, h, q_idx, kv_idx):\n    return q_idx - kv_idx < 4 * h\n"
WINDOWED = "window = 4\ndef mask_mod(b, h, q_idx, kv_idx):\n    return q_idx - kv_idx < window\n"
BY_HEAD_COUNT = (
    "def mask_mod(b, h, q_idx, kv_idx):\n    return q_idx >= kv_idx // flexfa4.num_heads\n"
)
PACKED = "def mask_mod(b, h, q_idx, kv_idx):\n    return ids[q_idx] == ids[kv_idx]\n"
MADE = f"block_mask = {MAKE}\n"
USE = "attention(query, key, value, block_mask=block_mask)"
VARIANTS = "from flexfa4.variants import *\nwindow = SlidingWindow(4)\n"

TRACING = [
    Mistake(
        "if",
        errors.TracedBoolError,
        score_mod("if q_idx >= kv_idx:\n    return score\nreturn score - 1.0"),
        score_mod("{instead}"),
    ),
    Mistake(
        "and",
        errors.TracedBoolError,
        mask_mod("return q_idx >= kv_idx and q_idx - kv_idx < 4"),
        mask_mod("return {instead}"),
    ),
    *(
        Mistake(name, errors.ModTruthError, VARIANTS + line.format(instead=wrong), VARIANTS + line)
        for name, line, wrong in (
            ("and_of_masks", f"{CALL[:-1]}, block_mask={{instead}})", "causal and ~window"),
            ("or_of_score_mods", f"{CALL[:-1]}, score_mod={{instead}})", "alibi or softcap"),
            ("if_of_a_mask", "if {instead}:\n    pass", "window"),
        )
    ),
    Mistake(
        "or",
        errors.TracedBoolError,
        mask_mod("return q_idx >= kv_idx or kv_idx < 4"),
        mask_mod("return {instead}"),
    ),
    Mistake(
        "not",
        errors.TracedBoolError,
        mask_mod("return not q_idx < kv_idx"),
        mask_mod("return {instead}"),
    ),
    Mistake(
        "chained_comparison",
        errors.TracedBoolError,
        mask_mod("return 0 <= q_idx - kv_idx < 4"),
        mask_mod("return {instead}"),
    ),
    Mistake(
        "conditional_expression",
        errors.TracedBoolError,
        score_mod("return score if q_idx >= kv_idx else score * 0.5"),
        score_mod("return {instead}"),
    ),
    Mistake(
        "max_of_two",
        errors.TracedBoolError,
        score_mod("return score + max(q_idx - kv_idx, 0)"),
        score_mod("return score + {instead}"),
    ),
    Mistake(
        "int_of_index",
        errors.TracedNumberError,
        score_mod("return score + int(q_idx / 2)"),
        score_mod("return score + {instead}"),
    ),
    Mistake(
        "math_function",
        errors.TracedNumberError,
        score_mod("return math.tanh(score)", before="import math"),
        score_mod("return {instead}"),
    ),
    Mistake("list_index", errors.TracedNumberError, score_mod("return score + [0.5, 1.0][h]")),
    Mistake(
        "unsupported_function",
        errors.UnsupportedFunctionError,
        score_mod("return torch.lgamma(score)"),
    ),
    Mistake(
        "in_place",
        errors.UnsupportedFunctionError,
        score_mod("return score.add_(1.0)"),
    ),
    Mistake(
        "random_numbers",
        errors.UnsupportedFunctionError,
        score_mod("return score + torch.rand(())"),
    ),
    Mistake(
        "mask_with_score",
        errors.ArityError,
        "def mask_mod(score, b, h, q_idx, kv_idx):\n    return q_idx >= kv_idx\n"
        "attention(query, key, value, block_mask=mask_mod)",
    ),
    Mistake(
        "score_mod_with_two",
        errors.ArityError,
        "attention(query, key, value, score_mod=lambda score, h: score)",
    ),
    Mistake(
        "trace_of_unknown_kind", errors.ArityError, "flexfa4.trace(lambda score, h: score * h)"
    ),
    Mistake(
        "trace_of_any_parameters",
        errors.ArityError,
        "def fn(*args):\n    return args[0]\nflexfa4.trace(fn)",
    ),
    Mistake("trace_of_a_number", errors.NotAFunctionError, "flexfa4.trace(3)"),
    Mistake(
        "unknown_attribute",
        errors.UnknownAttributeError,
        score_mod("return score.sigmoyd()"),
        score_mod("return score{instead}()"),
    ),
    Mistake("mod_of_wrong_type", errors.ArgumentError, "attention(query, key, value, score_mod=3)"),
    Mistake(
        "mask_of_wrong_type", errors.ArgumentError, "attention(query, key, value, block_mask=ids)"
    ),
    Mistake(
        "mask_returns_number",
        errors.ResultError,
        mask_mod("result = q_idx - kv_idx\nreturn result"),
        mask_mod("result = q_idx - kv_idx\n{instead}"),
    ),
    Mistake(
        "score_mod_returns_bool",
        errors.ResultError,
        score_mod("condition = q_idx >= kv_idx\nreturn condition"),
        score_mod("condition = q_idx >= kv_idx\n{instead}"),
    ),
    Mistake("returns_nothing", errors.ResultError, score_mod("score * 2.0")),
    Mistake("returns_tuple", errors.ResultError, score_mod("return score, q_idx")),
    Mistake(
        "returns_vector",
        errors.ResultError,
        score_mod("return score + table[h]", before="table = torch.zeros(4, 3)"),
    ),
    Mistake(
        "mod_of_other_kind",
        errors.ResultError,
        'attention(query, key, value, block_mask=flexfa4.parse("score * 2"))',
    ),
    Mistake(
        "text_of_other_kind",
        errors.ResultError,
        'attention(query, key, value, score_mod="q >= kv")',
    ),
    Mistake("bits_of_float", errors.OperandError, mask_mod("return (q_idx / 2) & (kv_idx < 3)")),
    Mistake(
        "bits_of_condition_and_integer",
        errors.OperandError,
        mask_mod("return (q_idx >= kv_idx) & q_idx - kv_idx < 4"),
        mask_mod("return {instead}"),
    ),
    Mistake(
        "chained_comparison_of_and",
        errors.TracedBoolError,
        mask_mod("return q_idx >= kv_idx & q_idx - kv_idx < 4"),
        mask_mod("return {instead}"),
    ),
    Mistake("precedence_of_and", errors.OperandError, mask_mod("return q_idx - 1.5 & kv_idx < 3")),
    Mistake(
        "vector_lengths",
        errors.OperandError,
        score_mod(
            "return score + (a[h] * c[h]).sum(-1)",
            before="a, c = torch.zeros(4, 3), torch.zeros(4, 2)",
        ),
    ),
    Mistake(
        "combined_masks_return_numbers",
        errors.ResultError,
        "def near(b, h, q_idx, kv_idx):\n    return q_idx / 2\n"
        'attention(query, key, value, block_mask=mask(near) & "q >= kv")',
    ),
    Mistake(
        "inverted_mask_returns_number",
        errors.ResultError,
        "def constant(b, h, q_idx, kv_idx):\n    return 1\n"
        "attention(query, key, value, block_mask=~mask(constant))",
    ),
    Mistake(
        "constant_index_out_of_range",
        errors.IndexingError,
        score_mod("return score + table[4]", before="table = torch.zeros(4)"),
    ),
    Mistake(
        "too_many_indices",
        errors.IndexingError,
        score_mod("return score + table[h, q_idx]", before="table = torch.zeros(4)"),
    ),
    Mistake("float_index", errors.IndexingError, score_mod("return score + bias[q_idx / 2]")),
    Mistake("score_indexed", errors.IndexingError, score_mod("return score[b, h]")),
    Mistake(
        "data_dependent_shape",
        errors.DataDependentShapeError,
        score_mod("return score + torch.nonzero(q_idx - kv_idx).sum()"),
    ),
    Mistake(
        "complex_capture",
        errors.CaptureError,
        score_mod(
            "return score + table[h]", before="table = torch.zeros(4, dtype=torch.complex64)"
        ),
    ),
    Mistake(
        "array_made_inside",
        errors.OperandError,
        score_mod("return score * numpy.array([0.5, 1.0])", before="import numpy"),
    ),
    Mistake(
        "size_outside_of_a_call",
        errors.OutsideModError,
        "ids + flexfa4.kv_len - flexfa4.q_len",
    ),
    Mistake(
        "size_in_a_text_called_on_tensors",
        errors.OutsideModError,
        'flexfa4.parse("kv < num_heads")(0, 0, ids[:, None], ids)',
    ),
    Mistake(
        "changed_capture",
        errors.ChangedCaptureError,
        score_mod("seen.append(h)\nreturn score", before="seen = [0]"),
    ),
]

TEXTS = [
    Mistake(
        "text_syntax",
        errors.TextSyntaxError,
        'attention(query, key, value, score_mod="score + * 2")',
    ),
    Mistake(
        "text_never_closed",
        errors.TextSyntaxError,
        'attention(query, key, value, block_mask="q >= kv and (q - kv < 4")',
    ),
    Mistake(
        "text_ambiguous_and",
        errors.AmbiguousOperatorError,
        'attention(query, key, value, block_mask="q >= kv & q - kv < 4")',
        'attention(query, key, value, block_mask="{instead}")',
    ),
    Mistake(
        "text_unknown_name",
        errors.UnknownNameError,
        'attention(query, key, value, score_mod="score + slope * (kv - q)")',
    ),
    Mistake(
        "text_misspelt_function",
        errors.UnknownNameError,
        'attention(query, key, value, score_mod="tahn(score)")',
    ),
    Mistake(
        "text_too_long",
        errors.TextTooLongError,
        'attention(query, key, value, score_mod="score" + " + 0.125" * 30_000)',
    ),
    Mistake(
        "text_assigns_a_name_that_is_taken",
        errors.NameTakenError,
        'attention(query, key, value, score_mod="q = kv + 1\\nscore * q")',
    ),
    Mistake(
        "text_function_arguments",
        errors.FunctionArgumentsError,
        'attention(query, key, value, score_mod="where(score)")',
    ),
    Mistake(
        "text_binding_of_a_reserved_name",
        errors.ReservedBindingError,
        'flexfa4.parse("score * q", q=3)',
    ),
    Mistake(
        "text_declared_without_a_value",
        errors.MissingBindingError,
        'flexfa4.parse("w: i32\\nq - kv <= w")',
    ),
    Mistake(
        "text_binding_against_its_declaration",
        errors.DeclarationMismatchError,
        'flexfa4.parse("w: i32\\nq - kv <= w", w=0.5)',
    ),
    Mistake(
        "text_unused_binding", errors.UnusedBindingError, 'flexfa4.parse("score * 2", slope=0.5)'
    ),
    Mistake(
        "text_binding_of_wrong_type",
        errors.BindingTypeError,
        'flexfa4.parse("score * slope", slope="0.5")',
    ),
]

TENSORS = [
    Mistake("query_is_no_tensor", errors.ArgumentError, "query = query.tolist()\n" + CALL,
            "query = query.tolist()\nquery = {instead}\n" + CALL),
    Mistake("sparse_query", errors.ArgumentError, "query = query.to_sparse()\n" + CALL),
    Mistake("nested_key", errors.ArgumentError,
            "rows = [torch.zeros(2, 5, 16), torch.zeros(2, 7, 16)]\n"
            "key = torch.nested.nested_tensor(rows)\n" + CALL),
    Mistake("no_batch", errors.RankError, "query = query[0]\n" + CALL,
            "query = query[0]\nquery = query[None]\nkey, value = key[:1], value[:1]\n" + CALL),
    Mistake("five_dimensions", errors.RankError, "value = value[None]\n" + CALL),
    Mistake("head_dims_differ", errors.SizesDifferError, "key = key[..., :8]\n" + CALL),
    Mistake("no_head_dim", errors.EmptyDimensionError, "value = value[..., :0]\n" + CALL),
    Mistake("lengths_differ", errors.SizesDifferError, "value = value[:, :, :9]\n" + CALL,
            "value = value[:, :, :9]\n{instead}\n" + CALL),
    Mistake("key_and_value_heads_differ", errors.SizesDifferError,
            "value = value[:, :1]\n" + CALL,
            "value = value[:, :1]\n{instead}\n" + CALL),
    Mistake("heads_do_not_divide", errors.HeadsDoNotDivideError, "query = query[:, :3]\n" + CALL),
    Mistake("lengths_before_heads", errors.HeadsDoNotDivideError,
            "query, key, value = (x.transpose(1, 2) for x in (query, key, value))\n" + CALL,
            "query, key, value = (x.transpose(1, 2) for x in (query, key, value))\n"
            "{instead}\n" + CALL),
    Mistake("no_heads", errors.EmptyDimensionError, "query = query[:, :0]\n" + CALL),
    Mistake("key_and_value_batches_differ", errors.SizesDifferError, "value = value[:1]\n" + CALL,
            "value = value[:1]\n{instead}\n" + CALL),
    Mistake("batches_do_not_broadcast", errors.BatchesDifferError,
            "query = torch.cat([query, query[:1]])\n" + CALL,
            "query = torch.cat([query, query[:1]])\n{instead}\n" + CALL),
    Mistake("dtypes_differ", errors.DTypesDifferError, "query = query.bfloat16()\n" + CALL,
            "query = query.bfloat16()\n{instead}\n" + CALL),
    Mistake("unsupported_dtype", errors.UnsupportedDTypeError,
            "query, key, value = query.int(), key.int(), value.int()\n" + CALL,
            "query, key, value = query.int(), key.int(), value.int()\n{instead}\n" + CALL),
    Mistake("devices_differ", errors.DeviceError, 'query = query.to("meta")\n' + CALL),
    Mistake("meta_tensors", errors.NoValuesError,
            'query, key, value = query.to("meta"), key.to("meta"), value.to("meta")\n' + CALL),
    Mistake("captured_tensor_elsewhere", errors.DeviceError,
            score_mod("return score + table[h]", before='table = torch.zeros(4, device="meta")')),
    Mistake("mask_capture_elsewhere", errors.DeviceError,
            'ids = ids.to("meta")\n' + PACKED
            + "attention(query, key, value, block_mask=mask_mod)"),
    Mistake("sink_is_number", errors.ArgumentError, "attention(query, key, value, sink=0.0)",
            "attention(query, key, value, {instead})"),
    Mistake("sink_of_wrong_shape", errors.SinkShapeError,
            "sink = torch.zeros(1)\nattention(query, key, value, sink=sink)",
            "sink = torch.zeros(1)\n{instead}\nattention(query, key, value, sink=sink)"),
    Mistake("sink_by_key_heads", errors.SinkShapeError,
            "sink = torch.zeros(2)\nattention(query, key, value, sink=sink)",
            "sink = torch.zeros(2)\n{instead}\nattention(query, key, value, sink=sink)"),
    Mistake("sink_of_integers", errors.UnsupportedDTypeError,
            "sink = torch.zeros(4).long()\nattention(query, key, value, sink=sink)",
            "sink = torch.zeros(4).long()\n{instead}\nattention(query, key, value, sink=sink)"),
    Mistake("sink_elsewhere", errors.DeviceError,
            'attention(query, key, value, sink=torch.zeros(4, device="meta"))'),
    Mistake("tokens_of_another_canvas", errors.TokensShapeError,
            "from flexfa4.variants.video_tiles import VideoTiles\n"
            "tiles = VideoTiles((4, 4, 4), (2, 2, 2))\n"
            "tiles.arrange(torch.zeros(60, 8))"),
]  # fmt: skip

ARGUMENTS = [
    Mistake("scale_is_nan", errors.ArgumentError,
            'attention(query, key, value, scale=float("nan"))',
            "attention(query, key, value, {instead})"),
    Mistake("scale_is_infinite", errors.ArgumentError,
            "attention(query, key, value, scale=10**400)"),
    Mistake("scale_is_tensor", errors.ArgumentError,
            "scale = torch.tensor(0.5, requires_grad=True)\n"
            "attention(query, key, value, scale=scale)",
            "scale = torch.tensor(0.5, requires_grad=True)\n{instead}"),
    Mistake("no_such_backend", errors.BackendError,
            'attention(query, key, value, backend="flash")'),
    Mistake("options_of_wrong_type", errors.ArgumentError,
            'attention(query, key, value, options={"block": 128})',
            "attention(query, key, value, {instead})"),
    Mistake("explain_kind", errors.ArgumentError,
            'flexfa4.explain("q >= kv", kind="mask_mod")', 'flexfa4.explain("q >= kv", {instead})'),
    Mistake("mask_operand", errors.ArgumentError, 'mask("q >= kv") & ids'),
    Mistake("mask_operand_on_the_left", errors.ArgumentError, '3 | mask("q >= kv")'),
    Mistake("mask_operand_is_score_mod", errors.ArgumentError,
            "mask = flexfa4.variants.causal\nflexfa4.variants.alibi & mask",
            "mask, score_mod = flexfa4.variants.causal, flexfa4.variants.alibi\n{instead}"),
    Mistake("mask_operand_is_class", errors.ArgumentError,
            'mask("kv >= 4") & flexfa4.variants.SlidingWindow'),
    Mistake("mask_operand_with_two", errors.ArityError, 'mask("q >= kv") & (lambda q, kv: q > 3)'),
    Mistake("mask_of_number", errors.ArgumentError, "mask(3)"),
    Mistake("bindings_of_function", errors.ArgumentError,
            "mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, window=4)"),
    Mistake("negative_length", errors.ArgumentError,
            CAUSAL + "create_block_mask(mask_mod, q_len=-1, kv_len=12)"),
    Mistake("length_is_float", errors.ArgumentError,
            CAUSAL + "create_block_mask(mask_mod, q_len=8, kv_len=12.0)"),
    Mistake("no_heads_in_mask", errors.ArgumentError,
            CAUSAL + "create_block_mask(mask_mod, heads=0, q_len=8, kv_len=12)"),
    Mistake("block_size", errors.ArgumentError,
            CAUSAL + "create_block_mask(mask_mod, q_len=8, kv_len=12, block_size=100)",
            CAUSAL + "create_block_mask(mask_mod, q_len=8, kv_len=12, {instead})"),
    Mistake("no_such_device", errors.ArgumentError,
            CAUSAL + 'create_block_mask(mask_mod, q_len=8, kv_len=12, device="gpu")',
            CAUSAL + "create_block_mask(mask_mod, q_len=8, kv_len=12, {instead})"),
    Mistake("mask_on_meta", errors.NoValuesError,
            CAUSAL + 'create_block_mask(mask_mod, q_len=8, kv_len=12, device="meta")'),
    Mistake("mask_on_other_device_than_captures", errors.DeviceError,
            PACKED + 'create_block_mask(mask_mod, q_len=8, kv_len=12, device="meta")'),
]  # fmt: skip

MASKS = [
    Mistake("mask_for_other_lengths", errors.BlockMaskLengthsError,
            CAUSAL + "block_mask = create_block_mask(mask_mod, q_len=8, kv_len=8)\n" + USE,
            CAUSAL + "mask = mask_mod\nblock_mask = {instead}\n" + USE),
    Mistake("mask_for_other_batch", errors.BlockMaskCountError,
            CAUSAL + "block_mask = create_block_mask(mask_mod, batch=3, q_len=8, kv_len=12)\n"
            + USE),
    Mistake("mask_for_other_heads", errors.BlockMaskCountError,
            CAUSAL + "block_mask = create_block_mask(mask_mod, heads=2, q_len=8, kv_len=12)\n"
            + USE),
    Mistake("mask_that_counts_heads", errors.BlockMaskCountError,
            BY_HEAD_COUNT
            + "block_mask = create_block_mask(mask_mod, heads=1, q_len=8, kv_len=12)\n" + USE),
    Mistake("mask_reads_batch", errors.MaskReadsBatchError,
            "def mask_mod(b, h, q_idx, kv_idx):\n    return ids[b] <= kv_idx\n" + MAKE),
    Mistake("mask_reads_head", errors.MaskReadsBatchError, BY_HEAD + MAKE),
    Mistake("mask_reads_head_count", errors.MaskReadsBatchError, BY_HEAD_COUNT + MAKE),
    Mistake("mask_reads_key_head_count", errors.MaskReadsKeyHeadsError,
            BY_HEAD_COUNT.replace("num_heads", "num_kv_heads")
            + "create_block_mask(mask_mod, heads=4, q_len=8, kv_len=12)"),
    Mistake("stale_number", errors.StaleBlockMaskError, WINDOWED + MADE + "window = 5\n" + USE),
    Mistake("stale_tensor", errors.StaleBlockMaskError, PACKED + MADE + "ids[3] = 7\n" + USE),
    Mistake("stale_other_tensor", errors.StaleBlockMaskError,
            PACKED + MADE + "ids = ids + ids[4]\n" + USE),
    Mistake("stale_choice", errors.StaleBlockMaskError,
            "causal = True\ndef mask_mod(b, h, q_idx, kv_idx):\n"
            "    return q_idx >= kv_idx if causal else kv_idx < 4\n"
            + MADE + "causal = False\n" + USE),
    Mistake("part_of_a_mask_that_is_not_there", errors.BlockMaskIndexError,
            CAUSAL + "create_block_mask(mask_mod, heads=4, q_len=8, kv_len=12)[:, 4]"),
    Mistake("part_of_a_mask_by_a_tensor", errors.ArgumentError,
            CAUSAL + MADE + "block_mask[:, :, ids]",
            CAUSAL + MADE + "batch, head, first, last = 0, 0, 3, 7\n{instead}"),
    Mistake("lines_of_a_mask", errors.ArgumentError, CAUSAL + MADE + "block_mask.lists(by='row')",
            CAUSAL + MADE + "block_mask.lists({instead})"),
    Mistake("pickle_of_another_format", errors.PickleFormatError,
            CAUSAL + MADE + "block_mask.__setstate__({**block_mask.__getstate__(), 'format': 1})"),
    Mistake("pickle_that_lacks_a_part", errors.DamagedPickleError,
            CAUSAL + MADE + "state = block_mask.__getstate__()\ndel state['runs']\n"
            "block_mask.__setstate__(state)"),
    Mistake("mask_reads_out_of_range", errors.MaskOutOfRangeError,
            "ids = ids[:6]\n" + PACKED + MAKE),
    Mistake("score_reads_out_of_range", errors.OutOfRangeError,
            score_mod("return score + bias[q_idx + kv_idx]"), late=True),
]  # fmt: skip

OTHERS = [
    Mistake("second_derivative", errors.SecondDerivativeError,
            "out = attention(query, key, value)\n"
            "(first,) = torch.autograd.grad(out.sum(), query, create_graph=True)\n"
            "torch.autograd.grad(first.sum(), query)", late=True),
    Mistake("forward_mode_derivative", errors.TransformError,
            "from torch.autograd import forward_ad\n"
            "with forward_ad.dual_level():\n"
            "    attention(forward_ad.make_dual(query, query), key, value)"),
    Mistake("recorded_block_mask", errors.TransformError,
            "def call(query):\n"
            "    block_mask = create_block_mask('q >= kv', q_len=8, kv_len=12)\n"
            "    return attention(query, key, value, block_mask=block_mask)\n"
            "torch.jit.trace(call, query)"),
    Mistake("fake_block_mask", errors.FakeBlockMaskError,
            "from torch._subclasses.fake_tensor import FakeTensorMode\n"
            "with FakeTensorMode():\n"
            "    block_mask = create_block_mask('q >= kv', q_len=8, kv_len=12)\n"
            "attention(query, key, value, block_mask=block_mask)"),
    Mistake("mapped_block_mask", errors.MappedAxisError,
            "def call(ids):\n"
            "    block_mask = create_block_mask(\n"
            "        lambda b, h, q_idx, kv_idx: ids[q_idx] == ids[kv_idx], q_len=8, kv_len=12)\n"
            "    return attention(query, key, value, block_mask=block_mask)\n"
            "torch.func.vmap(call)(ids.expand(3, 12))"),
    Mistake("mapped_kinds", errors.MappedAxisError,
            "from flexfa4.torch_op import ops\n"
            "kinds = torch.ones(3, 1, 1, 1, 1, dtype=torch.int8)\n"
            "def call(kinds):\n"
            "    return ops.attention(query, key, value, None, kinds, [], [], None, '', 'q >= kv',"
            " None, [128, 128], [1, 1, 8, 12], None, 'auto', [], None, None, False)\n"
            "torch.func.vmap(call)(kinds)"),
    Mistake("no_matplotlib", errors.MissingPackageError,
            'with without("matplotlib.figure"):\n    flexfa4.plot_mask("q >= kv", 64)'),
    Mistake("demo_process_ended", errors.DemoProcessError, "train_in_a_process_that_ends()"),
]  # fmt: skip

FLEX = "from flexfa4.flex import *\n"
FLEX_CALL = FLEX + "flex_attention(query, key.repeat(1, 2, 1, 1), value.repeat(1, 2, 1, 1), "
FLEX_MASK = FLEX + CAUSAL + "block_mask = create_block_mask(mask_mod, None, None, 8, 12)\n"
LISTS = (
    FLEX + "counts, blocks = torch.tensor([[[1]]]).int(), torch.tensor([[[[0]]]]).int()\n"
    "BlockMask.from_kv_blocks("
)

COMPATIBILITY = [
    Mistake("flex_grouped_heads", flex_errors.GroupedHeadsError,
            FLEX + "flex_attention(query, key, value)",
            FLEX + "flex_attention(query, key, value, {instead})"),
    Mistake("flex_misspelt_kernel_option", flex_errors.UnknownKernelOptionError,
            FLEX_CALL + 'kernel_options={"BLOK_M": 64})'),
    Mistake("flex_kernel_option_of_torch_itself", flex_errors.UnknownKernelOptionError,
            FLEX_CALL + 'kernel_options={"OUTPUT_MAX": True})', FLEX_CALL + "{instead})"),
    Mistake("flex_kernel_backend", flex_errors.KernelOptionValueError,
            FLEX_CALL + 'kernel_options={"BACKEND": "CUTE"})'),
    Mistake("flex_kernel_options_that_exclude_each_other", flex_errors.ExclusiveKernelOptionsError,
            FLEX_CALL
            + 'kernel_options={"BACKEND": "TRITON", "FORCE_USE_FLEX_ATTENTION": True})',
            FLEX_CALL + "{instead})"),
    Mistake("flex_lse_twice", errors.ArgumentError,
            FLEX_CALL + "return_lse=True, return_aux=AuxRequest(lse=True))",
            FLEX_CALL + "{instead})"),
    Mistake("flex_aux_no_request", errors.ArgumentError, FLEX_CALL + "return_aux=True)",
            FLEX_CALL + "{instead})"),
    Mistake("flex_mask_reads_batch", errors.MaskReadsBatchError,
            FLEX + BY_HEAD + "create_block_mask(mask_mod, 2, None, 8, 12)"),
    Mistake("flex_mask_of_other_lengths", errors.BlockMaskLengthsError,
            FLEX_MASK + "query = query[:, :, :5]\n"
            "flex_attention(query, key, value, block_mask=block_mask, enable_gqa=True)"),
    Mistake("flex_block_of_no_mask", flex_errors.BlockIndexError, FLEX_MASK + "block_mask[:, 3]"),
    Mistake("flex_adjusted_too_far", flex_errors.BlockMaskAdjustmentError,
            FLEX_MASK + "block_mask._adjust(8, 1000)"),
    Mistake("flex_count_beyond_list", flex_errors.BlockCountError, LISTS + "counts + 1, blocks)"),
    Mistake("flex_block_beyond_mask", flex_errors.BlockOutsideError, LISTS + "counts, blocks + 5)"),
    Mistake("flex_block_listed_twice", flex_errors.RepeatedBlockError,
            LISTS + "counts + 1, blocks.repeat(1, 1, 1, 2))"),
    Mistake("flex_block_partial_and_full", flex_errors.PartialAndFullError,
            LISTS + "counts, blocks, counts, blocks)"),
    Mistake("flex_block_mask_of_flexattention", errors.ArgumentError,
            FLEX + CAUSAL + "key, value = key.repeat(1, 2, 1, 1), value.repeat(1, 2, 1, 1)\n"
            "block_mask = create_block_mask(mask_mod, None, None, 8, 12)\n" + USE,
            FLEX + CAUSAL + "key, value = key.repeat(1, 2, 1, 1), value.repeat(1, 2, 1, 1)\n"
            "block_mask = create_block_mask(mask_mod, None, None, 8, 12)\n{instead}"),
    Mistake("flex_rows_of_other_lengths", flex_errors.BlockListRowsError,
            LISTS + "counts, blocks, seq_lengths=(300, 100))"),
    Mistake("flex_lists_of_other_shapes", flex_errors.BlockListPairError,
            LISTS + "counts.repeat(1, 2, 1), blocks)"),
    Mistake("flex_lists_by_column_differ", flex_errors.TransposedListError,
            LISTS.replace("BlockMask.from_kv_blocks(", "BlockMask(")
            + "(8, 12), counts, blocks, None, None, counts - 1, blocks, None, None)"),
    Mistake("flex_float_list", flex_errors.BlockListTypeError, LISTS + "counts.float(), blocks)"),
]  # fmt: skip

MISTAKES = (*TRACING, *TEXTS, *TENSORS, *ARGUMENTS, *MASKS, *COMPATIBILITY, *OTHERS)
