"""The registered ops: what they compute, the shapes they return, and their derivatives.

    flexfa4::attention(query, key, value, ...) -> (out, lse)
    flexfa4::attention_backward(grad_out, grad_lse, out, lse, wanted, query, ...) -> gradients
    flexfa4::block_kinds(mask, tensors, ints, floats, sizes, block_size, device) -> kinds

`arguments` says what the arguments are.  ``lse`` is the natural logarithm and is always returned.
``wanted`` holds a flag for each of query, key, value, sink and the tensors: the gradients come for
those that are set, in that order.  A second derivative is an error.

These functions run on real tensors, below autograd; fake tensors get shapes only.  How users' mods
become text is not their business.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch

from flexfa4.block_mask import found_blocks
from flexfa4.checks import check_captured, check_tensors
from flexfa4.counters import count
from flexfa4.errors import BlockMaskLengthsError, OutOfRangeError, SecondDerivativeError
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.evaluate import Values
from flexfa4.frontend.ir import F32, Buffer
from flexfa4.frontend.layout import empty_gradient, empty_output, laid_out
from flexfa4.frontend.masks.grid import block_count
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.frontend.sizes import Sizes
from flexfa4.kernels.backends import attend, backend_for
from flexfa4.kernels.gradient_batches import for_each
from flexfa4.kernels.request import TAU, Choices, Inputs, Request, Results, Tile
from flexfa4.lru import LruCache
from flexfa4.masks.cache import block_mask_of
from flexfa4.masks.registry import known
from flexfa4.masks.snapshot import number_key, tensor_identity
from flexfa4.masks.spec import BLOCK_SIZE, GivenSizes, Spec, reads
from flexfa4.out_of_range import explained
from flexfa4.torch_op import folding
from flexfa4.torch_op.arguments import (
    EMPTY,
    LEADING,
    SCHEMA,
    Arguments,
    bind,
    decode,
    graph_of,
)
from flexfa4.torch_op.tables import MIN_TABLE, table_of, with_table

__all__ = ["attention", "attention_backward", "block_kinds"]


_max: Final[Callable[[int, int], int]] = torch.sym_max  # asks nothing about symbolic sizes


# ---- forward -------------------------------------------------------------------------------------


def _attention(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    count("calls")
    a = Arguments(*arguments)
    request = _request(a, frozenset())
    try:
        with torch.no_grad():
            out, lse = attend(request, _inputs(a))
    except OutOfRangeError as error:
        raise explained(error, request.score, _sizes(a), OutOfRangeError) from None
    assert lse is not None
    return out, lse


def _inputs(a: Arguments) -> Inputs:
    return Inputs(a.query, a.key, a.value, a.sink)


def _sizes(a: Arguments) -> Sizes:
    return _inputs(a).sizes


def _request(a: Arguments, needs_grad: frozenset[Buffer]) -> Request:
    call = decode(a)
    blocks = None if call.mask is None else _blocks(a, call.mask)
    tile = Tile(*[n or None for n in a.tile])
    tau = TAU if a.tau is None else float(a.tau)
    choices = Choices(a.backend, a.scores_at_once, tile, tau, a.emulated, a.deterministic)
    return Request(call.score, blocks, call.scale, needs_grad, True, choices)


def _attention_shapes(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    a = Arguments(*arguments)
    check_tensors(a.query, a.key, a.value, a.sink)
    for tensor in a.tensors:
        check_captured("captured tensor", tensor, a.query)
    q, batch = a.query, a.query.shape[:3]
    dtype = torch.float64 if q.dtype is torch.float64 else torch.float32
    return empty_output(q, a.value.shape[3]), q.new_empty(batch, dtype=dtype)


attention = torch.library.custom_op(
    "flexfa4::attention", _attention, mutates_args=(), schema=f"({SCHEMA}) -> (Tensor, Tensor)"
)
attention.register_fake(_attention_shapes)
attention.register_vmap(functools.partial(folding.attention, run=attention))


# ---- masks ---------------------------------------------------------------------------------------

# Masks whose table came with the call; an entry holds the tensors that its key identifies, so that
# their ids stay taken.
_CACHE: Final[LruCache[tuple[MaskBlocks, Any]]] = LruCache(32)


def _blocks(a: Arguments, mask: BoundGraph) -> MaskBlocks:
    device, sizes = a.query.device, _sizes(a)
    if a.made_for:
        spec = _spec(a.made_for, a.block_size)
        _check_lengths(spec.sizes, sizes)
        if a.kinds is not None:
            return _of_table(a.kinds, mask, spec, device)
        found = known(mask, spec)
        if found is not None:
            return found.on(device)
    else:
        given = GivenSizes(sizes.batch, sizes.heads, sizes.q_len, sizes.kv_len, sizes.kv_heads)
        spec = Spec(given, BLOCK_SIZE)
    return block_mask_of(a.mask, mask, spec, device).blocks_on(device)


def _of_table(
    table: torch.Tensor, mask: BoundGraph, spec: Spec, device: torch.device
) -> MaskBlocks:
    held = (table, *mask.tensors)
    identities = tuple([tensor_identity(t) for t in held])
    key = (mask.graph, tuple(map(number_key, mask.scalars)), identities, spec, device)
    found = _CACHE.get(key)
    if found is not None:
        return found[0]
    # every load was in range when the table was made
    values = Values.of(mask, spec.known_sizes, device=device)
    space = spec.space(mask.graph)
    blocks = with_table(MaskBlocks(mask.graph, values, space, spec.block_size), table)
    if None not in identities:
        _CACHE.put(key, (blocks, held))
    return blocks


def _check_lengths(made: GivenSizes, sizes: Sizes) -> None:
    """Refuse a block mask for other lengths: who recorded the call may not have checked them again.

    Raises:
        BlockMaskLengthsError: they differ.
    """
    if (made.q_len, made.kv_len) != (sizes.q_len, sizes.kv_len):
        raise BlockMaskLengthsError(
            made_q_len=made.q_len,
            made_kv_len=made.kv_len,
            q_len=sizes.q_len,
            kv_len=sizes.kv_len,
            rewrite="attention(query, key, value, block_mask=mask) with the mask function itself",
        )


def _block_kinds(
    mask: str,
    tensors: list[torch.Tensor],
    ints: list[int],
    floats: torch.Tensor | None,
    sizes: list[int],
    block_size: list[int],
    device: torch.device,
) -> torch.Tensor:
    spec = _spec(sizes, block_size)
    return table_of(found_blocks(bind(mask, tensors, ints, floats), spec, device))


def _block_kinds_shape(
    mask: str,
    tensors: list[torch.Tensor],
    ints: list[int],
    floats: torch.Tensor | None,
    sizes: list[int],
    block_size: list[int],
    device: torch.device,
) -> torch.Tensor:
    read = reads(graph_of(mask))
    batch, heads, q_len, kv_len = sizes
    shape = (
        batch if "b" in read else 1,
        heads if "h" in read else 1,
        _max(MIN_TABLE, block_count(q_len, block_size[0])),
        _max(MIN_TABLE, block_count(kv_len, block_size[1])),
    )
    return torch.empty(shape, dtype=torch.int8, device="cpu")


def _spec(sizes: list[int], block_size: list[int]) -> Spec:
    batch, heads, q_len, kv_len = sizes
    return Spec(GivenSizes(batch, heads, q_len, kv_len), (block_size[0], block_size[1]))


block_kinds = torch.library.custom_op(
    "flexfa4::block_kinds",
    _block_kinds,
    mutates_args=(),
    schema="(str mask, Tensor[] tensors, SymInt[] ints, Tensor? floats, SymInt[] sizes,"
    " SymInt[] block_size, Device device) -> Tensor",
)
block_kinds.register_fake(_block_kinds_shape)
block_kinds.register_vmap(folding.block_kinds)


# ---- backward ------------------------------------------------------------------------------------


def _attention_backward(
    grad_out: torch.Tensor | None,
    grad_lse: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    wanted: list[bool],
    *arguments: Any,
) -> list[torch.Tensor]:
    a = Arguments(*arguments)
    buffers = graph_of(a.score).buffers if a.score else ()
    needs = [b for b, w in zip(buffers, wanted[LEADING:], strict=False) if w]
    request = _request(a, frozenset(needs))
    inputs = (*_inputs(a), *a.tensors[: len(buffers)])
    with torch.no_grad():
        backend = backend_for(request, _inputs(a), True)
        results = Results(out, lse / backend.lse_unit, grad_out, grad_lse)
        found = backend.gradients(request, inputs, results, wanted[: len(inputs)])
        pairs = zip(found[:3], inputs[:3], strict=True)
        found = [*(None if g is None else laid_out(g, x) for g, x in pairs), *found[3:]]
    return [g for g in found if g is not None]


def _gradient_shapes(
    grad_out: torch.Tensor | None,
    grad_lse: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    wanted: list[bool],
    *arguments: Any,
) -> list[torch.Tensor]:
    a = Arguments(*arguments)
    inputs = (a.query, a.key, a.value, a.sink, *a.tensors)
    pairs = enumerate(zip(inputs, wanted, strict=True))
    return [empty_gradient(x) if i < 3 else x.new_empty(x.shape) for i, (x, w) in pairs if w]


attention_backward = torch.library.custom_op(
    "flexfa4::attention_backward",
    _attention_backward,
    mutates_args=(),
    schema="(Tensor? grad_out, Tensor? grad_lse, Tensor out, Tensor lse, bool[] wanted,"
    f" {SCHEMA}) -> Tensor[]",
)
attention_backward.register_fake(_gradient_shapes)
attention_backward.register_vmap(
    functools.partial(folding.attention_backward, run=attention_backward)
)
# torch.library.custom_op has no name for the batches of torch.autograd.grad
_LIBRARY: Final[Any] = torch.library.Library("flexfa4", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.impl("attention_backward", functools.partial(for_each, attention_backward), "Batched")


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    ctx.rest, tensors = Arguments(*inputs).partition()
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, *tensors)


def _differentiate(
    ctx: Any, grad_out: torch.Tensor | None, grad_lse: torch.Tensor | None
) -> tuple[Any, ...]:
    out, lse, *tensors = ctx.saved_tensors
    a: Arguments = ctx.rest.combine(tensors)
    results = (grad_out, grad_lse, out, lse)
    grads = differentiate(attention_backward, results, a, Arguments(*ctx.needs_input_grad))
    # torch takes an empty list of numbers for one of tensors, and wants no None for it
    empty: dict[str, list[int]] = {n: [] for n in ("ints", "made_for", "tile") if not getattr(a, n)}
    return tuple(grads._replace(**empty))


def differentiate(
    run: Any, results: tuple[Any, Any, torch.Tensor, torch.Tensor], a: Arguments, needed: Arguments
) -> Arguments:
    """Return the gradient of each argument, None where there is none.

    Args:
        run: `attention_backward`, or what stands for it.
        results: gradients of out and lse, of which each may be None, out, and lse.
        a: the arguments of the forward pass.
        needed: for each of them whether it needs a gradient.
    """
    buffers = graph_of(a.score).buffers if a.score else ()
    captured = [
        n and i < len(buffers) and buffers[i].dtype is F32 for i, n in enumerate(needed.tensors)
    ]
    wanted = [needed.query, needed.key, needed.value, needed.sink, *captured]
    grads: list[Any] = [None] * len(wanted)
    if (results[0] is not None or results[1] is not None) and any(wanted):
        found = iter(run(*results, wanted, *a))
        grads = [next(found) if w else None for w in wanted]
    query, key, value, sink, *tensors = grads
    return EMPTY._replace(query=query, key=key, value=value, sink=sink, tensors=tensors)


attention.register_autograd(_differentiate, setup_context=_keep)


def _keep_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Do nothing: no derivative of a gradient is taken."""


def _refuse(ctx: Any, *grads: Any) -> Any:
    raise SecondDerivativeError


attention_backward.register_autograd(_refuse, setup_context=_keep_nothing)
