// The box of a tensor that one copy moves: which bytes of global memory go where in shared memory.
//
// In shared memory the box is dense, its rows along axis 0 one after another; with a swizzle a row
// takes as many bytes as a row of the pattern, and its pieces of 16 bytes are permuted: bits 4 to 6
// of a shared address are XORed with bits 7 to 9 of it, as many of them as the swizzle has.  Of the
// elements along an axis every `steps`-th is copied, but for axis 0.  All of this was seen on an
// H200, as were the rules that `TensorBox` throws for.
//
// What an H200 has not is as the PTX ISA, "Swizzling Modes", and the driver's documentation of
// cuTensorMapEncodeTiled have it: a swizzle of 128 bytes may keep 32 or 64 bytes together (bits 5
// and 6, or 6 alone, are XORed with those from bit 7 on), and may swap the halves of 16 bytes in
// lines of odd numbers; 16 elements of 4 or 6 bits may take 16 bytes, their own ones first.
//
// Deliberately moves nothing.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "copies/tensor_map.hpp"

namespace emu {

class TensorBox {
 public:
  static constexpr uint32_t PIECE = 16;  // bytes of shared memory that stay together
  static constexpr uint32_t ALIGNMENT = 128;  // of the box in shared memory

  using Coordinates = std::array<int64_t, TensorMap::MAX_RANK>;

  // Throws CoordinateError for a box that begins inside of 16 bytes (of a padded row of elements),
  // or, with `stores`, before the tensor, and TensorMapFieldError for a map of the other direction.
  TensorBox(const TensorMap& map, const Coordinates& first, bool stores);

  const TensorMap& map() const { return map_; }
  uint32_t rows() const { return rows_; }
  uint32_t row_bytes() const { return row_bytes_; }             // of the tensor
  uint32_t row_pieces() const { return row_bytes_ / map_.packed; }
  uint32_t bytes() const { return rows_ * row_bytes_; }         // that are copied, and complete
  uint32_t shared_bytes() const { return rows_ * row_pitch_; }  // that the box takes
  bool dense() const { return row_pitch_ == row_bytes_; }

  // Where a byte of a row lies in a box at an offset of shared memory, but for swapped halves.
  uint32_t place(uint32_t box, uint32_t row, uint32_t byte) const {
    const uint32_t at = box + row * row_pitch_ + byte;
    return at ^ (at >> LINE_BITS & pattern_) << pattern_bit_;
  }
  // Whether the halves of what lies there are swapped.
  bool flipped(uint32_t place) const { return map_.flips && place >> LINE_BITS & 1; }

  // What of a row is inside of the tensor: bytes [start, stop) of it, from `address` on.
  struct Row {
    uint32_t index;
    uint32_t start, stop;
    uint64_t address;
  };
  // Call f(Row) for each row; start == stop for those that are outside.
  template <class F>
  void for_each_row(F&& f) const;

  // Bytes of global memory from the first one that is inside of the tensor to the last one; none
  // when all of the box is outside.
  struct Span {
    uint64_t address = 0, bytes = 0;
  };
  Span span() const;

 private:
  static constexpr uint32_t LINE_BITS = 7;  // lines of 128 bytes

  TensorMap map_;
  Coordinates first_;
  std::array<uint32_t, TensorMap::MAX_RANK> counts_{};  // elements copied along each axis
  uint32_t rows_ = 1, row_bytes_, row_pitch_, pattern_, pattern_bit_ = 4;
  uint32_t start_, stop_;  // of rows that are inside, in bytes
};

template <class F>
void TensorBox::for_each_row(F&& f) const {
  std::array<uint32_t, TensorMap::MAX_RANK> at{};
  for (uint32_t index = 0; index < rows_; ++index) {
    uint64_t address = map_.address + uint64_t(map_.bytes_of(first_[0])) + start_;
    bool inside = start_ < stop_;
    for (uint32_t axis = 1; axis < map_.rank; ++axis) {
      const int64_t coordinate = first_[axis] + int64_t(at[axis]) * map_.steps[axis];
      inside &= coordinate >= 0 && coordinate < map_.sizes[axis];
      address += uint64_t(coordinate * map_.strides[axis]);
    }
    f(inside ? Row{index, start_, stop_, address} : Row{index, 0, 0, 0});
    for (uint32_t axis = 1; axis < map_.rank && ++at[axis] == counts_[axis]; ++axis) at[axis] = 0;
  }
}

}  // namespace emu
