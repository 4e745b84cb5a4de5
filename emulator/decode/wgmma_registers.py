"""wgmma.fence: products read registers only behind a fence that stands behind their computation.

A product reads its accumulator, and A where that is in registers, beside the instructions that
follow; ``wgmma.fence`` orders it behind what came before.  PTX ISA, "wgmma.fence": one is needed
between an access to a register by other instructions and a product that uses it.

What is found here is a way through the code from an instruction that computes or loads a register
to a product that uses it, without a fence.  Correct kernels ask for less than the PTX ISA does:

* Compilers put copies and constants behind the fence (NVIDIA's GEMMs), since ptxas gives them no
  instruction of their own.  A copy stands for what it copies, and a constant needs no fence.
* NVIDIA's fp8 GEMM reads an accumulator, and overwrites it by the next product without a fence.  So
  only writes count.

What this module deliberately does not do: follow conditions: a way counts that no thread takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from flexfa4.emulator.decode.flow import Effect, as_bits, blocks_of, registers_of
from flexfa4.emulator.failures.program import UnfencedProductError
from flexfa4.emulator.ptx.program import Function, Instruction, Module, Register

_PRODUCT = "wgmma.mma_async"
_FENCE = "wgmma.fence"
_MOVE = "mov"


def check_fences(function: Function, module: Module) -> None:
    """Check the products of a function.

    Raises:
        UnfencedProductError: one uses a register that was computed, with no fence between.
    """
    if not any(i.operation.name.startswith(_PRODUCT) for i in function.instructions):
        return
    numbers = {register: number for number, register in enumerate(function.registers)}
    code = [Effect.of(instruction, numbers) for instruction in function.instructions]
    steps = [
        _Step.of(instruction, effect, numbers)
        for instruction, effect in zip(function.instructions, code, strict=True)
    ]
    blocks = blocks_of(code)
    unfenced = [0] * len(blocks)  # registers that are, at the start of each block
    waiting = list(range(len(blocks)))
    while waiting:
        number = waiting.pop()
        block, found = blocks[number], unfenced[number]
        for index in range(block.start, block.stop):
            step = steps[index]
            if used := step.used & found:
                register = function.registers[(used & -used).bit_length() - 1]
                raise UnfencedProductError(
                    where=module.place(function.instructions[index].line), register=register.name
                )
            found = step.behind(found)
        for successor in block.successors:
            if found & ~unfenced[successor]:
                unfenced[successor] |= found
                waiting.append(successor)


@dataclass(frozen=True, slots=True)
class _Step:
    """What an instruction means for the registers that no fence orders; sets of them are bits."""

    used: int = 0  # by a product
    computed: int = 0
    copied: tuple[int, int] = (0, 0)  # from, to
    replaced: int = 0  # by copies, in every thread
    fences: bool = False

    @classmethod
    def of(cls, instruction: Instruction, effect: Effect, numbers: dict[Register, int]) -> _Step:
        operation = instruction.operation
        if operation.name.startswith(_FENCE):
            return cls(fences=True)

        def named(roles: tuple[str, ...]) -> int:
            pairs = zip(operation.roles, instruction.operands, strict=True)
            found = (r for role, o in pairs if role.name in roles for r in registers_of(o))
            return as_bits(tuple(numbers[register] for register in found))

        if operation.name.startswith(_PRODUCT):
            return cls(used=named(("a", "d")))
        writes = as_bits(effect.writes)
        if operation.name == _MOVE:
            return cls(copied=(named(("a",)), writes), replaced=writes if effect.certain else 0)
        return cls(computed=writes)

    def behind(self, unfenced: int) -> int:
        """Return the registers that are not fenced behind it, of those before it."""
        if self.fences:
            return 0
        read, written = self.copied
        kept = unfenced & ~self.replaced
        return kept | (written if unfenced & read else 0) | self.computed
