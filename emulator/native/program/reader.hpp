// Numbers, texts and lists from the bytes that Python sends, and into those that it gets.
//
// Little-endian; a text and a list begin with their length, 32 bits.  Nothing past the end is ever
// read.  What stands where is said in `flexfa4/emulator/decode/encoding.py` (programs) and in
// `interface.cpp` (reports).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "machine/failure.hpp"

namespace emu {

class Reader {
 public:
  Reader(const std::byte* data, size_t size) : data_(data), size_(size) {}

  uint8_t u8() { return uint8_t(number(1)); }
  uint32_t u32() { return uint32_t(number(4)); }
  uint64_t u64() { return number(8); }
  std::string text() {
    const uint32_t length = u32();
    const auto* start = reinterpret_cast<const char*>(take(length));
    return {start, length};
  }
  std::vector<std::byte> bytes() {
    const uint32_t length = u32();
    const std::byte* start = take(length);
    return {start, start + length};
  }
  // Read a list; `read` reads one element.
  template <class T, class F>
  void list(std::vector<T>& into, F&& read) {
    const uint32_t length = u32();
    for (uint32_t index = 0; index < length; ++index) into.push_back(read(*this));
  }
  bool at_end() const { return position_ == size_; }

 private:
  const std::byte* data_;
  size_t size_;
  size_t position_ = 0;

  const std::byte* take(size_t bytes) {
    if (bytes > size_ - position_) {
      throw Failure("UnreadableProgramError").with("detail", "it ends too early");
    }
    position_ += bytes;
    return data_ + position_ - bytes;
  }
  uint64_t number(int bytes) {
    const std::byte* at = take(size_t(bytes));
    uint64_t value = 0;
    for (int index = 0; index < bytes; ++index) value |= uint64_t(at[index]) << (8 * index);
    return value;
  }
};

class Writer {
 public:
  void u8(uint8_t value) { bytes_.push_back(std::byte(value)); }
  void u32(uint32_t value) { number(value, 4); }
  void u64(uint64_t value) { number(value, 8); }
  void text(std::string_view text) {
    u32(uint32_t(text.size()));
    for (const char letter : text) u8(uint8_t(letter));
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;

  void number(uint64_t value, int bytes) {
    for (int index = 0; index < bytes; ++index) u8(uint8_t(value >> (8 * index)));
  }
};

}  // namespace emu
