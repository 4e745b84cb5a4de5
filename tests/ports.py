"""Programs of FlexAttention users, run with torch's module and with `flexfa4.flex`.

A program is a function of the module it uses and of where it draws its tensors from.  It runs four
times, with only the module changed: with `flexfa4.flex`; with torch's module, eagerly; and densely
in fp64 and in fp32, which gives the values, the gradients and the error that is allowed.
"""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest import mock

import torch
from torch.nn.attention import flex_attention as torch_flex

import flexfa4.flex
from flexfa4.testing import Inputs, Mods, dense_reference, finite_rows

ROOT: Final = Path(__file__).parent.parent

Tensors = list[torch.Tensor]
Program = Callable[[Any, "Draws"], Tensors]


def _normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Draw in fp32 whatever torch's default is: another dtype would draw other values."""
    return torch.randn(*shape, generator=generator, dtype=torch.float32)


@dataclass
class Draws:
    """The tensors of a program: the same values for every module, in any dtype.

    Attributes:
        dtype: of the floating tensors.
        learn: they require gradients.
        leaves: those drawn so far.
    """

    dtype: torch.dtype
    learn: bool
    leaves: Tensors = field(default_factory=list)
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def normal(self, *shape: int) -> torch.Tensor:
        """Return a normally distributed tensor."""
        drawn = _normal(self.generator, *shape).to(self.dtype)
        self.leaves.append(drawn.requires_grad_(self.learn))
        return drawn

    def qkv(
        self, batch: int, heads: int, length: int, dim: int, *, kv_heads: int = 0, kv_len: int = 0
    ) -> Tensors:
        """Return query, key and value; as many key heads and keys as queries by default."""
        keys = (batch, kv_heads or heads, kv_len or length, dim)
        return [self.normal(batch, heads, length, dim), self.normal(*keys), self.normal(*keys)]

    def integers(self, high: int, *shape: int) -> torch.Tensor:
        """Return integers below `high`."""
        return torch.randint(high, shape, generator=self.generator)


# ---- the modules ---------------------------------------------------------------------------------


def listed_tokens(block_mask: Any) -> torch.Tensor:
    """Return the mask of the scores that lists and mask function of a torch BlockMask mean."""
    b, h, q_len, kv_len = block_mask.shape
    size_q, size_kv = block_mask.BLOCK_SIZE
    seen = torch.zeros(2, b, h, q_len + size_q, kv_len + size_kv, dtype=torch.bool)
    pairs = (
        (block_mask.kv_num_blocks, block_mask.kv_indices),
        (block_mask.full_kv_num_blocks, block_mask.full_kv_indices),
    )
    for table, (num, indices) in zip(seen, pairs, strict=True):
        if num is None:
            continue
        for row in torch.cartesian_prod(*map(torch.arange, num.shape)).tolist():
            q = row[2] * size_q
            for block in indices[tuple(row)][: num[tuple(row)]].tolist():
                table[row[0], row[1], q : q + size_q, block * size_kv : (block + 1) * size_kv] = (
                    True
                )
    partial, full = seen[..., :q_len, :kv_len]
    allowed = torch_flex.create_mask(block_mask.mask_mod, b, h, q_len, kv_len, device="cpu")
    return full | (partial & allowed)


def dense_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Any:
    """Compute attention with the whole score matrix; `block_mask` is torch's."""
    mask = None
    if block_mask is not None:
        tokens = listed_tokens(block_mask)

        def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return tokens[b % tokens.shape[0], h % tokens.shape[1], q_idx, kv_idx]

    batch = query.shape[0]
    inputs = Inputs(query, key.expand(batch, -1, -1, -1), value.expand(batch, -1, -1, -1))
    out, lse = dense_reference(inputs, Mods(score_mod, mask), scale=scale, dtype=query.dtype)
    if return_aux is not None:
        return out, torch_flex.AuxOutput(lse if return_aux.lse else None, None)
    return (out, lse) if return_lse else out


DENSE: Final = types.SimpleNamespace(
    **{name: getattr(torch_flex, name) for name in torch_flex.__all__ if name != "flex_attention"},
    flex_attention=dense_attention,
    __name__="dense",
)


@contextlib.contextmanager
def _eager_torch() -> Iterator[None]:
    """Let torch's module call mods directly; it would compile each program otherwise."""
    with mock.patch.object(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True):
        yield


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


# ---- running them --------------------------------------------------------------------------------


def results(
    program: Program, flex: Any, dtype: torch.dtype, *, gradients: bool
) -> list[tuple[str, torch.Tensor]]:
    """Return what a program computes with a module, and the gradients of its tensors, by name."""
    draws = Draws(dtype, learn=gradients)
    with _default_dtype(dtype), _eager_torch():
        found = program(flex, draws)
        named = [(f"result {i}", t.detach()) for i, t in enumerate(found)]
        if not gradients:
            return named
        weights = torch.Generator().manual_seed(1)
        terms = [
            (finite_rows(t) * _normal(weights, *t.shape).to(dtype)).sum()
            for t in found
            if t.requires_grad
        ]
        if not terms:
            return named
        loss = torch.stack(terms).sum()
        grads = torch.autograd.grad(loss, draws.leaves, allow_unused=True)
    for i, (leaf, grad) in enumerate(zip(draws.leaves, grads, strict=True)):
        named.append((f"gradient {i}", torch.zeros_like(leaf) if grad is None else grad))
    return named


def differences(program: Program, *, torch_reads_lists: bool = True) -> list[str]:
    """Return where a program does not compute the same with every module; none is right.

    An error may be twice that of the dense computation in fp32, and the rounding of the longest
    sum, for which the square root of the number of terms stands (as in `flexfa4.testing`).

    Args:
        program: what to run.
        torch_reads_lists: torch computes it right eagerly, where it looks at `mask_mod` alone.
    """
    exact = results(program, DENSE, torch.float64, gradients=True)
    dense = results(program, DENSE, torch.float32, gradients=True)
    ours = results(program, flexfa4.flex, torch.float32, gradients=True)
    torchs = results(program, torch_flex, torch.float32, gradients=False)
    found = [("flexfa4.flex", ours)] + [("torch", torchs)] * torch_reads_lists
    wrong = []
    for who, values in found:
        for (name, value), (_, right), (_, low) in zip(values, exact, dense, strict=False):
            error, allowed = _error(value, right), 2 * _error(low, right) + _rounding(right)
            if not error <= allowed:
                wrong.append(f"{who}: {name} is off by {error:.2e}, allowed {allowed:.2e}")
    return wrong


TERMS: Final = 1 << 12  # of the longest sums: gradients of tables, over all scores that read them


def _rounding(right: torch.Tensor) -> float:
    largest = float(finite_rows(right).abs().max()) if right.numel() else 0.0
    return TERMS**0.5 * torch.finfo(torch.float32).eps * largest


def _error(value: torch.Tensor, right: torch.Tensor) -> float:
    if value.shape != right.shape or not torch.equal(value.isinf(), right.isinf()):
        return float("inf")
    gap = finite_rows(value.double()) - finite_rows(right.double())
    return float(gap.abs().max()) if gap.numel() else 0.0


def documented(tests: str) -> str:
    """Return how many programs of a test module ran, as docs/from_flexattention.md says."""
    lines = (ROOT / "docs" / "from_flexattention.md").read_text(encoding="utf-8").splitlines()
    (row,) = (
        line for line in lines if line.startswith("|") and f"`tests/{Path(tests).name}`" in line
    )
    return row.split("|")[2].strip()


def programs_of(module: types.ModuleType) -> dict[str, Program]:
    """Return the programs of a test module: its functions of `flex` and `x`."""
    return {
        name: function
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and list(inspect.signature(function).parameters) == ["flex", "x"]
    }
