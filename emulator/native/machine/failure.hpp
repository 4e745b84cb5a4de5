// What goes wrong while a program is loaded or run.
//
// A failure has the name of the Python class that reports it, and the fields of that class's
// message; whoever throws names what only it knows, and the warp adds where it happened.
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace emu {

std::string hexadecimal(uint64_t value);  // "0x1f"
// The numbers of the bits of a mask: "lane 3", "lanes 0-7, 12".
std::string numbered(std::string_view noun, uint32_t bits);

class Failure : public std::exception {
 public:
  explicit Failure(std::string_view name) : name(name) {}

  Failure&& with(std::string_view field, std::string_view value) && {
    fields[std::string(field)] = value;
    return std::move(*this);
  }
  Failure&& with(std::string_view field, int64_t value) && {
    return std::move(*this).with(field, std::to_string(value));
  }
  Failure&& hex(std::string_view field, uint64_t value) &&;

  const char* what() const noexcept override { return name.c_str(); }

  std::string name;                           // a class of flexfa4.emulator.failures
  std::map<std::string, std::string> fields;  // of its message
  uint32_t line = 0;                          // of the PTX; 0 if it is about none
};

}  // namespace emu
