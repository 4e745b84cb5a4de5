// From the bytes of a decoded kernel to a `Program` whose operations are bound.
//
// The bytes come from `flexfa4/emulator/decode/encoding.py`, which says what stands where; both
// sides name the version of that order.
#include <string>

#include "machine/failure.hpp"
#include "program/program.hpp"
#include "program/reader.hpp"

namespace emu {

namespace {

constexpr uint32_t MAGIC = 0x5846'4D45;  // "EMFX"
constexpr uint32_t VERSION = 1;

Operation::Modifier read_modifier(Reader& in) {
  Operation::Modifier modifier;
  modifier.slot = in.text();
  modifier.value = in.text();
  modifier.hint = in.u8() != 0;
  modifier.in_roles = in.u8() != 0;
  return modifier;
}

Role read_role(Reader& in) {
  Role role;
  role.name = in.text();
  role.type.name = in.text();
  role.type.kind = Kind(in.u8());
  role.type.bits = in.u32();
  role.count = in.u32();
  role.space = in.text();
  role.rank = in.u32();
  return role;
}

Operand read_operand(Reader& in) {
  Operand operand;
  operand.is = Operand::Is(in.u8());
  operand.negated = in.u8() != 0;
  operand.bits = in.u8();
  operand.place = in.u32();
  operand.count = in.u32();
  operand.size = in.u32();
  operand.value = int64_t(in.u64());
  operand.elements = in.u32();
  return operand;
}

Instruction read_instruction(Reader& in) {
  Instruction instruction;
  instruction.operation_index = in.u32();
  instruction.operands = in.u32();
  instruction.guard = in.u32();
  instruction.guard_negated = in.u8() != 0;
  instruction.line = in.u32();
  return instruction;
}

Function read_function(Reader& in) {
  Function function;
  function.name = in.text();
  function.host = in.u8() != 0;
  function.first = in.u32();
  function.count = in.u32();
  in.list(function.parameters, read_operand);
  in.list(function.returns, read_operand);
  return function;
}

Initial read_initial(Reader& in) {
  Initial initial;
  initial.is = Initial::Is(in.u8());
  initial.bits = in.u8();
  initial.place = in.u32();
  initial.value = in.u64();
  initial.name = in.text();
  return initial;
}

// Pick the code of each operation, and give it to the operation's instructions.
void bind_all(Program& program) {
  std::vector<Binding> bindings(program.operations.size());
  for (Instruction& instruction : program.instructions) {
    const uint32_t index = instruction.operation_index;
    const Operation& operation = program.operations.at(index);
    if (!bindings[index].execute) {
      try {
        bindings[index] = bind(operation);
      } catch (Failure& failure) {
        failure.line = instruction.line;  // the first that has it
        throw;
      }
    }
    instruction.operation = &operation;
    instruction.execute = bindings[index].execute;
    instruction.synchronises = bindings[index].synchronises;
    instruction.detail = bindings[index].detail;
  }
}

}  // namespace

Operation read_operation(Reader& in) {
  Operation operation;
  operation.text = in.text();
  operation.name = in.text();
  in.list(operation.modifiers, read_modifier);
  in.list(operation.roles, read_role);
  return operation;
}

Program load(const std::byte* data, size_t size) {
  Reader in(data, size);
  if (in.u32() != MAGIC || in.u32() != VERSION) {
    throw Failure("UnreadableProgramError").with("detail", "it is of another version");
  }
  Program program;
  program.kernel = in.text();
  program.target = in.text();
  program.register_bytes = in.u32();
  program.parameter_bytes = in.u32();
  program.call_bytes = in.u32();
  program.local_bytes = in.u32();
  program.shared_bytes = in.u32();
  program.global.bytes = in.bytes();
  program.constant.bytes = in.bytes();
  in.list(program.operations, read_operation);
  in.list(program.operands, read_operand);
  in.list(program.instructions, read_instruction);
  in.list(program.functions, read_function);
  in.list(program.initials, read_initial);
  if (!in.at_end()) throw Failure("UnreadableProgramError").with("detail", "bytes are left over");
  bind_all(program);
  return program;
}

}  // namespace emu
