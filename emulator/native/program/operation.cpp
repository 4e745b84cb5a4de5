// The registry of binders, and the check that every modifier of an operation was asked for.
#include "program/operation.hpp"

#include <functional>
#include <map>

#include "machine/failure.hpp"

namespace emu {

namespace {

// Filled by static objects of other files, whose order is not defined: so made at first use.
std::map<std::string, std::vector<Bind>, std::less<>>& binders() {
  static std::map<std::string, std::vector<Bind>, std::less<>> table;
  return table;
}

}  // namespace

std::string_view Operation::get(std::string_view slot) const {
  for (const Modifier& modifier : modifiers) {
    if (modifier.slot == slot) {
      modifier.read = true;
      return modifier.value;
    }
  }
  return {};
}

std::string_view Operation::first_of(std::initializer_list<std::string_view> slots) const {
  for (const std::string_view slot : slots) {
    if (const std::string_view value = get(slot); !value.empty()) return value;
  }
  return {};
}

void Operation::implied(std::initializer_list<std::string_view> slots) const {
  for (const std::string_view slot : slots) get(slot);
}

int Operation::find(std::string_view role) const {
  for (size_t index = 0; index < roles.size(); ++index) {
    if (roles[index].name == role) return int(index);
  }
  return -1;
}

int Operation::position(std::string_view role) const {
  const int index = find(role);
  if (index < 0) throw Failure("MissingRoleError").with("text", text).with("role", role);
  return index;
}

void Operation::check_all_read() const {
  for (const Modifier& modifier : modifiers) {
    if (modifier.read || modifier.hint || modifier.in_roles) continue;
    throw Failure("UnreadModifierError").with("text", text).with("modifier", modifier.value);
  }
}

Registration::Registration(std::initializer_list<Row> rows) {
  for (const Row& row : rows) binders()[row.name].push_back(row.bind);
}

Binding bind(const Operation& operation) {
  const auto found = binders().find(operation.name);
  if (found != binders().end()) {
    for (const Bind candidate : found->second) {
      for (const Operation::Modifier& modifier : operation.modifiers) modifier.read = false;
      const Binding binding = candidate(operation);
      if (!binding.execute) continue;
      operation.check_all_read();
      return binding;
    }
  }
  throw Failure("UnsupportedOperationError").with("text", operation.text);
}

}  // namespace emu
