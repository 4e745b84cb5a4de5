"""PTX text to a `Module`: directives, functions, blocks and instructions.

One function for each thing that the grammar names; each reads what its name says from the cursor
and stops behind it.  Every directive has a row in one of three tables: those of a module, those
between a kernel's name and its code, and those of the code.

What this module deliberately does not do: know instructions (`flexfa4.emulator.ptx.table`), or give
operands their meaning (`flexfa4.emulator.ptx.binding`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

from flexfa4.emulator.errors import Place
from flexfa4.emulator.ptx.architectures import ALL, NEWEST, OLDEST
from flexfa4.emulator.ptx.binding import Binder
from flexfa4.emulator.ptx.declarations import SPACES, Layout, read_declaration
from flexfa4.emulator.ptx.errors import (
    AddressSizeError,
    DirectiveError,
    DuplicateError,
    HeaderError,
    PragmaError,
    TargetError,
    UndefinedFunctionError,
    VersionError,
)
from flexfa4.emulator.ptx.operands import read_integer, read_operands
from flexfa4.emulator.ptx.predefined import HOST_FUNCTIONS, PRAGMAS
from flexfa4.emulator.ptx.program import (
    Function,
    Guard,
    Instruction,
    Module,
    Operand,
    SourceLine,
    Target,
    Targets,
    Variable,
)
from flexfa4.emulator.ptx.scanner import DIRECTIVE, END, NUMBER, STRING, WORD, Cursor, Token
from flexfa4.emulator.ptx.scopes import Block, Registers
from flexfa4.emulator.ptx.types import REGISTER_TYPES, TYPES

_LINKING = (".visible", ".extern", ".weak", ".common")


def _generation(target: str) -> int:
    """Return the number in the name of an architecture."""
    return int("".join(filter(str.isdecimal, target)) or 0)


def _nearest_target(target: str) -> str:
    """Return the architecture that is emulated and nearest to another one."""
    return min(ALL, key=lambda known: abs(_generation(known) - _generation(target)))


def parse(text: str, target: str | None = None) -> Module:
    """Read a PTX module.

    Args:
        text: PTX of version 8 or 9, for one of the architectures of the table of instructions.
        target: the architecture that the text has to be for; any without.

    Returns:
        The module, all names resolved.

    Raises:
        PtxError: the text cannot be read; the message quotes the line.
    """
    if ".version" not in text:  # before its characters are looked at: it may be anything
        first = text.partition("\n")[0]
        raise HeaderError(where=Place(1, first), directive=".version")
    return _ModuleReader(Cursor(text), target).read()


class _ModuleReader:
    """Reads a module; its attributes are what has been read so far."""

    def __init__(self, cursor: Cursor, wanted: str | None) -> None:
        self.cursor = cursor
        self.wanted = wanted
        self.version: tuple[int, int] | None = None
        self.target: str | None = None
        self.addressed = False  # whether .address_size was there
        self.block = Block()
        self.layout = Layout()
        self.variables: dict[str, Variable] = {}
        self.functions: dict[str, Function] = {}
        self.declared: set[str] = set()  # names of functions
        self.bodies: dict[str, int] = {}  # the line of each function that has code
        self.calls: list[Token] = []  # functions that are called; their code may follow
        self.files: dict[int, str] = {}

    def read(self) -> Module:
        while self.cursor.token.kind != END:
            self._read_directive()
        self._check_header(self.cursor.token)
        assert self.version is not None and self.target is not None
        for call in self.calls:
            if call.text not in self.bodies and call.text not in HOST_FUNCTIONS:
                raise UndefinedFunctionError(where=self.cursor.place(call), name=call.text)
        return Module(
            version=self.version,
            target=self.target,
            kernels={name: f for name, f in self.functions.items() if f.entry},
            functions={name: f for name, f in self.functions.items() if not f.entry},
            variables=self.variables,
            sizes=dict(self.layout.sizes),
            dynamic_shared=self.layout.dynamic_shared,
            files=self.files,
            text=self.cursor.source.text,
        )

    def _read_directive(self) -> None:
        token = self.cursor.expect_kind(DIRECTIVE, "a module", "a directive")
        header = _HEADER.get(token.text)
        if header is not None:
            header(self, token)
            return
        self._check_header(token)
        extern = False
        while token.text in _LINKING:
            extern = extern or token.text == ".extern"
            token = self.cursor.expect_kind(DIRECTIVE, "a declaration", "a directive")
        if token.text in (".entry", ".func"):
            self._read_function(entry=token.text == ".entry")
        elif token.text[1:] in SPACES[:3]:
            self._read_variable(token.text[1:], extern)
        else:
            raise DirectiveError(
                where=self.cursor.place(token),
                directive=token.text,
                place="outside of functions",
                names=", ".join([*_HEADER, *_LINKING, ".entry", ".func", ".global", ".const"])
                + " and .shared",
            )

    # ---- the header

    def _check_header(self, token: Token) -> None:
        """Refuse a declaration, or the end of the text, before the header is whole."""
        for directive, there in (
            (".version", self.version is not None),
            (".target", self.target is not None),
            (".address_size", self.addressed),
        ):
            if not there:
                raise HeaderError(where=self.cursor.place(token), directive=directive)

    def _read_version(self, token: Token) -> None:
        number = self.cursor.expect_kind(NUMBER, "the version", "a version such as 8.8")
        digits = number.text.split(".")
        self.version = (0, 0)
        if len(digits) == 2 and all(part.isdigit() and len(part) < 4 for part in digits):
            self.version = (int(digits[0]), int(digits[1]))
        if not OLDEST <= self.version < NEWEST:
            raise VersionError(
                where=self.cursor.place(number),
                version=number.text,
                oldest="{}.{}".format(*OLDEST),
                newest="{}.{}".format(*NEWEST),
            )

    def _read_target(self, token: Token) -> None:
        name = self.cursor.expect_kind(WORD, "the target", "an architecture such as sm_100a")
        wanted = ALL if self.wanted is None else {self.wanted}
        if name.text not in wanted & ALL:
            one = self.wanted is not None and self.wanted in ALL
            raise TargetError(
                where=self.cursor.place(name),
                target=name.text,
                targets=", ".join(sorted(wanted if one else ALL, key=_generation)),
                example=self.wanted if one else _nearest_target(name.text),
            )
        self.target = name.text
        while self.cursor.accept(","):  # `debug`, `texmode_independent`
            option = self.cursor.expect_kind(WORD, "the target", "an option")
            if option.text != "debug":
                raise self.cursor.mistake("the target", "the option debug")

    def _read_address_size(self, token: Token) -> None:
        self.addressed = True
        number = self.cursor.expect_kind(NUMBER, "the address size", "64")
        if number.text != "64":
            raise AddressSizeError(where=self.cursor.place(number), size=number.text)

    def _read_file(self, token: Token) -> None:
        number = read_integer(self.cursor)
        name = self.cursor.expect_kind(STRING, "the name of a file", "a string")
        while self.cursor.accept(","):  # its time and its size
            read_integer(self.cursor)
        self.files[number] = name.text[1:-1]

    def _read_section(self, token: Token) -> None:
        """Step over debugging information: the emulator takes lines from ``.loc``."""
        self.cursor.expect_kind(DIRECTIVE, "a section", "the name of the section")
        self.cursor.expect("{", "a section")
        while not self.cursor.accept("}"):
            if self.cursor.token.kind == END:
                raise self.cursor.mistake("a section", "`}`")
            self.cursor.advance()

    def _read_pragma(self, token: Token) -> None:
        read_pragma(self.cursor)

    # ---- declarations

    def _read_variable(self, space: str, extern: bool) -> None:
        declared = read_declaration(self.cursor, unsized=extern and space == "shared")
        self.cursor.expect(";", "a declaration")
        variable = declared.variable(space, self.layout)
        self.block.declare_variable(variable, self.cursor.place(declared.token))
        self.variables[variable.name] = variable

    def _read_function(self, entry: bool) -> None:
        assert self.target is not None
        frame = Layout()
        block = Block(self.block, Registers())
        space = "param" if entry else "call"
        returns = () if entry else self._read_parameters(space, block, frame)
        name = self.cursor.expect_kind(WORD, "a function", "the name of the function")
        parameters = self._read_parameters(space, block, frame)
        limits = self._read_limits()
        self.declared.add(name.text)
        code = _CodeReader(self, block, frame)
        if not self.cursor.accept(";"):
            self._define(name)
            code.read()
        elif name.text in self.functions:
            return  # declared again
        self.functions[name.text] = Function(
            name=name.text,
            entry=entry,
            parameters=parameters,
            returns=returns,
            instructions=tuple(code.instructions),
            labels=code.labels,
            registers=tuple(code.registers.all),
            banks=dict(code.registers.banks),
            variables=tuple(code.variables),
            local_size=frame.sizes["local"],
            limits=limits,
            line=self.cursor.line(name),
        )

    def _define(self, name: Token) -> None:
        """Note that a function has code, which it may have once."""
        if name.text in self.bodies:
            where, first = self.cursor.place(name), self.bodies[name.text]
            raise DuplicateError(where=where, what="function", name=name.text, first=first)
        self.bodies[name.text] = self.cursor.line(name)

    def _read_parameters(self, space: str, block: Block, frame: Layout) -> tuple[Variable, ...]:
        parameters: list[Variable] = []
        if not self.cursor.accept("("):
            return ()
        while not self.cursor.accept(")"):
            if parameters:
                self.cursor.expect(",", "a list of parameters")
            self.cursor.expect(".param", "a list of parameters")
            declared = read_declaration(self.cursor)
            variable = declared.variable(space, frame)
            block.declare_variable(variable, self.cursor.place(declared.token))
            parameters.append(variable)
        return tuple(parameters)

    def _read_limits(self) -> dict[str, tuple[int, ...]]:
        limits: dict[str, tuple[int, ...]] = {}
        while self.cursor.token.kind == DIRECTIVE:
            token = self.cursor.advance()
            if token.text == ".pragma":
                read_pragma(self.cursor)
                continue
            if token.text not in _LIMITS:
                raise DirectiveError(
                    where=self.cursor.place(token),
                    directive=token.text,
                    place="between a function's name and its code",
                    names=", ".join([*_LIMITS, ".pragma"]),
                )
            values = []
            while self.cursor.token.kind == NUMBER:
                values.append(read_integer(self.cursor))
                if not self.cursor.accept(","):
                    break
            limits[token.text[1:]] = tuple(values)
        return limits


_HEADER: dict[str, Callable[[_ModuleReader, Token], None]] = {
    ".version": _ModuleReader._read_version,
    ".target": _ModuleReader._read_target,
    ".address_size": _ModuleReader._read_address_size,
    ".file": _ModuleReader._read_file,
    ".section": _ModuleReader._read_section,
    ".pragma": _ModuleReader._read_pragma,
}

_LIMITS = (
    ".maxntid",
    ".reqntid",
    ".minnctapersm",
    ".maxnctapersm",
    ".maxnreg",
    ".noreturn",
    ".reqnctapercluster",
    ".maxclusterrank",
    ".explicitcluster",
    ".blocksareclusters",
)


def read_pragma(cursor: Cursor) -> None:
    """Read ``"nounroll";`` behind ``.pragma``: pragmas that are not known are refused."""
    while True:
        token = cursor.expect_kind(STRING, "a pragma", "a string")
        words = token.text[1:-1].split()
        if not words or words[0] not in PRAGMAS:
            raise PragmaError(
                where=cursor.place(token),
                pragma=token.text[1:-1],
                names=" and ".join(PRAGMAS),
            )
        if not cursor.accept(","):
            break
    cursor.expect(";", "a pragma")


@dataclass
class _CodeReader:
    """Reads the code of a function; its attributes are what has been read so far."""

    module: _ModuleReader
    block: Block
    frame: Layout
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    source: SourceLine | None = None
    # branches whose labels may follow: the instruction, its block, and the token of the name
    _branches: list[tuple[int, Block, Token]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cursor = self.module.cursor
        assert self.module.target is not None and self.block.registers is not None
        self.registers = self.block.registers
        names = self.module.declared
        self.binder = Binder(self.cursor, self.module.target, names, self.module.calls)

    def read(self) -> None:
        """Read a function's code, in braces, and find the labels of its branches."""
        self.cursor.expect("{", "a function")
        self._read_blocks(self.block)
        for index, block, token in self._branches:
            instruction = self.instructions[index]
            operands = tuple(
                self._resolved(operand, token, block) if _is_branch(operand) else operand
                for operand in instruction.operands
            )
            self.instructions[index] = dataclasses.replace(instruction, operands=operands)

    def _resolved(self, operand: Operand | None, token: Token, block: Block) -> Operand:
        """Return a target with the index of its label, in the block of its branch."""
        if not isinstance(operand, Targets):
            return Target(token.text, block.label(token.text, self.cursor.place(token)))
        labels = block.targets(token.text, self.cursor.place(token))
        targets = [Target(t.text, block.label(t.text, self.cursor.place(t))) for t in labels]
        return Targets(token.text, tuple(targets))

    def _read_blocks(self, outermost: Block) -> None:
        """Read statements up to the brace that closes the outermost block, and that too."""
        cursor = self.cursor
        blocks = [outermost]
        while blocks:
            token = cursor.token
            if token.kind == WORD:
                self._read_labelled(blocks[-1])
            elif token.text == "@":
                self._read_guarded(blocks[-1])
            elif token.kind == DIRECTIVE:
                self._read_directive(blocks[-1])
            elif cursor.accept("{"):
                blocks.append(blocks[-1].inner())
            elif cursor.accept("}"):
                for name, index, line in blocks.pop().labels():
                    self.labels[f"{name}@{line}" if name in self.labels else name] = index
            elif not cursor.accept(";"):  # an empty statement, which inline assembly leaves
                raise cursor.mistake("a function", "an instruction, a label, a directive or `}`")

    def _read_labelled(self, block: Block) -> None:
        cursor = self.cursor
        if cursor.tokens[cursor.position + 1].text == ":":
            label = cursor.advance()
            cursor.advance()
            if cursor.accept(".branchtargets"):
                self._read_targets(label, block)
                return
            block.declare_label(label.text, len(self.instructions), cursor.place(label))
            return
        self._read_instruction(block, None)

    def _read_targets(self, name: Token, block: Block) -> None:
        """Read the labels of ``name: .branchtargets first, second;`` behind the directive."""
        labels = []
        while True:
            labels.append(self.cursor.expect_kind(WORD, "a list of labels", "a label"))
            if not self.cursor.accept(","):
                break
        self.cursor.expect(";", "a list of labels")
        block.declare_targets(name.text, labels, self.cursor.place(name))

    def _read_guarded(self, block: Block) -> None:
        self.cursor.expect("@", "a guard")
        negated = self.cursor.accept("!")
        token = self.cursor.expect_kind(WORD, "a guard", "a predicate register")
        register = self.binder.guard_register(token, block)
        self._read_instruction(block, Guard(register, negated))

    def _read_instruction(self, block: Block, guard: Guard | None) -> None:
        cursor = self.cursor
        opcode = cursor.expect_kind(WORD, "an instruction", "an opcode")
        written = read_operands(cursor)
        operation, operands = self.binder.bind(opcode, written, block)
        for item, operand in zip(written, operands, strict=False):
            if _is_branch(operand):
                self._branches.append((len(self.instructions), block, item.token))
        line = cursor.line(opcode)
        self.instructions.append(Instruction(operation, operands, guard, line, self.source))

    # ---- directives of the code

    def _read_directive(self, block: Block) -> None:
        token = self.cursor.advance()
        if token.text == ".reg":
            self._read_registers(block)
        elif token.text == ".loc":
            self._read_location()
        elif token.text == ".pragma":
            read_pragma(self.cursor)
        elif token.text[1:] in SPACES:
            self._read_variable(token.text[1:], block)
        else:
            raise DirectiveError(
                where=self.cursor.place(token),
                directive=token.text,
                place="in the code of a function",
                names=".reg, .loc, .pragma and " + ", ".join(f".{space}" for space in SPACES),
            )

    def _read_registers(self, block: Block) -> None:
        cursor = self.cursor
        token = cursor.expect_kind(DIRECTIVE, "a declaration", "a type such as .b32")
        if token.text[1:] not in REGISTER_TYPES:
            cursor.position -= 1
            raise cursor.mistake("a declaration", "a type of registers such as .b32 or .pred")
        while True:
            name = cursor.expect_kind(WORD, "a declaration", "the name of a register")
            count = None
            if cursor.accept("<"):
                count = read_integer(cursor)
                cursor.expect(">", "a declaration")
            block.declare_register(name.text, TYPES[token.text[1:]], count, cursor.place(name))
            if not cursor.accept(","):
                break
        cursor.expect(";", "a declaration")

    def _read_variable(self, space: str, block: Block) -> None:
        declared = read_declaration(self.cursor)
        self.cursor.expect(";", "a declaration")
        space = "call" if space == "param" else space
        layout = self.frame if space in ("local", "call") else self.module.layout
        variable = declared.variable(space, layout)
        block.declare_variable(variable, self.cursor.place(declared.token))
        self.variables.append(variable)

    def _read_location(self) -> None:
        """Read ``.loc file line column`` and what may follow about inlined functions."""
        cursor = self.cursor
        file, line, column = (read_integer(cursor) for _ in range(3))
        self.source = SourceLine(file, line, column)
        while cursor.accept(","):
            word = cursor.expect_kind(WORD, "a location", "function_name or inlined_at")
            if word.text == "function_name":
                cursor.expect_kind(WORD, "a location", "a label")
                if cursor.token.text == "+":
                    read_integer(cursor)
            elif word.text == "inlined_at":
                for _ in range(3):
                    read_integer(cursor)
            else:
                cursor.position -= 1
                raise cursor.mistake("a location", "function_name or inlined_at")


def _is_branch(operand: Operand | None) -> bool:
    return isinstance(operand, (Target, Targets))
