// ldmatrix, stmatrix and movmatrix: small matrices between shared memory and the registers of a
// warp.
//
// Each row of a matrix is 16 bytes at the address that one lane gives; each lane gets or gives some
// bytes of each.  Which, the layouts below say: PTX ISA, "ldmatrix" and "stmatrix", and for
// 8-bit types CUTLASS include/cute/atom/copy_traits_sm100.hpp.
//
// Deliberately leaves products to mma_sync.cpp.
#include <cstdint>
#include <cstring>

#include "machine/cluster.hpp"
#include "matrices/elements.hpp"
#include "memory/access.hpp"
#include "program/operation.hpp"

namespace emu {

namespace {

constexpr uint32_t ROW = 16;  // bytes

struct Byte {
  uint32_t row, column;
};

// ---- layouts: where byte `byte` of register `index` of a lane is, among the rows in memory

// m8n8.b16: two neighbours of a row in each register.
struct Rows {
  static constexpr uint32_t ROWS = 8;      // of a matrix
  static constexpr uint32_t REGISTERS = 1; // of each lane for a matrix
  static Byte at(uint32_t lane, uint32_t index, uint32_t byte) {
    return {ROWS * index + lane / 4, 4 * (lane % 4) + byte};
  }
};

// m8n8.trans.b16: two neighbours of a column.
struct Columns {
  static constexpr uint32_t ROWS = 8;
  static constexpr uint32_t REGISTERS = 1;
  static Byte at(uint32_t lane, uint32_t index, uint32_t byte) {
    return {ROWS * index + 2 * (lane % 4) + byte / 2, 2 * (lane / 4) + byte % 2};
  }
};

// m16n16.trans.b8: two rows of two columns that are eight apart.
struct Columns16x16 {
  static constexpr uint32_t ROWS = 16;
  static constexpr uint32_t REGISTERS = 2;
  static Byte at(uint32_t lane, uint32_t index, uint32_t byte) {
    const uint32_t row = 4 * (lane % 4) + 2 * (index % 2) + byte % 2;
    return {ROWS * (index / 2) + row, lane / 4 + 8 * (byte / 2)};
  }
};

// m16n8.trans.b8, which has eight rows of 16 in memory.
struct Columns16x8 {
  static constexpr uint32_t ROWS = 8;
  static constexpr uint32_t REGISTERS = 1;
  static Byte at(uint32_t lane, uint32_t index, uint32_t byte) {
    return {ROWS * index + 2 * (lane % 4) + byte % 2, lane / 4 + 8 * (byte / 2)};
  }
};

// ---- execution

// What becomes of the bytes of a row on the way into registers.
using Unpack = void (*)(std::byte* row);

void as_they_are(std::byte*) {}

// Numbers of 4 bits go to the low bits of their bytes; kernels shift them to bits 2 to 5 for
// mma.sync (CUTLASS include/cute/atom/mma_traits_sm120.hpp).
constexpr Unpack UNPACK_B4X16_P64 = spread_piece<4, 0>;
constexpr Unpack UNPACK_B6X16_P32 = spread_piece<6, 0>;

template <class Layout>
uint32_t rows_of(const Operand& registers) {
  return registers.count / Layout::REGISTERS * Layout::ROWS;
}

template <class Layout, Unpack UNPACK = as_they_are>
Flow load(Step& step) {
  if (!step.aligned()) return step.wait_for_lanes(ALL_LANES);
  constexpr int address = 1;
  const Operand& to = step.operand(0);
  const Space space = space_named(step.operation().roles[address].space);
  std::byte rows[WARP][ROW];
  for (uint32_t row = 0; row < rows_of<Layout>(to); ++row) {
    const uint64_t at = step.address(step.operand(address), int(row));
    std::memcpy(rows[row], reach(step, space, at, ROW, Touch::Read, int(row)).bytes, ROW);
    UNPACK(rows[row]);
  }
  for (uint32_t index = 0; index < to.count; ++index) {
    uint32_t* d = step.lanes<uint32_t>(step.element(to, index));
    for (uint32_t lane = 0; lane < WARP; ++lane) {
      uint32_t value = 0;
      for (uint32_t byte = 0; byte < 4; ++byte) {
        const Byte from = Layout::at(lane, index, byte);
        value |= uint32_t(rows[from.row][from.column]) << 8 * byte;
      }
      d[lane] = value;
    }
  }
  return Flow::Next;
}

template <class Layout>
Flow store(Step& step) {
  if (!step.aligned()) return step.wait_for_lanes(ALL_LANES);
  const Operand& from = step.operand(1);
  const Space space = space_named(step.operation().roles[0].space);
  std::byte rows[WARP][ROW];
  for (uint32_t index = 0; index < from.count; ++index) {
    const uint32_t* b = step.lanes<uint32_t>(step.element(from, index));
    for (uint32_t lane = 0; lane < WARP; ++lane) {
      for (uint32_t byte = 0; byte < 4; ++byte) {
        const Byte to = Layout::at(lane, index, byte);
        rows[to.row][to.column] = std::byte(b[lane] >> 8 * byte);
      }
    }
  }
  for (uint32_t row = 0; row < rows_of<Layout>(from); ++row) {
    const uint64_t at = step.address(step.operand(0), int(row));
    std::memcpy(reach(step, space, at, ROW, Touch::Write, int(row)).bytes, rows[row], ROW);
  }
  step.effect();
  return Flow::Next;
}

// The matrix whose rows the lanes hold, transposed.
Flow transpose(Step& step) {
  if (!step.aligned()) return step.wait_for_lanes(ALL_LANES);
  uint32_t* d = step.lanes<uint32_t>(0);
  uint32_t a[WARP];
  std::memcpy(a, step.lanes<uint32_t>(1), sizeof a);
  for (uint32_t lane = 0; lane < WARP; ++lane) {
    uint32_t value = 0;
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t row = 2 * (lane % 4) + half, column = lane / 4;
      value |= (a[4 * row + column / 2] >> 16 * (column % 2) & 0xFFFF) << 16 * half;
    }
    d[lane] = value;
  }
  return Flow::Next;
}

// ---- binding

Binding bind_load_8x8(const Operation& op) {
  return {op.has("trans") ? load<Columns> : load<Rows>};
}
Binding bind_load_16x16(const Operation& op) {
  op.implied({"trans"});  // always there
  return {load<Columns16x16>};
}
Binding bind_load_8x16(const Operation& op) {
  op.implied({"b8x16"});  // always there
  const bool six = op.get("packed_source") == "b6x16_p32";
  return {six ? load<Rows, UNPACK_B6X16_P32> : load<Rows, UNPACK_B4X16_P64>};
}
Binding bind_store_8x8(const Operation& op) {
  return {op.has("trans") ? store<Columns> : store<Rows>};
}
Binding bind_store_16x8(const Operation& op) {
  op.implied({"trans"});  // always there
  return {store<Columns16x8>};
}
Binding bind_transpose(const Operation&) { return {transpose}; }

// How many matrices there are is the count of registers.
template <Bind BIND>
Binding counted(const Operation& op) {
  op.implied({"times", "few_times"});
  return BIND(op);
}

const Registration registration{
    {"ldmatrix.sync.aligned.m8n8", counted<bind_load_8x8>},
    {"ldmatrix.sync.aligned.m16n16", counted<bind_load_16x16>},
    {"ldmatrix.sync.aligned.m8n16", counted<bind_load_8x16>},
    {"stmatrix.sync.aligned.m8n8", counted<bind_store_8x8>},
    {"stmatrix.sync.aligned.m16n8", counted<bind_store_16x8>},
    {"movmatrix.sync.aligned.m8n8.trans", bind_transpose},
};

}  // namespace

}  // namespace emu
