#include "matrices/descriptors.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "machine/cluster.hpp"
#include "machine/failure.hpp"
#include "memory/access.hpp"

namespace emu {

namespace {

// Fields of 14 bits hold units of 16 bytes of an 18-bit address.
constexpr uint32_t UNITS = 0x3FFF;

uint32_t field_bytes(uint64_t bits, int low) { return uint32_t(bits >> low & UNITS) * 16; }

// Bits of a descriptor that have one value in all that the emulator knows.
struct FixedField {
  int low, size;
  uint64_t value;
  const char* meaning;
};

constexpr FixedField FIXED_SM100[] = {
    {14, 2, 0, "reserved"},
    {30, 2, 0, "reserved"},
    {46, 3, 1, "the constant 0b001"},
    {49, 3, 0, "the base offset: patterns of the swizzle begin at multiples of their size"},
    {53, 8, 0, "reserved"},
};

constexpr FixedField FIXED_SM90[] = {
    {14, 2, 0, "reserved"},
    {30, 2, 0, "reserved"},
    {46, 3, 0, "reserved"},
    {49, 3, 0, "the base offset: patterns of the swizzle begin at multiples of their size"},
    {52, 10, 0, "reserved"},
};

Failure bad_field(uint64_t bits, std::string_view operand, int low, int size) {
  const uint64_t value = bits >> low & ((1u << size) - 1);
  return Failure("SharedDescriptorError")
      .with("operand", operand)
      .hex("descriptor", bits)
      .with("field", std::to_string(low) + "-" + std::to_string(low + size - 1))
      .hex("value", value);
}

template <size_t COUNT>
void check_fixed(const FixedField (&fields)[COUNT], uint64_t bits, std::string_view operand) {
  for (const FixedField& field : fields) {
    if ((bits >> field.low & ((1u << field.size) - 1)) == field.value) continue;
    throw bad_field(bits, operand, field.low, field.size)
        .with("allowed", std::to_string(field.value) + " (" + field.meaning + ")");
  }
}

// What both architectures have: the start, the leading stride and the stride.
SharedMatrix read_strides(uint64_t bits) {
  return {field_bytes(bits, 0), field_bytes(bits, 16), field_bytes(bits, 32), Swizzle::None, false};
}

struct SwizzleCode {
  uint64_t code;
  Swizzle swizzle;
};

constexpr SwizzleCode SWIZZLES_SM100[] = {{0, Swizzle::None},
                                          {1, Swizzle::Bytes128By32},
                                          {2, Swizzle::Bytes128},
                                          {4, Swizzle::Bytes64},
                                          {6, Swizzle::Bytes32}};
// In the order of their codes.
constexpr Swizzle SWIZZLES_SM90[] = {Swizzle::None, Swizzle::Bytes128, Swizzle::Bytes64,
                                     Swizzle::Bytes32};

uint32_t width(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::None: return 16;
    case Swizzle::Bytes32: return 32;
    case Swizzle::Bytes64: return 64;
    default: return 128;
  }
}

// The exclusive-or of an address: bits 7 and up select among the pieces of a line.
uint32_t swizzled(Swizzle swizzle, uint32_t address) {
  switch (swizzle) {
    case Swizzle::None: return address;
    case Swizzle::Bytes32: return address ^ (address >> 7 & 1) << 4;
    case Swizzle::Bytes64: return address ^ (address >> 7 & 3) << 4;
    case Swizzle::Bytes128: return address ^ (address >> 7 & 7) << 4;
    case Swizzle::Bytes128By32: return address ^ (address >> 7 & 3) << 5;
  }
  return address;
}

}  // namespace

SharedMatrix read_descriptor_sm100(uint64_t bits, std::string_view operand) {
  check_fixed(FIXED_SM100, bits, operand);
  SharedMatrix matrix = read_strides(bits);
  matrix.goes_on = bits >> 52 & 1;
  for (const SwizzleCode& row : SWIZZLES_SM100) {
    if (bits >> 61 != row.code) continue;
    matrix.swizzle = row.swizzle;
    return matrix;
  }
  throw bad_field(bits, operand, 61, 3)
      .with("allowed", "0 (no swizzle), 1 (128 bytes by 32), 2 (128), 4 (64) or 6 (32)");
}

SharedMatrix read_descriptor_sm90(uint64_t bits, std::string_view operand) {
  check_fixed(FIXED_SM90, bits, operand);
  SharedMatrix matrix = read_strides(bits);
  matrix.swizzle = SWIZZLES_SM90[bits >> 62];
  return matrix;
}

// In units of pieces (T), the canonical layouts are, with strides S and leading strides L:
//   K-major,  no swizzle:  line = (8, n), piece = 2           : (T, S), L
//   K-major,  W bytes:     line = (8, n), piece = W/T         : (W, S), T
//   MN-major, no swizzle:  piece = n,     line = (8, k)       : S, (T, L)
//   MN-major, W bytes:     piece = (W/T, n), line = (8, k)    : (T, L), (W, S)
//   MN-major, 128 by 32:   piece = (8, n), line = (4, k)      : (T, L), (128, S)
// A K-major line that goes on elsewhere is one of 128 bytes, and begins anywhere in them.
Pieces::Pieces(const SharedMatrix& matrix, Major major, uint32_t lines, uint32_t per_line)
    : size_(lines * per_line) {
  const bool swizzles = matrix.swizzle != Swizzle::None;
  const uint32_t bytes = width(matrix.swizzle);
  const uint32_t group = matrix.swizzle == Swizzle::Bytes128By32 ? 4 : 8;  // lines
  const uint32_t run = bytes / SIZE;  // pieces that follow each other in a line
  // From one run to the next, and from one group of lines to the next.
  uint32_t along = matrix.leading, across = matrix.stride;
  if (major == Major::MN && !swizzles) std::swap(along, across);
  const uint32_t begun = matrix.goes_on ? matrix.start % bytes : 0;
  const uint32_t start = matrix.start - begun;
  if (matrix.goes_on) along = matrix.leading - start;
  uint32_t index = 0;
  for (uint32_t line = 0; line < lines; ++line) {
    const uint32_t first = start + line % group * bytes + line / group * across;
    for (uint32_t i = 0; i < per_line; ++i) {
      const uint32_t piece = i + begun / SIZE;
      const uint32_t linear = first + piece % run * SIZE + piece / run * along;
      addresses_[index++] = swizzled(matrix.swizzle, linear);
    }
  }
}

Pieces::Pieces(const Pieces& all, const Part& part) : size_(part.lines * part.count) {
  uint32_t index = 0;
  for (uint32_t line = part.first_line; line < part.first_line + part.lines; ++line) {
    for (uint32_t piece = part.first; piece < part.first + part.count; ++piece) {
      addresses_[index++] = all[line * part.per_line + piece];
    }
  }
}

namespace {

static_assert(Known::Written == Known(1));
constexpr uint8_t ALL_WRITTEN[Pieces::SIZE] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

}  // namespace

void Pieces::gather(Cta& cta, std::byte* to) const {
  SharedMemory& shared = cta.shared;
  for (uint32_t index = 0; index < size_; ++index, to += SIZE) {
    const uint32_t address = addresses_[index];
    // Whatever is unusual goes through the one door, which knows what to say.
    const bool plain =
        shared.holds(address, SIZE) && !std::memcmp(shared.known(address), ALL_WRITTEN, SIZE);
    const std::byte* from =
        plain ? shared.at(address) : reach_shared(cta, address, SIZE, Touch::Read);
    std::memcpy(to, from, SIZE);
  }
}

Pieces Pieces::sorted() const {
  Pieces copy = *this;
  std::sort(copy.addresses_.begin(), copy.addresses_.begin() + size_);
  return copy;
}

}  // namespace emu
