#include "matrices/tcgen05_product.hpp"

#include <algorithm>
#include <memory>

#include "machine/machine.hpp"
#include "matrices/accumulators.hpp"
#include "matrices/products.hpp"

namespace emu {

namespace {

constexpr uint32_t LANES = Tensors::LANES;
constexpr uint32_t MOST_COLUMNS = 256;
constexpr uint32_t MOST_DEPTH = 96;
constexpr uint32_t MOST_ROW_BYTES = 48;
constexpr uint32_t MOST_SCALES = 6;

static_assert(PRODUCT_LANES == LANES);

// Room for the matrices of one product, which each worker keeps.
struct Scratch {
  alignas(64) double a[MOST_DEPTH * LANES];           // [k][lane]
  alignas(64) double b[MOST_COLUMNS * MOST_DEPTH];    // [column][k]
  alignas(64) double scaled[MOST_COLUMNS * MOST_DEPTH];
  alignas(64) double wide[MOST_COLUMNS * MOST_DEPTH];
  double scales[MOST_COLUMNS * MOST_SCALES];
  std::byte bytes[Pieces::MOST * Pieces::SIZE];
};

Scratch& scratch() {
  static thread_local const std::unique_ptr<Scratch> own = std::make_unique<Scratch>();
  return *own;
}

Pieces pieces_of(const SharedMatrix& matrix, Major major, Element element, uint32_t rows,
                 const MatrixForm& form) {
  if (major == Major::K) return Pieces(matrix, major, rows, form.row_bytes() / Pieces::SIZE);
  return Pieces(matrix, major, form.k, rows / per_piece(element));
}

uint32_t row_cells(const MatrixForm& form) { return form.row_bytes() / sizeof(uint32_t); }

// PTX ISA, "Valid combinations of type-size, major-ness and swizzling", and "Absolute address mode
// for K dimension being 48B".
void check_layout(const SharedMatrix& matrix, Major major, Element element, const MatrixForm& form,
                  const char* operand) {
  const bool pairs = element == Element::TF32 && major == Major::MN;
  const char* allowed = nullptr;
  if (pairs && matrix.swizzle != Swizzle::Bytes128By32) {
    allowed = "the swizzle of 128 bytes by 32 for tf32 that is M- or N-major";
  } else if (!pairs && matrix.swizzle == Swizzle::Bytes128By32) {
    allowed = "any other swizzle than that of 128 bytes by 32";
  } else if (matrix.goes_on != (form.k == 96)) {
    allowed = "an absolute leading address for K = 96, a leading offset for any other";
  } else if (matrix.goes_on && matrix.swizzle != Swizzle::Bytes128) {
    allowed = "the swizzle of 128 bytes for K = 96";
  }
  if (!allowed) return;
  throw Failure("MatrixLayoutError")
      .with("operand", operand)
      .with("major", major == Major::K ? "K" : "M or N")
      .with("allowed", allowed);
}

// ---- the factors

// Read rows of A or B that lie in shared memory: [row][k] or [k][row], by the major dimension.
const double* read_shared(Scratch& room, const Pieces& pieces, Cta& cta, Element element) {
  pieces.gather(cta, room.bytes);
  widen_pieces(element, room.bytes, pieces.size(), room.wide);
  return room.wide;
}

void place_b(const Tcgen05Product& product, Scratch& room) {
  const MatrixForm& form = product.form;
  const uint32_t rows = form.n / product.blocks.count;
  const Pieces pieces = product.b_pieces();
  const double sign = form.negate ? -1 : 1;
  for (uint32_t block = 0; block < product.blocks.count; ++block) {
    const double* wide = read_shared(room, pieces, product.blocks[block], form.b);
    double* to = room.b + size_t(block) * rows * form.k;
    const uint32_t row_step = form.b_major == Major::K ? form.k : 1;
    const uint32_t k_step = form.b_major == Major::K ? 1 : rows;
    for (uint32_t row = 0; row < rows; ++row) {
      for (uint32_t k = 0; k < form.k; ++k) *to++ = sign * wide[row * row_step + k * k_step];
    }
  }
}

void place_a_shared(const Tcgen05Product& product, Cta& cta, Scratch& room) {
  const MatrixForm& form = product.form;
  const double* wide = read_shared(room, product.a_pieces(), cta, form.a);
  const uint32_t row_step = form.a_major == Major::K ? form.k : 1;
  const uint32_t k_step = form.a_major == Major::K ? 1 : product.rows();
  for (const Segment& segment : product.segments()) {
    for (uint32_t k = 0; k < form.k; ++k) {
      const double* from = wide + segment.row * row_step + k * k_step;
      double* to = room.a + k * LANES + segment.lane;
      for (uint32_t i = 0; i < segment.lanes; ++i) to[i] = from[i * row_step];
    }
  }
}

void place_a_tensor(const Tcgen05Product& product, Cta& cta, Scratch& room) {
  const MatrixForm& form = product.form;
  Tensors& tensors = Tensors::of(cta);
  for (const Segment& segment : product.segments()) {
    const Cells cells = product.a_cells(segment);
    tensors.check(cells);
    tensors.check_written(cells);
    for (uint32_t i = 0; i < segment.lanes; ++i) {
      // Shifted, each row is that of the next lane, up to the last one.
      const uint32_t lane = std::min(segment.lane + i + product.shift_a, LANES - 1);
      uint32_t words[MOST_ROW_BYTES / sizeof(uint32_t)];
      for (uint32_t word = 0; word < cells.columns; ++word) {
        words[word] = *tensors.cells(lane, product.a_cell.column + word);
      }
      double wide[MOST_DEPTH];
      widen_pieces(in_tensor_memory(form.a), reinterpret_cast<const std::byte*>(words),
                   form.row_bytes() / Pieces::SIZE, wide);
      double* to = room.a + segment.lane + i;
      for (uint32_t k = 0; k < form.k; ++k) to[k * LANES] = wide[k];
    }
  }
}

// ---- block scales

ScaleCells scales_of_a(const Tcgen05Product& product, const Segment& segment) {
  const MatrixForm& form = product.form;
  return {product.scale_a, product.rows(), segment.lane, segment.lanes, form.scale_a, form.scales};
}
ScaleCells scales_of_b(const Tcgen05Product& product, const Segment& segment) {
  const MatrixForm& form = product.form;
  return {product.scale_b, segment.columns, segment.lane, segment.lanes, form.scale_b, form.scales};
}

void scale_a(const Tcgen05Product& product, Tensors& tensors, const Segment& segment,
             Scratch& room) {
  const MatrixForm& form = product.form;
  read_block_scales(tensors, scales_of_a(product, segment), form.ue8m0, room.scales);
  for (uint32_t k = 0; k < form.k; ++k) {
    double* numbers = room.a + k * LANES + segment.lane;
    const double* scales = room.scales + segment.row * form.scales + k / form.block;
    for (uint32_t i = 0; i < segment.lanes; ++i) numbers[i] *= scales[i * form.scales];
  }
}

// The segment's columns of B, scaled.
const double* scale_b(const Tcgen05Product& product, Tensors& tensors, const Segment& segment,
                      Scratch& room) {
  const MatrixForm& form = product.form;
  read_block_scales(tensors, scales_of_b(product, segment), form.ue8m0, room.scales);
  const double* from = room.b + size_t(segment.column) * form.k;
  double* to = room.scaled;
  for (uint32_t column = 0; column < segment.columns; ++column) {
    for (uint32_t k = 0; k < form.k; ++k) {
      *to++ = *from++ * room.scales[column * form.scales + k / form.block];
    }
  }
  return room.scaled;
}

// ---- the accumulator

bool any_disabled(const uint32_t* disabled) {
  return (disabled[0] | disabled[1] | disabled[2] | disabled[3]) != 0;
}

bool is_disabled(const uint32_t* disabled, uint32_t lane) {
  return disabled[lane / 32] >> lane % 32 & 1;
}

template <class To>
void add_products(const Factors& factors, const Accumulator& how, Tensors& tensors, Cell d,
                  const uint32_t* disabled) {
  const bool some = any_disabled(disabled);
  multiply(factors, [&](uint32_t column, const double* sums) {
    uint32_t* cells = tensors.cells(d.lane, d.column + column);
    const Accumulator local = how;  // not behind a reference that `cells` might alias
    if (!some) {
      for (uint32_t i = 0; i < factors.lanes; ++i) cells[i] = To::sum(local, cells[i], sums[i]);
      return;
    }
    for (uint32_t i = 0; i < factors.lanes; ++i) {
      if (!is_disabled(disabled, d.lane + i)) cells[i] = To::sum(local, cells[i], sums[i]);
    }
  });
}

using Add = void (*)(const Factors&, const Accumulator&, Tensors&, Cell, const uint32_t*);

// In the order of Result.
constexpr Add ADD[] = {add_products<ToF16>, add_products<ToF32>, add_products<ToS32>};

// Call f(cells) for the cells of D in a segment whose lanes are enabled.
template <class F>
void for_enabled(const Tcgen05Product& product, const Segment& segment, const uint32_t* disabled,
                 F&& f) {
  if (!any_disabled(disabled)) {
    f(Cells{segment.lane, segment.lanes, product.d.column, segment.columns});
    return;
  }
  for (uint32_t lane = segment.lane; lane < segment.lane + segment.lanes; ++lane) {
    if (!is_disabled(disabled, lane)) f(Cells{lane, 1, product.d.column, segment.columns});
  }
}

void happen_in_block(const Tcgen05Product& product, uint32_t number, Scratch& room) {
  const MatrixForm& form = product.form;
  Cta& cta = product.blocks[number];
  Tensors& tensors = Tensors::of(cta);
  const uint32_t* disabled = &product.disabled[number * 4];
  if (product.a_in_tensor) {
    place_a_tensor(product, cta, room);
  } else {
    place_a_shared(product, cta, room);
  }
  const Accumulator how{product.accumulate, 1.0 / (1u << product.scale_d), form.saturate};
  for (const Segment& segment : product.segments()) {
    for_enabled(product, segment, disabled, [&](const Cells& cells) {
      tensors.check(cells);
      if (product.accumulate) tensors.check_written(cells);
    });
    Factors factors{room.a + segment.lane, LANES, room.b + size_t(segment.column) * form.k, form.k,
                    segment.lanes, segment.columns, form.k};
    if (form.scales) {
      scale_a(product, tensors, segment, room);
      factors.b = scale_b(product, tensors, segment, room);
    }
    ADD[size_t(form.d)](factors, how, tensors, {segment.lane, product.d.column}, disabled);
    for_enabled(product, segment, disabled,
                [&](const Cells& cells) { tensors.mark_written(cells); });
  }
}

Failure bad_lane(const char* operand, Cell cell, const char* allowed) {
  return Failure("MatrixLaneError")
      .with("operand", operand)
      .with("lane", cell.lane)
      .with("allowed", allowed);
}

}  // namespace

Segments Tcgen05Product::segments() const {
  if (rows() == LANES) return {{{{0, LANES, 0, 0, form.n}}}, 1};
  if (blocks.count == 2) {
    const uint32_t half = form.n / 2;
    return {{{{0, 64, 0, 0, half}, {64, 64, 0, half, half}}}, 2};
  }
  Segments result;
  for (; result.count < 4; ++result.count) {
    result.all[result.count] = {d.lane + 32 * result.count, 16, 16 * result.count, 0, form.n};
  }
  return result;
}

Pieces Tcgen05Product::a_pieces() const {
  return pieces_of(a, form.a_major, form.a, rows(), form);
}

Pieces Tcgen05Product::b_pieces() const {
  return pieces_of(b, form.b_major, form.b, form.n / blocks.count, form);
}

Cells Tcgen05Product::a_cells(const Segment& segment) const {
  const uint32_t unread = shift_a ? 1 : 0;  // the first row
  return {segment.lane + unread, segment.lanes - unread, a_cell.column, row_cells(form)};
}

uint32_t Tcgen05Product::columns_of_d() const { return segments().begin()->columns; }

void Tcgen05Product::check() const {
  const bool half = rows() == 64 && blocks.count == 1;  // of each 32 lanes 16 are used
  if (d.lane != 0 && !(half && d.lane == 16)) {
    throw bad_lane("D", d, half ? "lane 0 or 16, for M=64" : "lane 0");
  }
  if (a_in_tensor) {
    if (a_cell.lane != d.lane) throw bad_lane("A", a_cell, "the lane of D");
    if (form.a_major != Major::K) {
      throw Failure("MatrixLayoutError")
          .with("operand", "A")
          .with("major", "M")
          .with("allowed", "K-major matrices in tensor memory");
    }
    if (shift_a && rows() != LANES) throw Failure("ShiftShapeError").with("m", form.m);
  } else {
    check_layout(a, form.a_major, form.a, form, "A");
  }
  check_layout(b, form.b_major, form.b, form, "B");
  if (form.scales) {
    if (scale_a.lane != 0) throw bad_lane("the scales of A", scale_a, "lane 0");
    if (scale_b.lane != 0) throw bad_lane("the scales of B", scale_b, "lane 0");
  }
  for (uint32_t block = 0; block < blocks.count; ++block) {
    const Tensors& tensors = Tensors::of(blocks[block]);
    tensors.check({0, LANES, d.column, columns_of_d()});
    if (a_in_tensor) tensors.check({0, LANES, a_cell.column, row_cells(form)});
  }
}

void Tcgen05Product::report(Races& races, const Races::Issued& issued) const {
  for (uint32_t block = 0; block < blocks.count; ++block) {
    Cta& cta = blocks[block];
    const auto read_shared = [&](uint32_t offset, uint32_t bytes) {
      races.touch(issued, {Region::Is::Shared, &cta}, offset, bytes, Touch::Read);
    };
    if (!a_in_tensor) a_pieces().for_each_range(read_shared);
    b_pieces().for_each_range(read_shared);
    const auto read_cells = [&](const Cells& cells) {
      touch_cells(races, issued, cta, cells, Touch::Read);
    };
    for (const Segment& segment : segments()) {
      if (a_in_tensor) read_cells(a_cells(segment));
      if (form.scales) {
        scales_of_a(*this, segment).for_each_rectangle(read_cells);
        scales_of_b(*this, segment).for_each_rectangle(read_cells);
      }
      for_enabled(*this, segment, &disabled[block * 4], [&](const Cells& cells) {
        touch_cells(races, issued, cta, cells, Touch::Write);
      });
    }
  }
}

void Tcgen05Product::happen() const {
  Scratch& room = scratch();
  place_b(*this, room);
  for (uint32_t block = 0; block < blocks.count; ++block) happen_in_block(*this, block, room);
}

}  // namespace emu
