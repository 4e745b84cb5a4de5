// tcgen05.cp, from shared memory to tensor memory, and tcgen05.shift, by a lane within it.
//
// Both are done by the tensor core, in one order with products.  With cta_group::2 each block of
// the pair copies from its own shared memory to its own tensor memory, at the same places.
//
// Sources: PTX ISA, "tcgen05.cp" and "tcgen05.shift"; CUTLASS copy_traits_sm100.hpp, whose
// UTCCP traits have the lanes.  The text leaves two things to figures, and the emulator takes them
// so: `.down` is towards lower lanes, so that the last of 32 lanes is what .4x256b may refill; and
// unpacked numbers lie in their bytes as `matrices/elements.hpp` says.
#include <cstring>
#include <iterator>
#include <memory>
#include <string_view>

#include "machine/machine.hpp"
#include "matrices/descriptors.hpp"
#include "matrices/elements.hpp"
#include "matrices/tensor_access.hpp"
#include "program/operation.hpp"

namespace emu {

namespace {

// ---- copies

// What becomes of the numbers of a piece: narrow ones get a byte each.
enum class Unpack : uint8_t { None, Six, Four };

// In the order of Unpack.
constexpr void (*UNPACK[])(std::byte* piece) = {nullptr, spread_piece<6, 0>, spread_piece<4, 2>};

// A copy writes `rows` rows of 16-byte pieces; row r goes to lanes r % run + r / run * jump, and to
// as many others, `distance` lanes apart from each other, as there are copies of it.
struct CopyShape {
  uint32_t rows, pieces;
  uint32_t run, jump;
  uint32_t copies, distance;

  uint32_t lane(uint32_t row, uint32_t copy) const {
    return row % run + row / run * jump + copy * distance;
  }
};

struct Copy {
  CopyShape shape;
  Unpack unpack;
  Blocks blocks;
  SharedMatrix from;
  Cell to;

  Pieces pieces() const { return Pieces(from, Major::K, shape.rows, shape.pieces); }
  uint32_t columns() const { return shape.pieces * Pieces::SIZE / sizeof(uint32_t); }
  template <class F>
  void for_each_lane(F&& f) const {
    for (uint32_t row = 0; row < shape.rows; ++row) {
      for (uint32_t copy = 0; copy < shape.copies; ++copy) {
        f(row, to.lane + shape.lane(row, copy));
      }
    }
  }
  void happen() const;
  void report(Races& races, const Races::Issued& issued) const;
};

void Copy::happen() const {
  const Pieces all = pieces();
  std::byte bytes[Pieces::MOST * Pieces::SIZE];
  for (uint32_t number = 0; number < blocks.count; ++number) {
    Cta& cta = blocks[number];
    Tensors& tensors = Tensors::of(cta);
    tensors.check({0, Tensors::LANES, to.column, columns()});
    all.gather(cta, bytes);
    if (const auto unpack_piece = UNPACK[size_t(unpack)]) {
      for (uint32_t piece = 0; piece < all.size(); ++piece) {
        unpack_piece(bytes + piece * Pieces::SIZE);
      }
    }
    for_each_lane([&](uint32_t row, uint32_t lane) {
      const std::byte* from_row = bytes + row * shape.pieces * Pieces::SIZE;
      for (uint32_t column = 0; column < columns(); ++column) {
        constexpr size_t CELL = sizeof(uint32_t);
        std::memcpy(tensors.cells(lane, to.column + column), from_row + column * CELL, CELL);
      }
      tensors.mark_written({lane, 1, to.column, columns()});
    });
  }
}

void Copy::report(Races& races, const Races::Issued& issued) const {
  const Pieces all = pieces();
  const bool full = shape.rows * shape.copies == Tensors::LANES;
  for (uint32_t number = 0; number < blocks.count; ++number) {
    Cta& cta = blocks[number];
    all.for_each_range([&](uint32_t offset, uint32_t size) {
      races.touch(issued, {Region::Is::Shared, &cta}, offset, size, Touch::Read);
    });
    if (full) {
      touch_cells(races, issued, cta, {0, Tensors::LANES, to.column, columns()}, Touch::Write);
      continue;
    }
    for_each_lane([&](uint32_t, uint32_t lane) {
      touch_cells(races, issued, cta, {lane, 1, to.column, columns()}, Touch::Write);
    });
  }
}

struct CopyRow {
  std::string_view shape;
  std::string_view multicast;  // empty where the shape has none
  CopyShape lanes;
};

constexpr CopyRow COPIES[] = {
    {"128x256b", "", {128, 2, 128, 0, 1, 0}},
    {"128x128b", "", {128, 1, 128, 0, 1, 0}},
    {"4x256b", "", {4, 2, 1, 32, 1, 0}},
    {"64x128b", "warpx2::02_13", {64, 1, 64, 0, 2, 64}},
    {"64x128b", "warpx2::01_23", {64, 1, 32, 64, 2, 32}},
    {"32x128b", "warpx4", {32, 1, 32, 0, 4, 32}},
};

// What the modifiers say.
struct CopyForm {
  uint8_t row;  // of COPIES
  uint8_t group;
  Unpack unpack;
};

Flow execute_copy(Step& step) {
  const auto form = from_detail<CopyForm>(step.code.detail);
  const int lane = issuing_lane(step);
  Tensors::of(step.cta()).check_group(form.group);
  const SharedMatrix from = read_descriptor_sm100(step.read(step.operand(1), lane), "s_desc");
  const Cell to = Cell::at(uint32_t(step.address(step.operand(0), lane)));
  const CopyShape& shape = COPIES[form.row].lanes;
  const auto copy = std::make_shared<const Copy>(
      Copy{shape, form.unpack, Blocks(step.cta(), form.group), from, to});
  // .4x256b has one lane of each 32; all others begin at lane 0.
  if (to.lane >= (shape.rows == 4 ? 32 : 1)) {
    throw Failure("MatrixLaneError")
        .with("operand", "the destination")
        .with("lane", to.lane)
        .with("allowed", shape.rows == 4 ? "lanes 0 to 31" : "lane 0");
  }
  for (uint32_t block = 0; block < copy->blocks.count; ++block) {
    Tensors::of(copy->blocks[block]).check({0, Tensors::LANES, to.column, copy->columns()});
  }
  if (Races* races = step.races()) {
    copy->report(*races, races->issue(step, Races::Stream::TensorCore));
  }
  step.cluster().engines.defer(step, copy->blocks.queue(), [copy] { copy->happen(); });
  return Flow::Next;
}

Unpack unpack_of(const Operation& op) {
  if (!op.has("b8x16")) return Unpack::None;
  return op.get("packed_source") == "b6x16_p32" ? Unpack::Six : Unpack::Four;
}

Binding bind_copy(const Operation& op) {
  const std::string_view shape = op.first_of({"cp_shape", "64x128b", "32x128b"});
  const std::string_view multicast = op.first_of({"cp_64", "warpx4"});
  for (size_t row = 0; row < std::size(COPIES); ++row) {
    if (COPIES[row].shape != shape || COPIES[row].multicast != multicast) continue;
    return {execute_copy, true, to_detail(CopyForm{uint8_t(row), group_of(op), unpack_of(op)})};
  }
  return {};
}

// ---- shifts

constexpr uint32_t SHIFT_LANES = 32, SHIFT_COLUMNS = 8;

Flow execute_shift(Step& step) {
  const uint32_t group = step.code.detail;
  const int lane = issuing_lane(step);
  Tensors::of(step.cta()).check_group(group);
  const Cell at = Cell::at(uint32_t(step.address(step.operand(0), lane)));
  if (at.lane % SHIFT_LANES != 0) {
    throw Failure("MatrixLaneError")
        .with("operand", "the rows to shift")
        .with("lane", at.lane)
        .with("allowed", "a multiple of 32");
  }
  const Blocks blocks(step.cta(), group);
  const Cells cells{at.lane, SHIFT_LANES, at.column, SHIFT_COLUMNS};
  const Cells moved{at.lane, SHIFT_LANES - 1, at.column, SHIFT_COLUMNS};
  const Cells from{at.lane + 1, SHIFT_LANES - 1, at.column, SHIFT_COLUMNS};
  for (uint32_t block = 0; block < blocks.count; ++block) Tensors::of(blocks[block]).check(cells);
  if (Races* races = step.races()) {
    const Races::Issued issued = races->issue(step, Races::Stream::TensorCore);
    for (uint32_t block = 0; block < blocks.count; ++block) {
      touch_cells(*races, issued, blocks[block], from, Touch::Read);
      touch_cells(*races, issued, blocks[block], moved, Touch::Write);
    }
  }
  step.cluster().engines.defer(step, blocks.queue(), [blocks, cells, moved, from] {
    for (uint32_t block = 0; block < blocks.count; ++block) {
      Tensors& tensors = Tensors::of(blocks[block]);
      tensors.check(cells);
      tensors.check_written(from);
      for (uint32_t column = 0; column < SHIFT_COLUMNS; ++column) {
        uint32_t* to = tensors.cells(cells.lane, cells.column + column);
        std::memmove(to, to + 1, (SHIFT_LANES - 1) * sizeof *to);
      }
      tensors.mark_written(moved);
    }
  });
  return Flow::Next;
}

Binding bind_shift(const Operation& op) {
  op.implied({"down"});  // the only direction
  return with_group(op, execute_shift);
}

const Registration registration{{"tcgen05.cp", bind_copy}, {"tcgen05.shift", bind_shift}};

}  // namespace

}  // namespace emu
