// tcgen05.cp, from shared memory to tensor memory, and tcgen05.shift, by a lane within it.
//
// Both are done by the tensor core, in one order with products.  With cta_group::2 each block of
// the pair copies from its own shared memory to its own tensor memory, at the same places.
//
// Sources: PTX ISA, "tcgen05.cp" and "tcgen05.shift"; CUTLASS copy_traits_sm100.hpp, whose
// UTCCP traits have the lanes.  The text leaves two things to figures, and the emulator takes them
// so: `.down` is towards lower lanes, so that the last of 32 lanes is what .4x256b may refill; and
// unpacked numbers lie in their bytes as `matrices/elements.hpp` says.
#include <algorithm>
#include <cstring>
#include <memory>

#include "machine/machine.hpp"
#include "matrices/descriptors.hpp"
#include "matrices/tensor_access.hpp"
#include "program/operation.hpp"

namespace emu {

namespace {

// ---- copies

enum class Unpack : uint8_t { None, Six, Four };

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

// 16 numbers of SIZE bits get a byte each.
template <int SIZE, int SHIFT>
void unpack_piece(std::byte* piece) {
  std::byte wide[Pieces::SIZE];
  for (int number = 0; number < 16; ++number) {
    const int bit = number * SIZE;
    uint32_t window = uint32_t(piece[bit / 8]) | uint32_t(piece[bit / 8 + 1]) << 8;
    window = window >> bit % 8 & ((1u << SIZE) - 1);
    wide[number] = std::byte(window << SHIFT);
  }
  std::memcpy(piece, wide, sizeof wide);
}

void Copy::happen() const {
  const Pieces all = pieces();
  std::byte bytes[Pieces::MOST * Pieces::SIZE];
  for (uint32_t number = 0; number < blocks.count; ++number) {
    Cta& cta = blocks[number];
    Tensors& tensors = Tensors::of(cta);
    tensors.check({0, Tensors::LANES, to.column, columns()});
    all.gather(cta, bytes);
    for (uint32_t piece = 0; piece < all.size(); ++piece) {
      std::byte* at = bytes + piece * Pieces::SIZE;
      if (unpack == Unpack::Six) unpack_piece<6, 0>(at);
      if (unpack == Unpack::Four) unpack_piece<4, 2>(at);
    }
    for_each_lane([&](uint32_t row, uint32_t lane) {
      const std::byte* from_row = bytes + row * shape.pieces * Pieces::SIZE;
      for (uint32_t column = 0; column < columns(); ++column) {
        std::memcpy(tensors.cells(lane, to.column + column), from_row + column * 4, 4);
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
  const char* shape;
  const char* multicast;  // empty where the shape has none
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
constexpr size_t COPY_COUNT = sizeof COPIES / sizeof COPIES[0];

template <size_t ROW, uint32_t GROUP, Unpack UNPACK>
Flow execute_copy(Step& step) {
  const int lane = issuing_lane(step);
  Tensors::of(step.cta()).check_group(GROUP);
  const SharedMatrix from = read_descriptor_sm100(step.read(step.operand(1), lane), "s_desc");
  const Cell to = Cell::at(uint32_t(step.address(step.operand(0), lane)));
  const CopyShape& shape = COPIES[ROW].lanes;
  const auto copy =
      std::make_shared<const Copy>(Copy{shape, UNPACK, Blocks(step.cta(), GROUP), from, to});
  // .4x256b has one lane of each 32; all others begin at lane 0.
  if (to.lane >= (shape.rows == 4 ? 32 : 1)) {
    throw Failure("MatrixLaneError")
        .with("operand", "the destination")
        .with("lane", int64_t(to.lane))
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

template <size_t ROW, uint32_t GROUP>
Execute copy_for(Unpack unpack) {
  switch (unpack) {
    case Unpack::Six: return execute_copy<ROW, GROUP, Unpack::Six>;
    case Unpack::Four: return execute_copy<ROW, GROUP, Unpack::Four>;
    default: return execute_copy<ROW, GROUP, Unpack::None>;
  }
}

template <size_t ROW = 0>
Execute find_copy(const Operation& operation, std::string_view shape, Unpack unpack) {
  if constexpr (ROW == COPY_COUNT) {
    return nullptr;
  } else {
    const CopyRow& row = COPIES[ROW];
    const bool right = !*row.multicast || operation.has(row.multicast) ||
                       operation.get("cp_64") == row.multicast;
    if (shape != row.shape || !right) return find_copy<ROW + 1>(operation, shape, unpack);
    return group_of(operation) == 1 ? copy_for<ROW, 1>(unpack) : copy_for<ROW, 2>(unpack);
  }
}

Binding bind_copy(const Operation& operation) {
  std::string_view shape = operation.get("cp_shape");
  for (const char* other : {"64x128b", "32x128b"}) {
    if (operation.has(other)) shape = other;
  }
  Unpack unpack = Unpack::None;
  if (operation.has("b8x16")) {
    unpack = operation.get("packed_source") == "b6x16_p32" ? Unpack::Six : Unpack::Four;
  }
  return {find_copy(operation, shape, unpack), true};
}

// ---- shifts

constexpr uint32_t SHIFT_LANES = 32, SHIFT_COLUMNS = 8;

template <uint32_t GROUP>
Flow execute_shift(Step& step) {
  const int lane = issuing_lane(step);
  Tensors::of(step.cta()).check_group(GROUP);
  const Cell at = Cell::at(uint32_t(step.address(step.operand(0), lane)));
  if (at.lane % SHIFT_LANES != 0) {
    throw Failure("MatrixLaneError")
        .with("operand", "the rows to shift")
        .with("lane", int64_t(at.lane))
        .with("allowed", "a multiple of 32");
  }
  const Blocks blocks(step.cta(), GROUP);
  const Cells cells{at.lane, SHIFT_LANES, at.column, SHIFT_COLUMNS};
  const Cells moved{at.lane, SHIFT_LANES - 1, at.column, SHIFT_COLUMNS};
  const Cells from{at.lane + 1, SHIFT_LANES - 1, at.column, SHIFT_COLUMNS};
  for (uint32_t block = 0; block < GROUP; ++block) Tensors::of(blocks[block]).check(cells);
  if (Races* races = step.races()) {
    const Races::Issued issued = races->issue(step, Races::Stream::TensorCore);
    for (uint32_t block = 0; block < GROUP; ++block) {
      touch_cells(*races, issued, blocks[block], from, Touch::Read);
      touch_cells(*races, issued, blocks[block], moved, Touch::Write);
    }
  }
  step.cluster().engines.defer(step, blocks.queue(), [blocks, cells, moved, from] {
    for (uint32_t block = 0; block < GROUP; ++block) {
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

Binding bind_shift(const Operation& operation) {
  operation.get("down");  // the only direction
  return {group_of(operation) == 1 ? execute_shift<1> : execute_shift<2>, true};
}

const Registration registration{{"tcgen05.cp", bind_copy}, {"tcgen05.shift", bind_shift}};

}  // namespace

}  // namespace emu
