"""Modules, functions, blocks and directives; and PTX that cannot be read."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from random import Random

import pytest

from flexfa4.emulator.ptx import Function, parse
from flexfa4.emulator.ptx.errors import (
    AddressSizeError,
    DirectiveError,
    DuplicateError,
    HeaderError,
    MissingMarkError,
    PragmaError,
    PtxError,
    SyntaxMistakeError,
    TargetError,
    TruncatedError,
    UndeclaredError,
    UndefinedFunctionError,
    UndefinedLabelError,
    VersionError,
)
from flexfa4.emulator.ptx.program import (
    Arguments,
    FunctionAddress,
    Guard,
    SourceLine,
    Target,
    Targets,
)
from flexfa4.emulator.ptx.scanner import scan, source_of
from tests.kernel_texts import SOFTMAX, kernel_text, read_kernel

HEADER = ".version 8.8\n.target sm_100a\n.address_size 64\n"


def target_of(function: Function, index: int) -> int:
    (target,) = function.instructions[index].operands
    assert isinstance(target, Target)
    return target.index


# ---- modules and functions


def test_a_module_tells_its_version_target_and_kernels() -> None:
    module = parse(kernel_text("ret;"))
    assert (module.version, module.target, list(module.kernels)) == ((8, 8), "sm_100a", ["kernel"])
    assert set(module.variables) == {"dynamic", "barriers", "counter", "table"}


def test_parameters_lie_one_behind_the_other() -> None:
    parameters = ".param .b8 a, .param .u64 .ptr .global .align 16 b, .param .align 64 .b8 c[128]"
    kernel = parse(HEADER + f".entry k({parameters}) {{ret;}}").kernel()
    places = [(p.name, p.offset, p.size, p.align, p.space) for p in kernel.parameters]
    assert places == [
        ("a", 0, 1, 1, "param"),
        ("b", 8, 8, 8, "param"),
        ("c", 64, 128, 64, "param"),
    ]
    assert kernel.parameter_size == 192


def test_performance_directives_are_limits() -> None:
    kernel = parse(
        HEADER + ".visible .entry k() .reqntid 128, 1, 1 .minnctapersm 1 .explicitcluster"
        " .reqnctapercluster 2 {ret;}"
    ).kernel()
    assert kernel.limits == {
        "reqntid": (128, 1, 1),
        "minnctapersm": (1,),
        "explicitcluster": (),
        "reqnctapercluster": (2,),
    }


def test_several_kernels_share_the_modules_variables() -> None:
    module = parse(HEADER + ".global .b32 x; .entry a() {ret;} .entry b() {ret; ret;}")
    assert [len(k.instructions) for k in module.kernels.values()] == [1, 2]


def test_functions_are_called_with_variables() -> None:
    module = parse(
        HEADER
        + """
        .func (.param .b32 result) twice(.param .b32 value)
        { .reg .b32 %r<3>; ld.param.b32 %r1, [value]; add.s32 %r2, %r1, %r1;
          st.param.b32 [result], %r2; ret; }
        .entry k()
        { .reg .b32 %r<3>;
          { // callseq 0, 0
          .param .b32 in; .param .b32 out;
          st.param.b32 [in], 5;
          call.uni (out), twice, (in);
          ld.param.b32 %r1, [out];
          } ret; }
        """
    )
    call = module.kernel().instructions[1]
    assert call.operand("function") == FunctionAddress("twice")
    arguments, returns = call.operand("arguments"), call.operand("returns")
    assert isinstance(arguments, Arguments) and isinstance(returns, Arguments)
    assert [v.name for v in (*arguments.variables, *returns.variables)] == ["in", "out"]
    assert [p.space for p in module.functions["twice"].parameters] == ["call"]


def test_functions_of_the_device_need_no_code() -> None:
    declared = ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);"
    code = "{.param .b64 p; .param .b32 r; call.uni (r), vprintf, (p, p);}"
    assert parse(HEADER + declared + f".entry k() {{{code}}}").functions["vprintf"].entry is False
    for declared in ("", ".extern .func other();"):
        with pytest.raises(UndefinedFunctionError, match="`other` is called"):
            parse(HEADER + declared + ".entry k() {call.uni other;}")


def test_the_code_of_a_function_may_follow_its_call() -> None:
    text = ".func f(); .entry k() {call.uni f; ret;} .func f() {ret;} .func f();"
    assert len(parse(HEADER + text).functions["f"].instructions) == 1


# ---- blocks, labels, guards


def test_labels_are_the_index_of_what_follows() -> None:
    function = read_kernel("TOP: ret;\nbra.uni END;\n@%p1 bra TOP;\nEND:")
    assert (target_of(function, 1), target_of(function, 2)) == (3, 0)
    assert function.labels == {"TOP": 0, "END": 3}


WAIT = """
    // begin inline asm
    {
    .reg .pred       P1;
    LAB_WAIT:
    mbarrier.try_wait.parity.shared.b64 P1, [%r1], 0, 10000000;
    @P1 bra.uni DONE;
    bra.uni     LAB_WAIT;
    DONE:
    }
    // end inline asm
"""


def test_repeated_blocks_have_their_own_registers_and_labels() -> None:
    function = read_kernel(WAIT + WAIT + "ret;")
    assert [target_of(function, index) for index in (1, 2, 4, 5)] == [3, 0, 6, 3]
    first, second = function.instructions[0], function.instructions[3]
    assert first.operand("done") != second.operand("done")
    assert function.banks[1] == 2
    assert [index for name, index in function.labels.items() if "DONE" in name] == [3, 6]


def test_a_branch_may_leave_its_block() -> None:
    function = read_kernel("{ { @!%p1 bra AFTER; } ret; }\nAFTER: exit;")
    assert target_of(function, 0) == 2
    assert function.instructions[0].guard == Guard(function.registers[0], negated=True)


def test_a_branch_does_not_enter_a_block() -> None:
    with pytest.raises(UndefinedLabelError, match="no label `INSIDE`"):
        read_kernel("bra INSIDE;\n{ INSIDE: ret; }")


def test_an_index_chooses_from_a_list_of_labels() -> None:
    function = read_kernel("list: .branchtargets A, B;\nbrx.idx %r1, list;\nA: ret;\nB: exit;")
    targets = function.instructions[0].operand("targets")
    assert targets == Targets("list", (Target("A", 1), Target("B", 2)))


def test_empty_statements_are_nothing() -> None:
    assert len(read_kernel(";; { ; } ret;;").instructions) == 1


# ---- debugging information


def test_instructions_know_their_line_and_that_of_the_source() -> None:
    text = kernel_text(
        "ret;\n.loc 1 12 5\nret;\n.loc 1 7 3, function_name $L__info0, inlined_at 1 12 5\nret;"
    )
    module = parse(text + '.file 1 "kernel.py", 123, 456\n')
    assert module.files == {1: "kernel.py"}
    first, second, third = module.kernel().instructions
    assert (first.source, second.source, third.source) == (
        None,
        SourceLine(1, 12, 5),
        SourceLine(1, 7, 3),
    )
    lines = text.splitlines()
    assert [lines[i.line - 1] for i in (first, second, third)] == ["ret;"] * 3


def test_sections_and_known_pragmas_are_stepped_over() -> None:
    text = kernel_text('.pragma "nounroll";\n.pragma "used_bytes_mask 0xfff";\nret;')
    section = ".section .debug_str\n{\n$L__info0:\n.b8 107,0\n}\n"
    assert len(parse(text + section).kernel().instructions) == 1


# ---- what is read stays as it is


def test_a_module_cannot_be_changed() -> None:
    module = parse(kernel_text("ret;"))
    kernel = module.kernel()
    for thing, field in ((module, "target"), (kernel, "name"), (kernel.instructions[0], "line")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(thing, field, None)


# ---- texts of compilers


def test_a_kernel_of_cute_dsl_is_read() -> None:
    module = parse(SOFTMAX.read_text(encoding="utf-8"), target="sm_100a")
    kernel = module.kernel("softmax_rows")
    opcodes = [instruction.operation.text for instruction in kernel.instructions]
    assert len(opcodes) == 47
    assert opcodes.count("shfl.sync.bfly.b32") == 10
    assert opcodes[-1] == "ret"
    branch = opcodes.index("bra")
    assert opcodes[target_of(kernel, branch)] == "bar.sync"
    assert kernel.limits == {"reqntid": (64, 1, 1)}
    assert module.variables["__dynamic_shmem__0"].size is None


def test_five_thousand_instructions_are_read_in_half_a_second() -> None:
    line = "mad.lo.s32 %r1, %r2, 5, %r3;\nld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r8+16];\n"
    text = kernel_text(line * 2500)
    taken = []
    for _ in range(3):  # on a busy machine one may be slow
        started = time.thread_time()
        assert len(parse(text).kernel().instructions) == 5000
        taken.append(time.thread_time() - started)
        if taken[-1] < 0.5:
            break
    assert min(taken) < 0.5


# ---- texts that cannot be read

MISTAKES: list[tuple[str, type[PtxError], str]] = [
    ("", HeaderError, "no .version"),
    ("__global__ void k(float* x) {}\n", HeaderError, "not CUDA C\\+\\+"),
    (".target sm_100a\n.entry k() {ret;}", HeaderError, "no .version"),
    (".version 8.8\n.entry k() {ret;}", HeaderError, "no .target"),
    (HEADER.replace(".address_size 64", ""), HeaderError, "no .address_size"),
    (HEADER.replace("8.8", "8.8e3"), VersionError, "PTX 8.8e3"),
    (HEADER.replace("8.8", "10.1"), VersionError, "the text is PTX 10.1"),
    (HEADER.replace("8.8", "7.8"), VersionError, "PTX versions 8.0 up to"),
    (HEADER.replace("100a", "80"), TargetError, "the text is for sm_80"),
    (HEADER.replace("64", "32"), AddressSizeError, "addresses of 32 bits"),
    (HEADER + ".tex .u32 t;", DirectiveError, "`.tex` is no directive that can stand outside"),
    (HEADER + ".entry k() .maxsmem 5 {ret;}", DirectiveError, "between a function's name"),
    (HEADER + ".entry k() {.align 4;}", DirectiveError, "in the code of a function"),
    (HEADER + '.entry k() {.pragma "fast";}', PragmaError, "the pragma 'fast' is not known"),
    (HEADER + ".entry k() {ret;", TruncatedError, "ends inside a function"),
    (HEADER + ".entry k() {add.s32", TruncatedError, "ends inside an instruction"),
    (HEADER + ".entry k(.param .b32", TruncatedError, "ends inside a declaration"),
    (HEADER + ".section .debug {", TruncatedError, "ends inside a section"),
    (HEADER + "ret;", SyntaxMistakeError, "`ret` cannot stand here"),
    (HEADER + ".entry k() {ret}", SyntaxMistakeError, "`}` cannot stand here"),
    (HEADER + ".entry k() {+}", SyntaxMistakeError, "an instruction, a label, a directive"),
    (HEADER + ".entry k() {.reg .tf32 a;}", SyntaxMistakeError, "a type of registers"),
    (HEADER + ".entry k() {.reg .b32 a;\n.reg .f32 a;}", DuplicateError, "first in line 4"),
    (HEADER + ".entry k() {A: ret;\nA: ret;}", DuplicateError, "the label `A`"),
    (HEADER + ".global .b8 x; .global .b8 x;", DuplicateError, "the variable `x`"),
    (HEADER + ".entry k() {ret;}\n.entry k() {ret;}", DuplicateError, "the function `k`"),
    (HEADER + ".entry k() {bra AWAY;}", UndefinedLabelError, "no label `AWAY`"),
    (HEADER + ".entry k() {{.reg .b32 a;} mov.b32 a, 0;}", UndeclaredError, "`a`"),
]


@pytest.mark.parametrize(
    ("code", "before"),
    [
        (".reg .b32 a;\nmov.b32 a, 0\nadd.u32 a, a, 1;\nret;", "0"),
        (".reg .b32 a;\nst.shared.u32 [a]\n, a; ret\n}", "ret"),
        ("bra END\nEND: ret;", "END"),
        ("bar.sync 0; ret\nadd.u32 a, a, 1;", "ret"),
        (".reg .b32 a\nmov.b32 a, 0;", "a"),
    ],
)
def test_a_missing_semicolon_is_told_where_it_is_missing(code: str, before: str) -> None:
    text = HEADER + ".entry k() {\n" + code + "\n}"
    with pytest.raises(MissingMarkError, match=f"is missing behind `{before}`") as caught:
        parse(text)
    where = caught.value.where
    assert where is not None and "`;`" in str(caught.value)
    line = text.splitlines()[where.line - 1]
    assert line[: where.column].endswith(before) and where.column == len(line)


@pytest.mark.parametrize(("text", "error", "message"), MISTAKES)
def test_a_wrong_text_is_an_error(text: str, error: type[PtxError], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        parse(text)
    assert caught.value.where is not None


def test_a_text_for_another_architecture_than_wanted_is_refused() -> None:
    with pytest.raises(TargetError, match="CUTE_DSL_ARCH=sm_90a"):
        parse(kernel_text("ret;", target="sm_103a"), target="sm_90a")
    assert parse(kernel_text("ret;", target="sm_103a"), target="sm_103a").target == "sm_103a"


@pytest.mark.parametrize(
    ("given", "near"),
    [("80", "90a"), ("90", "90a"), ("100f", "100a"), ("103", "103a"), ("120a", "103a")],
)
def test_the_architecture_to_compile_for_is_the_nearest_one(given: str, near: str) -> None:
    with pytest.raises(TargetError, match=f"allowed: sm_90a, sm_100a, sm_103a(.|\n)*=sm_{near}\\b"):
        parse(HEADER.replace("100a", given))


def test_blocks_may_be_nested_deeply() -> None:
    assert len(read_kernel("{" * 5000 + "ret;" + "}" * 5000).instructions) == 1


def test_any_change_of_a_text_is_an_error_or_a_module() -> None:
    random = Random(0)
    text = kernel_text(WAIT + "bar.sync 0, 64;\nmov.b64 {%r1, _}, %d1;\nret;")
    tokens = [token.text for token in scan(source_of(text))]
    for _ in range(300):
        changed = list(tokens)
        for _ in range(random.randint(1, 3)):
            changed[random.randrange(len(changed))] = random.choice([*tokens, "", "0", "-", "{"])
        with contextlib.suppress(PtxError):
            assert parse(" ".join(changed)).target == "sm_100a"


def test_any_cut_of_a_text_is_an_error_or_a_module() -> None:
    text = kernel_text(WAIT + "bar.sync 0, 64;\nret;")
    whole = len(parse(text).kernel().instructions)
    for end in range(0, len(text.rstrip()), 3):
        try:
            module = parse(text[:end])
        except PtxError:
            continue
        assert whole > sum(len(k.instructions) for k in module.kernels.values())
