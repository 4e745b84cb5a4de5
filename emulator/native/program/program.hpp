// A program: a kernel and the functions that it calls, decoded into flat arrays.
//
// Made by `load` from the bytes that `flexfa4.emulator.decode` writes.  Registers are byte offsets
// into a register file that each warp has: 32 lanes of a register lie side by side, of 2, 4, 8 or
// 16 bytes each; a predicate is one 32-bit mask.  Immediates and special registers that do not
// change are registers too, filled when a warp starts, so that code sees one kind of operand.
//
// Deliberately does not execute anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "program/operation.hpp"

namespace emu {

class Reader;

constexpr uint32_t NOWHERE = 0xFFFF'FFFF;

// An operand of an instruction.
struct Operand {
  enum class Is : uint8_t {
    Missing,    // an optional operand that is not there
    Register,   // a register, also for immediates and special registers
    Predicate,  // a predicate; `negated` says how it is read
    Sink,       // written to nowhere: `place` is a register that nobody reads
    Address,    // `place` is the register with the base, or NOWHERE; `value` is added
    Tensor,     // an address of a tensor map; elements are the coordinates
    Vector,     // `count` elements, `place` is the index of the first among Program::operands
    Number,     // `value`, known when the program is loaded
    Target,     // `value` is the index of an instruction
    Targets,    // `count` targets, `place` as for a vector
    Function,   // `value` is the index of a function
    Variables,  // `count` addresses of space call, `place` as for a vector
  };
  Is is = Is::Missing;
  bool negated = false;
  uint8_t bits = 0;     // size of the register, or of the register with the base
  uint32_t place = NOWHERE;
  uint32_t count = 0;   // of elements
  uint32_t size = 0;    // of a variable of space call, also behind an Address; else 0
  int64_t value = 0;
  uint32_t elements = 0;  // of a Tensor: the index of the first coordinate among the operands
};

struct Instruction {
  Execute execute = nullptr;
  const Operation* operation = nullptr;
  uint32_t operation_index = 0;
  uint32_t operands = 0;  // index of the first among Program::operands
  uint32_t guard = NOWHERE;
  bool guard_negated = false;
  bool synchronises = false;
  uint32_t detail = 0;  // what its code wanted to know of the operation, see `to_detail`
  uint32_t line = 0;    // of the PTX text
};

// A register that is filled when a warp starts.
struct Initial {
  // What fills it: a number; an address in a state space, to which the block or the launch adds
  // where that space lies; or a special register.
  enum class Is : uint8_t {
    Number,
    Shared,         // address of shared memory in state space shared
    SharedGeneric,  // the same as a generic address
    Global,         // address of a module's variable of space global (also generic)
    Const, ConstGeneric, Param, ParamGeneric, Local, LocalGeneric,
    Special,        // `name`, without "%"
  };
  Is is = Is::Number;
  uint8_t bits = 0;
  uint32_t place = 0;
  uint64_t value = 0;
  std::string name;
};

struct Function {
  std::string name;
  bool host = false;   // supplied by the run-time library: vprintf, __assertfail
  uint32_t first = 0;  // index of its first instruction
  uint32_t count = 0;
  std::vector<Operand> parameters, returns;  // of space call: `value` is the offset, `size` bytes
};

// The module's variables of a state space, as they are before the launch.
struct ModuleBytes {
  std::vector<std::byte> bytes;
};

struct Program {
  Program() = default;
  // Instructions point to operations, which move with their vector but would not be copied.
  Program(Program&&) = default;
  Program& operator=(Program&&) = default;

  std::string kernel;
  std::string target;  // "sm_100a"
  std::vector<Operation> operations;
  std::vector<Operand> operands;
  std::vector<Instruction> instructions;
  std::vector<Function> functions;  // the first is the kernel
  std::vector<Initial> initials;
  uint32_t register_bytes = 0;   // of the register file of a warp
  uint32_t parameter_bytes = 0;  // of the kernel's parameters
  uint32_t call_bytes = 0;       // of space call, for each thread
  uint32_t local_bytes = 0;      // of local memory, for each thread
  uint32_t shared_bytes = 0;     // of static shared memory, before the dynamic one
  ModuleBytes global, constant;

  const Instruction& at(uint32_t index) const { return instructions[index]; }
};

// Reads a program; throws Failure.
Program load(const std::byte* data, size_t size);
// Reads one operation.
Operation read_operation(Reader& in);

}  // namespace emu
