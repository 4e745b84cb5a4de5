#include "machine/failure.hpp"

#include <cinttypes>
#include <cstdio>

namespace emu {

std::string hexadecimal(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%" PRIx64, value);
  return text;
}

Failure&& Failure::hex(std::string_view field, uint64_t value) && {
  return std::move(*this).with(field, hexadecimal(value));
}

}  // namespace emu
