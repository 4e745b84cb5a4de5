#include "copies/tensor_box.hpp"

#include <string>

namespace emu {

namespace {

// Of the coordinate of axis 0: whole pieces.
void check_start(const TensorMap& map, int64_t first) {
  const uint32_t unit =
      map.padded() ? TensorMap::PADDED : TensorBox::PIECE * 8 / map.element_bits;
  if (first % unit == 0) return;
  const std::string elements = std::to_string(unit) + " elements";
  throw Failure("CoordinateError")
      .with("coordinate", first)
      .with("axis", 0)
      .with("allowed", "a coordinate of axis 0 at a multiple of " +
                           (map.padded() ? elements : "16 bytes, here of " + elements));
}

// Some maps are for copies in one direction only: PTX ISA, "Restriction on Tensor Copy
// instructions"; loads with pieces of 64 bytes fault on a B200.
void check_direction(const TensorMap& map, bool stores) {
  const struct {
    bool stores, found;
    const char* field;
  } refused[] = {
      {true, map.padded(), "elements with padding, in a copy to global memory"},
      {true, map.flips, "a swizzle that swaps halves, in a copy to global memory"},
      {false, map.atom == 64, "a swizzle in pieces of 64 bytes, in a copy to shared memory"},
  };
  for (const auto& rule : refused) {
    if (!rule.found || rule.stores != stores) continue;
    throw Failure("TensorMapFieldError")
        .with("field", rule.field)
        .with("allowed", stores ? "such maps in copies to shared memory"
                                : "such maps in copies to global memory");
  }
}

}  // namespace

TensorBox::TensorBox(const TensorMap& map, const Coordinates& first, bool stores)
    : map_(map), first_(first) {
  check_direction(map, stores);
  check_start(map, first[0]);
  const int64_t start = map.bytes_of(first[0]);
  for (uint32_t axis = 0; axis < map.rank; ++axis) {
    if (stores && first[axis] < 0) {
      throw Failure("CoordinateError")
          .with("coordinate", first[axis])
          .with("axis", axis)
          .with("allowed", "coordinates from 0 on, in copies to global memory");
    }
    counts_[axis] = axis ? (map.box[axis] + map.steps[axis] - 1) / map.steps[axis] : map.box[0];
    if (axis) rows_ *= counts_[axis];
  }
  row_bytes_ = uint32_t(map.bytes_of(map.box[0]));
  row_pitch_ = map.swizzle ? map.swizzle : row_pieces() * PIECE;
  pattern_ = map.swizzle ? map.swizzle / map.atom - 1 : 0;
  for (uint32_t bytes = PIECE; bytes < map.atom; bytes *= 2) ++pattern_bit_;
  const int64_t end = map.bytes_of(map.sizes[0]) - start;  // of the tensor, in the box
  start_ = uint32_t(std::clamp<int64_t>(-start, 0, row_bytes_));
  stop_ = uint32_t(std::clamp<int64_t>(end, start_, row_bytes_));
}

TensorBox::Span TensorBox::span() const {
  if (start_ == stop_) return {};
  uint64_t low = map_.address + uint64_t(map_.bytes_of(first_[0])) + start_;
  uint64_t high = low + (stop_ - start_);
  for (uint32_t axis = 1; axis < map_.rank; ++axis) {
    const int64_t step = map_.steps[axis];
    // Of first + i * step, the least i that is not negative, and the greatest below the size.
    const int64_t from = first_[axis] < 0 ? (-first_[axis] + step - 1) / step : 0;
    const int64_t left = map_.sizes[axis] - 1 - first_[axis];
    const int64_t to = left < 0 ? -1 : std::min<int64_t>(counts_[axis] - 1, left / step);
    if (from > to) return {};
    low += uint64_t((first_[axis] + from * step) * map_.strides[axis]);
    high += uint64_t((first_[axis] + to * step) * map_.strides[axis]);
  }
  return {low, high - low};
}

}  // namespace emu
