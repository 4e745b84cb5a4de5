// tcgen05.ld, tcgen05.ld.red and tcgen05.st: registers of a warp from and to tensor memory; and the
// waits for them.
//
// Shapes: PTX ISA, "Data Movement Shape"; CUTLASS include/cute/atom/copy_traits_sm100.hpp.  A warp
// reaches 32 lanes, those of its number modulo 4.  A load writes its registers when it is issued:
// correct kernels by compilers use them without tcgen05.wait::ld.  A store happens later, as far as
// other instructions can see, and tcgen05.wait::st waits for it.
//
// Deliberately leaves out what hardware does with a load behind a store of the same warp: without
// tcgen05.wait::st the load may see the old value.
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "arithmetic/dispatch.hpp"
#include "arithmetic/extremes.hpp"
#include "machine/machine.hpp"
#include "matrices/tensor_access.hpp"
#include "program/operation.hpp"

namespace emu {

namespace {

// ---- shapes: where register `i` of a thread lies, relative to the address

struct Shape32x32b {
  static constexpr uint32_t LANES = 32, COLUMNS = 1;  // columns for each register of a thread
  static Cell cell(uint32_t thread, uint32_t i) { return {thread, i}; }
};
struct Shape16x64b {
  static constexpr uint32_t LANES = 16, COLUMNS = 2;
  static Cell cell(uint32_t thread, uint32_t i) {
    return {thread / 4 + thread % 2 * 8, thread / 2 % 2 + 2 * i};
  }
};
struct Shape16x128b {
  static constexpr uint32_t LANES = 16, COLUMNS = 2;
  static Cell cell(uint32_t thread, uint32_t i) {
    return {thread / 4 + i % 2 * 8, thread % 4 + i / 2 * 4};
  }
};
struct Shape16x256b {
  static constexpr uint32_t LANES = 16, COLUMNS = 2;
  static Cell cell(uint32_t thread, uint32_t i) {
    return {thread / 4 + i / 2 % 2 * 8, thread % 4 * 2 + i % 2 + i / 4 * 8};
  }
};
// The second half of the threads has columns of its own, from `split` on.
struct Shape16x32bx2 {
  static constexpr uint32_t LANES = 16, COLUMNS = 1;
  static Cell cell(uint32_t thread, uint32_t i) { return {thread % 16, i}; }
};

template <class Shape>
constexpr bool HALVES = std::is_same_v<Shape, Shape16x32bx2>;

// What an instruction moves: the registers of `thread` lie in `cell(thread, i)`.
template <class Shape, bool PACKED>
struct Move {
  // A register holds the low halves of two columns.
  static constexpr uint32_t STEP = PACKED ? 2 : 1;

  Tensors* tensors = nullptr;
  Cell base;
  uint32_t split = 0;
  uint32_t registers = 0;  // of a thread

  Cell cell(uint32_t thread, uint32_t i) const {
    const Cell inside = Shape::cell(thread, i);
    const uint32_t second = HALVES<Shape> && thread >= 16 ? split : 0;
    return {base.lane + inside.lane, base.column + inside.column * STEP + second};
  }
  // Call f(cells) for the rectangles of cells that are touched.
  template <class F>
  void for_each_rectangle(F&& f) const {
    const uint32_t columns = registers * Shape::COLUMNS * STEP;
    f(Cells{base.lane, Shape::LANES, base.column, columns});
    if (HALVES<Shape>) f(Cells{base.lane, Shape::LANES, base.column + split, columns});
  }
  // Checks which lanes the warp may touch, and that the columns are allocated.
  void check(const Warp& warp) const {
    const uint32_t window = warp.index % 4 * 32;
    if (base.lane < window || base.lane + Shape::LANES > window + 32 ||
        base.lane % Shape::LANES != 0) {
      throw Failure("TensorLanesError")
          .with("lane", base.lane)
          .with("lanes", Shape::LANES)
          .with("warp", warp.index)
          .with("first", window)
          .with("allowed", Shape::LANES == 32
                               ? std::to_string(window)
                               : std::to_string(window) + " or " + std::to_string(window + 16));
    }
    for_each_rectangle([&](const Cells& cells) { tensors->check(cells); });
  }
};

// Positions of operands in the rows of the table.
struct Positions {
  int address, vector;
  int split = -1;  // of 16x32bx2 only
};
constexpr Positions LOAD{1, 0, 2}, REDUCED_LOAD{2, 0}, STORE{0, 1}, STORE_HALVES{0, 2, 1};

template <class Shape, bool PACKED>
Move<Shape, PACKED> move_of(const Step& step, const Positions& at) {
  Move<Shape, PACKED> move;
  move.tensors = &Tensors::of(step.cta());
  move.base = Cell::at(tensor_address(step, step.operand(at.address)));
  if (HALVES<Shape>) move.split = uint32_t(step.operand(at.split).value);
  move.registers = step.operand(at.vector).count;
  move.check(step.warp);
  return move;
}

// ---- loads

template <class Shape, bool PACKED>
void load(const Step& step, const Move<Shape, PACKED>& move, const Operand* registers) {
  move.for_each_rectangle([&](const Cells& cells) {
    if (Races* races = step.races()) touch_cells(*races, step, step.cta(), cells, Touch::Read);
    move.tensors->check_written(cells);
  });
  for (uint32_t i = 0; i < move.registers; ++i) {
    uint32_t* to = step.lanes<uint32_t>(registers[i]);
    if constexpr (std::is_same_v<Shape, Shape32x32b>) {
      const uint32_t* low = move.tensors->cells(move.base.lane, move.cell(0, i).column);
      for_each(step.active, [&](int thread) {
        to[thread] = PACKED ? (low[thread] & 0xFFFF) | low[thread + Tensors::LANES] << 16
                            : low[thread];
      });
    } else {
      for_each(step.active, [&](int thread) {
        const Cell cell = move.cell(uint32_t(thread), i);
        const uint32_t* low = move.tensors->cells(cell.lane, cell.column);
        to[thread] = PACKED ? (*low & 0xFFFF) | low[Tensors::LANES] << 16 : *low;
      });
    }
  }
}

template <class Shape, bool PACKED>
Flow execute_load(Step& step) {
  if (!step.aligned()) return step.wait_for_lanes(ALL_LANES);
  const auto move = move_of<Shape, PACKED>(step, LOAD);
  load(step, move, &step.element(step.operand(LOAD.vector), 0));
  return Flow::Next;
}

// ---- loads with a reduction over the columns

// On the bits of integers, as FloatExtreme is on those of floats.
template <class T, bool MAX>
struct IntegerExtreme {
  uint32_t operator()(uint32_t a, uint32_t b) const {
    return MAX ? std::max(T(a), T(b)) : std::min(T(a), T(b));
  }
};

// There are two registers or more, so that each value goes through `Extreme`.
template <class Extreme>
Flow execute_load_reduced(Step& step) {
  if (!step.aligned()) return step.wait_for_lanes(ALL_LANES);
  const auto move = move_of<Shape32x32b, false>(step, REDUCED_LOAD);
  const Operand* registers = &step.element(step.operand(REDUCED_LOAD.vector), 0);
  load(step, move, registers);
  uint32_t* reduced = step.lanes<uint32_t>(1);
  for_each(step.active, [&](int thread) {
    uint32_t so_far = step.lanes<uint32_t>(registers[0])[thread];
    for (uint32_t i = 1; i < move.registers; ++i) {
      so_far = Extreme{}(so_far, step.lanes<uint32_t>(registers[i])[thread]);
    }
    reduced[thread] = so_far;
  });
  return Flow::Next;
}

// ---- stores

template <class Shape, bool PACKED>
void store(const Move<Shape, PACKED>& move, Lanes active, const std::vector<uint32_t>& values) {
  for (uint32_t i = 0; i < move.registers; ++i) {
    const uint32_t* from = &values[i * WARP];
    for_each(active, [&](int thread) {
      const Cell cell = move.cell(uint32_t(thread), i);
      uint32_t* to = move.tensors->cells(cell.lane, cell.column);
      to[0] = PACKED ? from[thread] & 0xFFFF : from[thread];
      if (PACKED) to[Tensors::LANES] = from[thread] >> 16;
    });
  }
  move.for_each_rectangle([&](const Cells& cells) { move.tensors->mark_written(cells); });
}

template <class Shape, bool PACKED>
Flow execute_store(Step& step) {
  if (!step.aligned()) return step.wait_for_lanes(ALL_LANES);
  constexpr Positions AT = HALVES<Shape> ? STORE_HALVES : STORE;
  const auto move = move_of<Shape, PACKED>(step, AT);
  if (Races* races = step.races()) {
    const Races::Issued issued = races->issue(step, Races::Stream::TensorStore, false);
    move.for_each_rectangle([&](const Cells& cells) {
      touch_cells(*races, issued, step.cta(), cells, Touch::Write);
    });
  }
  std::vector<uint32_t> values(move.registers * WARP);
  const Operand* registers = &step.element(step.operand(AT.vector), 0);
  for (uint32_t i = 0; i < move.registers; ++i) {
    std::memcpy(&values[i * WARP], step.lanes<uint32_t>(registers[i]), WARP * sizeof(uint32_t));
  }
  uint32_t* in_flight = &move.tensors->stores_in_flight[step.warp.index];
  ++*in_flight;
  const Engines::Queue queue =
      Engines::queue(Engines::Kind::TensorStore, step.cta().rank, step.warp.index);
  Cluster* cluster = &step.cluster();
  step.cluster().engines.defer(
      step, queue,
      [move, active = step.active, values = std::move(values), in_flight, cluster] {
        // Columns that were given back in the meantime are no longer the warp's.
        move.for_each_rectangle([&](const Cells& cells) { move.tensors->check(cells); });
        store(move, active, values);
        --*in_flight;
        ++cluster->version;
      });
  return Flow::Next;
}

// ---- waits

std::string describe_stores(const Waiting& waiting) {
  return std::to_string(Tensors::of(*waiting.cta).stores_in_flight[waiting.object]) +
         " stores to tensor memory";
}

Flow wait_stores(Step& step) {
  if (!step.aligned()) return step.wait_for_lanes(ALL_LANES);
  if (Tensors::of(step.cta()).stores_in_flight[step.warp.index] != 0) {
    return step.wait_for({describe_stores, &step.cta(), step.warp.index, 0, false});
  }
  if (Races* races = step.races()) {
    constexpr auto stream = Races::Stream::TensorStore;
    races->complete(step, stream, races->mark(step, stream));
  }
  return Flow::Next;
}

// Loads have happened when they were issued.
Flow wait_loads(Step& step) {
  return step.aligned() ? Flow::Next : step.wait_for_lanes(ALL_LANES);
}

// ---- binding

struct ShapeRow {
  const char* name;
  Execute load, load_packed, store, store_packed;
};

template <class Shape>
constexpr ShapeRow shape_row(const char* name) {
  return {name, execute_load<Shape, false>, execute_load<Shape, true>, execute_store<Shape, false>,
          execute_store<Shape, true>};
}

constexpr ShapeRow SHAPES[] = {
    shape_row<Shape32x32b>("32x32b"), shape_row<Shape16x64b>("16x64b"),
    shape_row<Shape16x128b>("16x128b"), shape_row<Shape16x256b>("16x256b")};

constexpr ShapeRow HALVED = shape_row<Shape16x32bx2>("16x32bx2");

// How often the shape is repeated is the number of registers, which the operands have.
void read_times(const Operation& op) {
  op.implied({"tmem_times", "tmem_times_more", "tmem_times_64", "tmem_times_32"});
}

const ShapeRow* shape_of(const Operation& op) {
  read_times(op);
  for (const ShapeRow& row : SHAPES) {
    if (op.has(row.name)) return &row;
  }
  return nullptr;
}

Binding bind_load(const Operation& op) {
  const ShapeRow* row = shape_of(op);
  if (!row) return {};
  return {op.has("pack::16b") ? row->load_packed : row->load};
}
Binding bind_load_halves(const Operation& op) {
  read_times(op);
  return {op.has("pack::16b") ? HALVED.load_packed : HALVED.load};
}
Binding bind_store(const Operation& op) {
  const ShapeRow* row = shape_of(op);
  if (!row) return {};
  return {op.has("unpack::16b") ? row->store_packed : row->store, true};
}
Binding bind_store_halves(const Operation& op) {
  read_times(op);
  return {op.has("unpack::16b") ? HALVED.store_packed : HALVED.store, true};
}

template <bool MAX>
Binding bind_reduction(const Operation& op) {
  const Type& type = op.type("d");
  if (type.is("u32")) return {execute_load_reduced<IntegerExtreme<uint32_t, MAX>>};
  if (type.is("s32")) return {execute_load_reduced<IntegerExtreme<int32_t, MAX>>};
  return with_flag(op.has("NaN"), [&](auto nan) {
    return with_flag(op.has("abs"), [&](auto absolute) {
      constexpr ExtremeSign SIGN = absolute() ? ExtremeSign::Absolute : ExtremeSign::Kept;
      return Binding{execute_load_reduced<FloatExtreme<F32, MAX, false, nan(), SIGN>>};
    });
  });
}

Binding bind_load_reduced(const Operation& op) {
  read_times(op);
  op.implied({"32x32b"});  // the only shape
  return op.get("min_max") == "min" ? bind_reduction<false>(op) : bind_reduction<true>(op);
}

Binding bind_wait_stores(const Operation&) { return {wait_stores, true}; }
Binding bind_wait_loads(const Operation&) { return {wait_loads, true}; }

const Registration registration{
    {"tcgen05.ld.sync.aligned", bind_load},
    {"tcgen05.ld.sync.aligned.16x32bx2", bind_load_halves},
    {"tcgen05.ld.red.sync.aligned", bind_load_reduced},
    {"tcgen05.st.sync.aligned", bind_store},
    {"tcgen05.st.sync.aligned.16x32bx2", bind_store_halves},
    {"tcgen05.wait::st.sync.aligned", bind_wait_stores},
    {"tcgen05.wait::ld.sync.aligned", bind_wait_loads},
};

}  // namespace

}  // namespace emu
