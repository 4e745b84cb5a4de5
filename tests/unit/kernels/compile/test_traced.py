"""What was noted of a traced kernel, read: texts as CuTe-DSL 4.8.1 writes them.

Modules of CuTe-DSL itself are looked at in tests/compile/test_kernel_compiler.py.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flexfa4.kernels.compile.traced import (
    Trace,
    TracedMap,
    dynamic_shared_memory,
    lacks_shared_memory,
)

CONFIG = "!llvm.struct<(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32)>"


def trace(kind: str = "i32", layout: str = "", facts: str = "") -> Trace:
    return Trace([("kernel_0", facts)], [kind], [layout])


def atom(basis: str, form: str = "BF16_RN", operation: str = "load<sm_90, ") -> str:
    return (
        f"!cute_nvgpu.atom.non_exec_tiled_tma_{operation}bf16, copy_bits = 131072,"
        f' tma_gbasis = <"{basis}">, tma_format = {form}>'
    )


SWIZZLED = '!cute.composed_layout<"S<{bits},4,3> o 0 o ((8,16),(64,1)):((64,512),(1,0))">'


@pytest.mark.parametrize(
    ("bits", "swizzle"), [(0, 0), (1, 32), (2, 64), (3, 128)], ids=lambda n: str(n)
)
def test_a_map_has_the_swizzle_of_its_layout(bits: int, swizzle: int) -> None:
    found = trace(atom("(64,128):(1@1,1@0)"), SWIZZLED.format(bits=bits)).tensor_map(0)
    assert found == TracedMap("bf16", (64, 128), (128, 64), swizzle)


def test_a_store_is_read_like_a_load() -> None:
    text = atom("(16,64,1):(1@1,1@0,1@2)", "F16_RN", "store<")
    assert trace(text, '!cute.layout<"(64,16):(16,1)">').tensor_map(0) == TracedMap(
        "f16", (16, 64, 1), (64, 16, 1), 0
    )


def test_a_box_is_in_the_order_in_which_its_tile_lies_in_shared_memory() -> None:
    """Packed heads: CuTe-DSL's map of this one has sizes of axis 0, of heads, of rows."""
    found = trace(atom("(64,4,32):(1@1,1@2,1@0)"), SWIZZLED.format(bits=3)).tensor_map(0)
    assert found is not None
    assert (found.box, found.by_mode) == ((64, 4, 32), (32, 64, 4))


@pytest.mark.parametrize("kind", ["i32", "f32", "!cute.ptr<f32, gmem, align<16>>"])
def test_another_parameter_is_no_map(kind: str) -> None:
    assert trace(kind).tensor_map(0) is None


def test_an_unknown_element_keeps_its_name() -> None:
    found = trace(atom("(16,8):(1@1,1@0)", "F64_RN")).tensor_map(0)
    assert found is not None and found.element == "F64_RN"


@pytest.mark.parametrize(
    ("facts", "cluster"),
    [
        ("{cluster_launch = false, schema_version = 1 : i64}", (1, 1, 1)),
        ("{cluster_launch = true, exact_cluster_dim = array<i64: 2, 1, 1>}", (2, 1, 1)),
        ("{cluster_launch = true, exact_block_dim = array<i64: 128, 1, 1>}", None),
        ("", None),
    ],
)
def test_a_cluster_is_known_where_it_is_constant(facts: str, cluster: Any) -> None:
    assert trace(facts=facts).cluster() == cluster


def test_the_code_of_a_kernel_is_not_looked_through() -> None:
    class Block:
        arguments = (SimpleNamespace(type="i32"),)

        @property
        def operations(self) -> Any:
            raise AssertionError("a kernel has ten thousand")

    code = SimpleNamespace(blocks=[Block()])
    kernel = op("cuda.kernel", sym_name='"kernel_0"')
    kernel.regions = [code]
    noted = Trace()
    noted.note(None, op("builtin.module", inside=[op("gpu.module", inside=[kernel])]), "")
    assert noted.kernels == [("kernel_0", "")] and noted.types == ["i32"]


# ---- a lowered module, of objects that look like CuTe-DSL's ----


def op(name: str, *operands: Any, inside: list[Any] | None = None, **attributes: Any) -> Any:
    regions = [SimpleNamespace(blocks=[SimpleNamespace(operations=inside)])] if inside else []
    made = SimpleNamespace(name=name, operands=operands, attributes=attributes, regions=regions)
    made.operation = made
    return made


def result(made: Any) -> Any:
    return SimpleNamespace(owner=made)


def host_code(*values: Any, texts: tuple[str, ...] = (), used: tuple[str, ...] = ()) -> Any:
    """Return a module that stores values as shared memory of launches."""
    number = op("llvm.mlir.constant", value=SimpleNamespace(value=7))
    inside = [
        op(
            "llvm.mlir.global",
            sym_name=f'"text_{n}"',
            value=SimpleNamespace(value_bytes=t.encode()),
        )
        for n, t in enumerate(texts)
    ]
    inside += [op("llvm.mlir.addressof", global_name=f"@{name}") for name in used]
    for value in values:
        made = op("llvm.mlir.constant", value=SimpleNamespace(value=value))
        if value is None:
            made = op("llvm.load")
        for field, stored in ((2, made), (3, number)):
            place = op("llvm.getelementptr", elem_type=CONFIG, rawConstantIndices=[0, field])
            inside.append(op("llvm.store", result(stored), result(place)))
    return op("builtin.module", inside=[op("llvm.func", inside=inside or [op("llvm.return")])])


@pytest.mark.parametrize(
    ("values", "found"),
    [((3072,), 3072), ((3072, 3072), 3072), ((), None), ((None,), None), ((1, 2), None)],
)
def test_shared_memory_is_known_where_it_is_one_constant(values: Any, found: int | None) -> None:
    assert dynamic_shared_memory(host_code(*values)) == found


def test_too_little_shared_memory_shows_in_a_warning_that_host_code_prints() -> None:
    texts = ("hello", "\\0AError: shared memory usage in '@kernels::@k' may exceed available")
    assert lacks_shared_memory(host_code(texts=texts, used=("text_1",)))
    assert not lacks_shared_memory(host_code(texts=texts, used=("text_0",)))
    assert not lacks_shared_memory(host_code(texts=texts[:1], used=("text_0",)))
