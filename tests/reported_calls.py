"""Calls that public reports say other systems got wrong, for kernels: small, and as reported.

The emulator runs them small (`tests/emulate/test_user_reports.py`), a GPU in both sizes
(`tests/gpu/test_user_reports.py`); all results and gradients are held against the dense reference.
What is no matter of kernels is in the modules ``test_user_reports_*``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

import flexfa4
from flexfa4.testing import Attend, Case, Draw, Inputs, Mods, Sizes, Trial
from flexfa4.variants import Document, Softcap, alibi, causal
from tests.forward_trials import moved


@dataclass(frozen=True)
class Reported:
    """A call, and how its mask and its tensors are given.

    Attributes:
        source: the report.
        case: the mods.
        sizes: small ones.
        as_reported: those of the report, where they are larger.
        dtype: of q, k and v.
        sink: there is one.
        block_size: the mask is given as a block mask of such blocks; None: as a function.
        part: the block mask is made for this many queries more, and then its last ones are taken.
        layout: how q, k and v lie in memory.
    """

    source: str
    case: Case
    sizes: Sizes
    as_reported: Sizes | None = None
    dtype: torch.dtype = torch.bfloat16
    sink: bool = False
    block_size: int | tuple[int, int] | None = None
    part: int = 0
    layout: Callable[[torch.Tensor], torch.Tensor] = lambda x: x

    def trial(self, *, small: bool) -> Trial:
        """Return what is compared."""
        sizes = self.sizes if small or self.as_reported is None else self.as_reported
        return Trial(self.case, sizes, self.dtype, self.sink)

    def attend(self, backend: str, device: str) -> Attend:
        """Return who computes it, on copies of the tensors on a device."""

        def attend(inputs: Inputs, mods: Mods) -> tuple[torch.Tensor, torch.Tensor]:
            q, k, v = (self.layout(x.to(device)) for x in (inputs.q, inputs.k, inputs.v))
            out, lse = flexfa4.attention(
                q,
                k,
                v,
                score_mod=moved(mods.score_mod, "score", device),
                block_mask=self._mask(moved(mods.mask, "mask", device), q, k),
                sink=None if inputs.sink is None else inputs.sink.to(device),
                return_lse=True,
                backend=backend,
            )
            return out.cpu(), lse.cpu()

        return attend

    def _mask(self, mask: Any, q: torch.Tensor, k: torch.Tensor) -> Any:
        if self.block_size is None:
            return mask
        made = flexfa4.create_block_mask(
            mask,
            batch=q.shape[0],
            heads=q.shape[1],
            q_len=q.shape[2] + self.part,
            kv_len=k.shape[2],
            device=q.device,
            block_size=self.block_size,
        )
        return made[:, :, self.part :] if self.part else made


# ---- layouts -------------------------------------------------------------------------------------


def in_sequence_order(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor as a view of one whose sequence comes before its heads."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def at_an_odd_offset(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor as a slice that begins at an odd element, rows at odd distances."""
    return torch.nn.functional.pad(x, (1, 2))[..., 1:-2]


def of_one_packed_tensor(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor as every third head dimension of a packed one."""
    return torch.stack((x, x, x), dim=4)[..., 1]


# ---- mods ----------------------------------------------------------------------------------------


def _causal_by_blocks(s: Sizes, d: Draw) -> Mods:
    """Return causal attention that is known by a table of blocks alone, but for the diagonal."""
    size = 64
    blocks = torch.ones(-(-s.q_len // size), -(-s.kv_len // size), dtype=torch.bool).tril()
    return Mods(None, lambda b, h, q, kv: blocks[q // size, kv // size] & (q >= kv))


def _documents(s: Sizes, d: Draw) -> Mods:
    ids = d.integers(0, 4, s.batch, max(s.q_len, s.kv_len)).sort(1).values
    return Mods(None, Document(ids) & causal)


def _heads_without_keys(s: Sizes, d: Draw) -> Mods:
    sees = torch.arange(s.heads) % 5 > 0
    return Mods(None, lambda b, h, q, kv: sees[h] & (q >= kv))


def _scattered_keys(s: Sizes, d: Draw) -> Mods:
    keep = d.fixed(s.kv_len) > 0.58
    return Mods(None, lambda b, h, q, kv: keep[kv])


def _decoded_from(position: int) -> Case:
    return Case(
        "decoded",
        lambda s, d: Mods(None, causal, eager_mask=lambda b, h, q, kv: q + position >= kv),
    )


def _bias_of_pairs(s: Sizes, d: Draw) -> Mods:
    bias = d.learned(s.batch, s.heads, s.q_len, s.kv_len)
    return Mods(lambda score, b, h, q, kv: score + bias[b, h, q, kv], None, (bias,))


CAUSAL: Final = Case.of(mask=causal)
ALIBI: Final = Case(
    "alibi",
    lambda s, d: Mods(
        alibi,
        causal,
        eager_score_mod=lambda score, b, h, q, kv: (
            score + 2.0 ** (-8 * (h + 1) / s.heads) * (kv - q)
        ),
    ),
)

REPORTS: Final[dict[str, Reported]] = {
    "a captured bias of pairs": Reported(
        "pytorch/pytorch#145869", Case("pairs", _bias_of_pairs),
        Sizes(2, 2, 2, 70, 90, 64, 64), Sizes(2, 8, 8, 512, 512, 64, 64),
    ),
    "few queries, many keys": Reported(
        "pytorch/pytorch#174923", ALIBI,
        Sizes(1, 2, 2, 5, 500, 64, 64), Sizes(1, 4, 4, 5, 20000, 64, 64),
    ),
    "the part of a block mask that decodes": Reported(
        "pytorch/pytorch#163314", _decoded_from(130),
        Sizes(2, 2, 2, 1, 160, 64, 64), Sizes(4, 4, 4, 1, 512, 64, 64), block_size=128, part=130,
    ),
    "a mask of heads with few queries": Reported(
        "pytorch/pytorch#148527", Case("heads", _heads_without_keys),
        Sizes(1, 10, 5, 8, 8, 128, 128), Sizes(1, 32, 32, 8, 128, 128, 128), block_size=128,
    ),
    "six query heads for each key head": Reported(
        "pytorch/pytorch#151359", CAUSAL,
        Sizes(1, 12, 2, 1, 300, 16, 16), Sizes(1, 12, 2, 1, 4096, 16, 16),
    ),
    "a hundred queries of two heads for each key head": Reported(
        "pytorch/pytorch#185349", CAUSAL,
        Sizes(1, 4, 2, 100, 120, 64, 64), Sizes(2, 16, 8, 100, 3000, 64, 64),
    ),
    "grouped heads with lists of blocks": Reported(
        "pytorch/pytorch#171271", Case("documents", _documents),
        Sizes(2, 4, 2, 170, 170, 64, 64), Sizes(2, 8, 2, 1000, 1000, 128, 128), block_size=64,
    ),
    "causal limits of packed rows": Reported(
        "Dao-AILab/flash-attention#2528", CAUSAL,
        Sizes(1, 6, 2, 90, 90, 64, 64), Sizes(2, 12, 4, 900, 900, 64, 64),
    ),
    "28 heads and 4": Reported(
        "meta-pytorch/attention-gym#81", CAUSAL,
        Sizes(1, 28, 4, 30, 50, 128, 128), Sizes(1, 28, 4, 700, 700, 128, 128),
    ),
    "block sparse gradients of head dim 64": Reported(
        "Dao-AILab/flash-attention#2623", Case("blocks", _causal_by_blocks),
        Sizes(1, 2, 2, 200, 200, 64, 64), Sizes(2, 4, 4, 1500, 1500, 64, 64), block_size=64,
    ),
    "head dims 192 and 128, blocks 64x128": Reported(
        "Dao-AILab/flash-attention#2429", Case("documents", _documents),
        Sizes(1, 2, 2, 150, 150, 192, 128), Sizes(2, 4, 4, 512, 512, 192, 128),
        block_size=(64, 128),
    ),
    "head dim 256, blocks 128x64": Reported(
        "Dao-AILab/flash-attention#2757", Case("documents", _documents),
        Sizes(1, 2, 1, 150, 150, 256, 256), Sizes(2, 4, 2, 512, 512, 256, 256),
        block_size=(128, 64),
    ),
    "slices at odd offsets": Reported(
        "Dao-AILab/flash-attention#2745", CAUSAL,
        Sizes(1, 2, 2, 70, 90, 64, 64), Sizes(2, 4, 2, 700, 900, 128, 128),
        layout=at_an_odd_offset,
    ),
    "head dim 256 in the order of the sequence": Reported(
        "Dao-AILab/flash-attention#2670", CAUSAL,
        Sizes(2, 2, 2, 70, 90, 256, 256), Sizes(2, 4, 2, 700, 900, 256, 256),
        layout=in_sequence_order,
    ),
    "parts of one packed tensor": Reported(
        "pytorch/pytorch#134471", CAUSAL,
        Sizes(1, 2, 2, 70, 90, 64, 64), Sizes(1, 16, 1, 1024, 1024, 64, 64),
        layout=of_one_packed_tensor,
    ),
    "softcap": Reported(
        "Dao-AILab/flash-attention#2396", Case.of(Softcap(2.0), causal),
        Sizes(1, 2, 2, 90, 110, 64, 64), Sizes(2, 4, 4, 900, 900, 128, 128),
    ),
    "head dim 96": Reported(
        "Dao-AILab/flash-attention#2198", Case("documents", _documents),
        Sizes(1, 2, 1, 90, 110, 96, 96), Sizes(2, 4, 2, 900, 900, 96, 96),
    ),
    "sinks": Reported(
        "Dao-AILab/flash-attention#1895", Case("documents", _documents),
        Sizes(1, 4, 2, 90, 90, 64, 64), Sizes(2, 8, 2, 900, 900, 128, 128), sink=True,
    ),
    "lse in fp16": Reported(
        "pytorch/pytorch#181645", Case.of(),
        Sizes(1, 1, 1, 130, 130, 32, 32), Sizes(1, 1, 1, 1024, 1024, 32, 32), torch.float16,
    ),
    "lse of many heads": Reported(
        "meta-pytorch/attention-gym#37", Case.of(),
        Sizes(1, 4, 4, 128, 128, 64, 64), Sizes(2, 32, 32, 128, 128, 64, 64),
    ),
    "one query that sees few keys": Reported(
        "pytorch/pytorch#163588", Case("scattered", _scattered_keys),
        Sizes(1, 2, 2, 1, 300, 64, 64), Sizes(1, 4, 4, 1, 4096, 64, 64),
    ),
    "more queries than keys": Reported(
        "Dao-AILab/flash-attention#2199", CAUSAL,
        Sizes(1, 2, 2, 180, 90, 64, 64), Sizes(1, 4, 4, 2048, 1024, 64, 64),
    ),
}  # fmt: skip
"""By what they are about."""
