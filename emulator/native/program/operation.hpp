// An opcode with its modifiers, and how the core finds the code that executes it.
//
// Python reads opcodes by the table of instructions (`flexfa4.emulator.ptx.table`) and hands every
// distinct text over once, with the modifiers that stand in it and the types of its operands.  Each
// file that executes instructions registers a function that binds them: from the modifiers it picks
// the code to run.  A modifier that the function did not ask for, and that no slot calls a hint, is
// an error when the program is loaded: nothing is left aside by oversight.
//
// Deliberately does not know any instruction.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace emu {

class Step;

// What the bits of a type mean; the order is that of Python's `Kind`.
enum class Kind : uint8_t { Predicate, Bits, Integer, Float, Packed };

struct Type {
  std::string name;  // as PTX spells it, without the dot: "f32", "bf16x2", "pred"
  Kind kind = Kind::Bits;
  uint32_t bits = 0;

  bool is_signed() const { return kind == Kind::Integer && name.front() == 's'; }
  bool is(std::string_view other) const { return name == other; }
};

// An operand of an operation, see Python's `Role`.
struct Role {
  std::string name;   // "d", "a", "barrier"
  Type type;          // of the operand, or of each element of a vector; of no bits for others
  uint32_t count = 0; // elements of the vector that it has to be; 0 for a scalar
  std::string space;  // of an address: "generic", "global", "shared", "shared::cluster", ...
  uint32_t rank = 0;  // coordinates of a tensor map
};

class Operation {
 public:
  struct Modifier {
    std::string slot;   // the place in the row of the table: "rnd", "ftz"
    std::string value;  // what stands there: "rn", "ftz"
    bool hint = false;  // changes no result; the table of slots says why
    bool in_roles = false;  // names a type or a state space, which the roles say too
    mutable bool read = false;
  };

  std::string text;  // "add.rn.ftz.f32"
  std::string name;  // "add"
  std::vector<Modifier> modifiers;
  std::vector<Role> roles;

  // What stands in a slot, empty if nothing does.
  std::string_view get(std::string_view slot) const;
  bool has(std::string_view slot) const { return !get(slot).empty(); }
  // What stands in the first of these slots in which something does.
  std::string_view first_of(std::initializer_list<std::string_view> slots) const;
  // Slots whose modifiers leave the code no choice, or say what the operands say too: they count as
  // read.
  void implied(std::initializer_list<std::string_view> slots) const;

  // The position of an operand, which has to exist; -1 from `find` if it does not.
  int position(std::string_view role) const;
  int find(std::string_view role) const;
  // The type of an operand.  Types and state spaces are read through these, so that modifiers that
  // name a type or a space count as read.
  const Type& type(std::string_view role) const { return roles[position(role)].type; }
  const std::string& space(std::string_view role) const { return roles[position(role)].space; }

  // Throws UnreadModifierError for a modifier that nobody asked for.
  void check_all_read() const;
};

// What became of an instruction.
enum class Flow : uint8_t {
  Next,   // executed; go on behind it
  Yield,  // executed; another warp may be run first
  Jump,   // executed; it has set where to go on
  Wait,   // not executed: `Step::wait_for` says for what; it is tried again later
};

using Execute = Flow (*)(Step&);

// The code of one operation.
struct Binding {
  Execute execute = nullptr;
  bool synchronises = false;  // schedules may switch to another warp before it
  uint32_t detail = 0;        // for the code, as `Instruction::detail`
};

// What code that several operations share has to know of its own: a few small fields that travel in
// the 32 bits of a detail.  Fast code takes such things as template parameters instead.
template <class T>
inline uint32_t to_detail(const T& fields) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(uint32_t));
  uint32_t detail = 0;
  std::memcpy(&detail, &fields, sizeof fields);
  return detail;
}
template <class T>
inline T from_detail(uint32_t detail) {
  static_assert(std::is_trivial_v<T> && sizeof(T) <= sizeof(uint32_t));
  T fields;
  std::memcpy(&fields, &detail, sizeof fields);
  return fields;
}

// From an operation to its code; a null `execute` where this operation is not supported.
using Bind = Binding (*)(const Operation&);

// Registers functions that bind, by names of instructions; one static object in each file:
//     const Registration registration{{"add", bind_add}, {"sub", bind_sub}};
// Several may register one name, each for types of its own: the first that knows the operation
// binds it.
class Registration {
 public:
  struct Row {
    const char* name;
    Bind bind;
  };
  Registration(std::initializer_list<Row> rows);
};

// The binding of an operation; throws UnsupportedOperationError or UnreadModifierError.
Binding bind(const Operation& operation);

}  // namespace emu
