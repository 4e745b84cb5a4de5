"""Seconds until the first result: in a fresh process, with nothing compiled and with all on disk.

The clock starts when torch is imported and the inputs lie on the device, and covers the import of
the provider, the making of its block mask, compiling, and the kernel itself.  *another* is the
first call of another variant in the same process.  *backward* is the first backward pass, of the
first variant, without the forward pass that it needs.  The same script runs twice with the same
new cache folders: what it finds the second time is what a user's second start finds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from hopper.providers import BACKEND, OURS

FIRST_MOST_S: Final = 2.5
"""What the first call of a new variant may take."""
FROM_DISK_MOST_S: Final = 0.15
"""What the first call of a process may take beyond ``import torch``, with its kernel on disk, and
its first backward pass."""

_BEGIN = """
import json, time, torch
import torch.nn.functional as F
q, k, v = (torch.randn(1, 16, 2048, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
torch.cuda.synchronize()
def causal(b, h, q_idx, kv_idx): return q_idx >= kv_idx
def softcap(score, b, h, q_idx, kv_idx): return 30 * torch.tanh(score / 30)
start = time.perf_counter()
"""

_END = """
def timed(call):
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start
imported = time.perf_counter() - start
found = {"import_s": imported, "first_s": timed(first)}
start = time.perf_counter()
found["another_s"] = timed(another)
start = time.perf_counter()
found["repeated_s"] = timed(first)
for x in (q, k, v):
    x.requires_grad_()
try:
    out = first()
    out = out[0] if isinstance(out, tuple) else out
    do, one = torch.ones_like(out), torch.ones(1, device="cuda", requires_grad=True)
    torch.autograd.grad(one * 2, one, torch.ones_like(one))  # torch imports sympy for the first
    torch.cuda.synchronize()
    start = time.perf_counter()
    found["backward_s"] = timed(lambda: torch.autograd.grad(out, (q, k, v), do))
except Exception as error:
    found["backward_failed"] = str(error)[:300]
print(json.dumps(found))
"""

_FLEX = """
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
compiled = torch.compile(flex_attention, dynamic=False)
mask = create_block_mask(causal, None, None, 2048, 2048, device="cuda")
options = {options}
def first(): return compiled(q, k, v, block_mask=mask, kernel_options=options)
def another():
    return compiled(q, k, v, score_mod=softcap, block_mask=mask, kernel_options=options)
"""

SCRIPTS: Final = {
    OURS: f"""
import flexfa4
def run(score_mod):
    return flexfa4.attention(
        q, k, v, score_mod=score_mod, block_mask=causal, backend={BACKEND!r}
    )
def first(): return run(None)
def another(): return run(softcap)
""",
    "flash-attn-4": """
from flash_attn.cute import flash_attn_func
q, k, v = (t.transpose(1, 2).contiguous() for t in (q, k, v))
def first(): return flash_attn_func(q, k, v, causal=True)
def another(): return flash_attn_func(q, k, v, causal=True, softcap=30.0)
""",
    "Flex FLASH": _FLEX.replace("{options}", "{'BACKEND': 'FLASH'}"),
    "Flex Triton": _FLEX.replace("{options}", "None"),
    "cuDNN": """
from torch.nn.attention import SDPBackend, sdpa_kernel
def run(causal):
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
def first(): return run(True)
def another(): return run(False)
""",
}
"""Each provider's imports, and `first` and `another`: calls of two variants."""


def measured(provider: str, seconds: float) -> dict[str, Any]:
    """Return the times of a provider, with an empty cache and from the disk.

    Args:
        provider: a key of `SCRIPTS`.
        seconds: that both processes together may take.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        environment = {**os.environ, **cache_variables(Path(folder))}
        return {
            "provider": provider,
            **{
                which: in_a_process(_BEGIN + SCRIPTS[provider] + _END, environment, seconds / 2)
                for which in ("empty", "disk")
            },
        }


def cache_variables(folder: Path) -> dict[str, str]:
    """Return variables of the environment by which every provider keeps its kernels in a folder."""
    return {
        "FLEXFA4_CACHE_DIR": str(folder / "flexfa4"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1",
        "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": str(folder / "flash_attn"),
    }


def in_a_process(code: str, environment: dict[str, str], seconds: float) -> dict[str, Any]:
    """Run a script and return what it prints as JSON, or why there is none."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=environment,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"over {seconds:.0f} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1][:300]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
