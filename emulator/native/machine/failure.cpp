#include "machine/failure.hpp"

#include <cinttypes>
#include <cstdio>

namespace emu {

std::string hexadecimal(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%" PRIx64, value);
  return text;
}

std::string numbered(std::string_view noun, uint32_t bits) {
  std::string text(noun);
  const char* separator = bits & (bits - 1) ? "s " : " ";
  for (int first = 0; first < 32; ++first) {
    if (!(bits >> first & 1)) continue;
    int last = first;
    while (last < 31 && bits >> (last + 1) & 1) ++last;
    text += separator + std::to_string(first);
    if (last > first) text += "-" + std::to_string(last);
    separator = ", ";
    first = last;
  }
  return text;
}

Failure&& Failure::hex(std::string_view field, uint64_t value) && {
  return std::move(*this).with(field, hexadecimal(value));
}

}  // namespace emu
