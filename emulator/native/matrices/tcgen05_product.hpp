// One tcgen05.mma: what it was issued with, what it touches, and how it happens.
//
// The tensor core of a block has 128 lanes, those of its tensor memory.  Which row of D a lane
// holds is the "data path layout" of the PTX ISA:
//
//   M of a block  lanes of D                      layout  in
//   128           row r: lane r                   D, A    M=128 with cta_group::1, M=256 with 2
//   64            row r: lane r / 16 * 32 + r%16  F       M=64 with cta_group::1
//   64            row r: lanes r and r + 64,      B       M=128 with cta_group::2
//                 which hold half of N each
//
// With A in tensor memory its rows lie in the same lanes; in layout B both halves hold all of A.
#pragma once

#include <array>
#include <cstdint>

#include "matrices/instruction_descriptor.hpp"
#include "matrices/tensor_access.hpp"

namespace emu {

// Lanes that hold the same columns of D, in neighbouring rows.
struct Segment {
  uint32_t lane = 0, lanes = 0;
  uint32_t row = 0;                  // of the first lane, in the block's part of A
  uint32_t column = 0, columns = 0;  // of all of B
};

struct Segments {
  std::array<Segment, 4> all;
  uint32_t count = 0;

  const Segment* begin() const { return all.data(); }
  const Segment* end() const { return all.data() + count; }
};

struct Tcgen05Product {
  Tcgen05Product(const MatrixForm& form, const Blocks& blocks) : form(form), blocks(blocks) {}

  MatrixForm form;
  Blocks blocks;
  Cell d;
  bool a_in_tensor = false;
  Cell a_cell;           // where A is, if it is in tensor memory
  SharedMatrix a, b;     // else; in each block
  Cell scale_a, scale_b;
  bool accumulate = false;
  bool shift_a = false;  // .ashift
  uint32_t scale_d = 0;  // D is divided by 2 to the power of this before the sum
  std::array<uint32_t, 8> disabled{};  // a bit for each lane whose D stays, of both blocks

  Segments segments() const;
  Pieces a_pieces() const;
  Pieces b_pieces() const;
  Cells a_cells(const Segment& segment) const;  // that are read, of A in tensor memory
  uint32_t rows() const { return form.m / blocks.count; }  // of a block's part of A
  uint32_t columns_of_d() const;                           // that D has in tensor memory

  // Throws for whatever is wrong before any value is known.
  void check() const;
  void report(Races& races, const Races::Issued& issued) const;
  void happen() const;
};

// The scales of the rows of A, or of the columns of B, that a block has in its tensor memory.
//
// Scale s of row r is a byte.  The first four are of the cell in lane r % 32, column r / 32 from
// the address on; each four further ones have columns of their own behind those of all rows, of
// which there are a multiple of 128.  Each part of 32 lanes has a copy of its own, as tcgen05.cp
// with .warpx4 makes them.  PTX ISA, "Scale Factor A layout"; CUTLASS mma_traits_sm100_frag.hpp,
// tmem_sf_frg, and sm103_blockscaled_mma_warpspecialized.hpp, where six scales are of two cells.
struct ScaleCells {
  Cell base;
  uint32_t rows = 0;             // or columns, that they are for
  uint32_t lane = 0, lanes = 0;  // lanes of the tensor core that use them
  uint32_t first = 0;            // byte of the first scale, from the instruction descriptor
  uint32_t scales = 0;           // of a row
  uint32_t fours() const { return (first + scales + 3) / 4; }
  uint32_t column(uint32_t row, uint32_t four) const {
    return base.column + row / 32 + four * ((rows + 127) / 128 * 4);
  }
  // Call f(cells) for the rectangles of cells that are read.
  template <class F>
  void for_each_rectangle(F&& f) const {
    for (uint32_t part = lane / 32 * 32; part < lane + lanes; part += 32) {
      for (uint32_t four = 0; four < fours(); ++four) {
        for (uint32_t row = 0; row < rows; row += 32) {
          const uint32_t some = rows - row < 32 ? rows - row : 32;
          f(Cells{part, some, column(row, four), 1});
        }
      }
    }
  }
};

// Reads scales; `numbers` has room for [rows][scales].  The copies in all parts that use them have
// to be equal; throws ScaleCopiesError.
void read_block_scales(Tensors& tensors, const ScaleCells& cells, bool ue8m0, double* numbers);

}  // namespace emu
