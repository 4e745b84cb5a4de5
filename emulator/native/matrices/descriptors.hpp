// Where matrices lie in shared memory: the descriptors that wgmma and tcgen05 instructions take.
//
// All layouts move pieces of 16 bytes: a piece holds elements that are neighbours along the major
// dimension.  A matrix is a number of lines, each of the same number of pieces: lines are rows
// where the matrix is K-major, and steps along K where it is MN-major.
//
// Sources: PTX ISA, "Shared Memory Descriptor", "Strides" and "Canonical Layouts"; CUTLASS
// include/cute/arch/mma_sm100_desc.hpp and mma_sm90_desc.hpp.  The swizzle is an exclusive-or of
// bits of the absolute address, after all offsets are added; so a step along K inside a swizzled
// line is a plain addition to the start address, as kernels take it.
//
// Deliberately does not know types: `matrices/elements.hpp` reads the elements of a piece.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace emu {

class Cta;

enum class Major : uint8_t { K, MN };

enum class Swizzle : uint8_t {
  None,
  Bytes32,
  Bytes64,
  Bytes128,
  Bytes128By32,  // as Bytes128, but moving pairs of pieces
};

struct SharedMatrix {
  uint32_t start = 0;    // address in the block's shared memory
  uint32_t leading = 0;  // bytes from one group of columns to the next; see `Pieces`
  uint32_t stride = 0;   // bytes from one group of rows to the next
  Swizzle swizzle = Swizzle::None;
  // `leading` is the address at which lines go on that reach beyond their 128 bytes.
  bool goes_on = false;
};

// Read a descriptor; `operand` is its name in messages.  Both throw SharedDescriptorError for
// fields that the emulator does not know.
SharedMatrix read_descriptor_sm100(uint64_t bits, std::string_view operand);
SharedMatrix read_descriptor_sm90(uint64_t bits, std::string_view operand);

// The addresses of all pieces of a matrix.
class Pieces {
 public:
  static constexpr uint32_t SIZE = 16;   // bytes of a piece
  static constexpr uint32_t MOST = 768;  // pieces of the operand of one instruction

  Pieces(const SharedMatrix& matrix, Major major, uint32_t lines, uint32_t per_line);

  // Some pieces of some lines, of the `per_line` that each has.
  struct Part {
    uint32_t per_line, first_line, lines, first, count;
  };
  Pieces(const Pieces& all, const Part& part);

  uint32_t size() const { return size_; }
  uint32_t operator[](uint32_t index) const { return addresses_[index]; }

  // Copy all pieces, line by line, checking bounds and that their bytes are written.
  void gather(Cta& cta, std::byte* to) const;

  // Call f(offset, bytes) for the ranges of bytes that they are.
  template <class F>
  void for_each_range(F&& f) const {
    const Pieces pieces = sorted();
    for (uint32_t first = 0, next = 1; first < size_; first = next++) {
      while (next < size_ && pieces[next] == pieces[next - 1] + SIZE) ++next;
      f(pieces[first], pieces[next - 1] + SIZE - pieces[first]);
    }
  }

 private:
  std::array<uint32_t, MOST> addresses_;
  uint32_t size_;
  Pieces sorted() const;
};

}  // namespace emu
