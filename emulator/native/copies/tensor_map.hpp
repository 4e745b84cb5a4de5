// Tensor maps: what the 128 bytes say that tensor copies are given, and edits of them.
//
// The layout was read off maps that the CUDA driver (580, for an H200) and CuTe-DSL 4.8 write, and
// off what tensormap.replace does to one; `flexfa4.emulator.host.tensor_map` decodes the same bytes
// for reports, and has it as a table.  A map with anything of unknown meaning is refused, and so is
// what cuTensorMapEncodeTiled refuses.
//
// Deliberately does not know what is copied: `copies/tensor_box.hpp` does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "machine/step.hpp"

namespace emu {

constexpr uint32_t TENSOR_MAP_BYTES = 128;

struct TensorMap {
  static constexpr uint32_t MAX_RANK = 5;
  static constexpr uint32_t PADDED = 128;  // unit, in elements, of all that is padded

  uint64_t address = 0;
  std::string_view type;      // of the elements: "u32", "bf16", "b4x16"
  uint32_t element_bits = 0;
  // Bytes of the tensor in each 16 bytes of shared memory; after fewer than 16 there is padding.
  uint32_t packed = 16;
  bool flushes = false;       // reductions flush subnormal numbers
  bool rounds = false;        // loads round f32 to tf32
  bool fills_nan = false;     // elements outside of the tensor are NaN, and not 0
  uint32_t rank = 0;
  uint32_t swizzle = 0;       // bytes of a row of the pattern: 0, 32, 64, 128
  uint32_t atom = 16;         // bytes that the swizzle keeps together: 16, 32, 64
  bool flips = false;         // it swaps the halves of 16 bytes in every other line of 128
  // Axis 0 is the contiguous one.  Elements, bytes from one index to the next (but for axis 0),
  // elements of the box that a copy traverses, and how many indices it goes on from one element to
  // the next.
  std::array<int64_t, MAX_RANK> sizes{}, strides{};
  std::array<uint32_t, MAX_RANK> box{}, steps{};

  bool padded() const { return packed < 16; }
  // Of as many elements along axis 0 as fill whole bytes.
  int64_t bytes_of(int64_t elements) const { return elements * element_bits / 8; }
};

// Throws TensorMapFieldError.
TensorMap decode_tensor_map(const std::byte* bytes);
// The map at a generic address in global, const or param space.  Throws TensorMapPlaceError for
// others and for a misaligned one, and what any access does.
struct TensorMapBytes {
  std::byte bytes[TENSOR_MAP_BYTES];
};
TensorMapBytes tensor_map_bytes(const Step& step, uint64_t address, int lane);
TensorMap read_tensor_map(const Step& step, uint64_t address, int lane);

}  // namespace emu
