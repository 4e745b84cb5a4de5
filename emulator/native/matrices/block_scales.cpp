// Reading the block scales of tcgen05.mma from tensor memory, see matrices/tcgen05_product.hpp.
#include "arithmetic/formats.hpp"
#include "matrices/tcgen05_product.hpp"

namespace emu {

namespace {

// ue4m3 has no sign: the upper bit is ignored.
double scale_of(uint32_t byte, bool ue8m0) {
  return ue8m0 ? widen_ue8m0(byte) : widen<E4M3>(byte & 0x7F);
}

}  // namespace

void read_block_scales(Tensors& tensors, const ScaleCells& cells, bool ue8m0, double* numbers) {
  cells.for_each_rectangle([&](const Cells& part) {
    tensors.check(part);
    tensors.check_written(part);
  });
  const uint32_t first_part = cells.lane / 32 * 32;
  for (uint32_t row = 0; row < cells.rows; ++row) {
    for (uint32_t scale = 0; scale < cells.scales; ++scale) {
      const uint32_t byte = cells.first + scale;
      const auto bits_in = [&](uint32_t part) {
        const uint32_t column = cells.column(row, byte / 4);
        return *tensors.cells(part + row % 32, column) >> byte % 4 * 8 & 0xFF;
      };
      const uint32_t bits = bits_in(first_part);
      for (uint32_t part = first_part + 32; part < cells.lane + cells.lanes; part += 32) {
        if (bits_in(part) == bits) continue;
        throw Failure("ScaleCopiesError")
            .with("scale", scale)
            .with("row", row)
            .hex("first", bits)
            .with("part", part)
            .hex("other", bits_in(part));
      }
      *numbers++ = scale_of(bits, ue8m0);
    }
  }
}

}  // namespace emu
