// The memories that a kernel sees, byte by byte, with what is known of each byte.
//
// Addresses.  A shared address has 32 bits: the rank of the block in its cluster in bits 24 and up,
// and an offset in the block's shared memory below.  The first KiB belongs to the driver, as on
// sm_90 and later.  Generic addresses are addresses of this process for global memory; the other
// spaces lie in windows that no process has (below).
//
// Deliberately does not know instructions: `memory/access.hpp` checks what they touch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace emu {

constexpr uint32_t SHARED_START = 1024;
constexpr uint32_t SHARED_OFFSET = 0x00FF'FFFF;  // the bits of a shared address below the rank
constexpr uint64_t WINDOW = 0xF000'0000'0000'0000;  // bits that tell the spaces apart
constexpr uint64_t SHARED_WINDOW = 0x1000'0000'0000'0000;
constexpr uint64_t LOCAL_WINDOW = 0x2000'0000'0000'0000;
constexpr uint64_t PARAM_WINDOW = 0x3000'0000'0000'0000;
constexpr uint64_t CONST_WINDOW = 0x4000'0000'0000'0000;

enum class Touch : uint8_t { Read, Write, Atomic };

// What is known of a byte of shared, local or tensor memory.
enum class Known : uint8_t {
  Unwritten,  // nobody has written it: it holds poison
  Written,
  InFlight,   // an asynchronous copy will write it: it holds poison until then
  Barrier,    // part of an mbarrier
};

constexpr uint8_t POISON = 0xFF;  // in every byte: a NaN of every float type

class SharedMemory {
 public:
  explicit SharedMemory(uint32_t size);  // all of it, with the driver's part

  uint32_t size() const { return uint32_t(bytes_.size()); }
  bool holds(uint64_t offset, uint64_t bytes) const {
    return offset >= SHARED_START && offset + bytes <= bytes_.size();
  }
  std::byte* at(uint32_t offset) { return bytes_.data() + offset; }
  Known* known(uint32_t offset) { return known_.data() + offset; }
  // Whether `known` is what is known of all these bytes.
  bool all(uint32_t offset, uint32_t bytes, Known known) const;
  // Say what is known of bytes, without touching them; `poison` fills them too.
  void mark(uint32_t offset, uint32_t bytes, Known known);
  void poison(uint32_t offset, uint32_t bytes, Known known);

 private:
  std::vector<std::byte> bytes_;
  std::vector<Known> known_;
};

// The allocations that a kernel may touch: ranges of addresses of this process.  All of them may be
// written: neither a tensor of torch nor a parameter of PTX says that it is only to be read.
class GlobalMemory {
 public:
  struct Range {
    uint64_t start, stop;
    uint32_t name;  // index for the report
  };
  explicit GlobalMemory(std::vector<Range> ranges);  // may overlap; empty ones are left out

  // A range that holds all of these bytes, or null.
  const Range* find(uint64_t address, uint64_t bytes) const;
  // The range with the least distance, or null if there is none at all.
  const Range* nearest(uint64_t address) const;

 private:
  std::vector<Range> ranges_;    // by start
  std::vector<uint64_t> reach_;  // the greatest stop up to here
};

}  // namespace emu
