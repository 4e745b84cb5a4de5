// mma.sync: the product of small matrices in the registers of a warp.  PTX ISA, "mma".
//
// Deliberately leaves out sparse matrices and block scales, which the table of instructions
// refuses.
#include <cstdint>
#include <cstring>

#include "machine/cluster.hpp"
#include "machine/warp.hpp"
#include "matrices/fragments.hpp"
#include "matrices/product_types.hpp"
#include "program/operation.hpp"

namespace emu {

namespace {

constexpr uint32_t COLUMNS = 8;
constexpr uint32_t MOST_DEPTH = 32;
constexpr uint32_t MOST_REGISTERS = 4;  // of C and D

// Registers of D may be any of those of the operands, so that all are read before.
void multiply_fragments(Step& step, const ProductTypes& types) {
  const Fragment a(step, step.operand(1)), b(step, step.operand(2));
  const Fragment c(step, step.operand(3)), d(step, step.operand(0));
  uint32_t copies[MOST_REGISTERS][WARP];
  const uint32_t* old[MOST_REGISTERS];
  for (uint32_t index = 0; index < c.count(); ++index) {
    std::memcpy(copies[index], c[index], sizeof copies[index]);
    old[index] = copies[index];
  }
  const uint32_t bytes = 16 * b.count();
  std::byte rows[FRAGMENT_ROWS * FRAGMENT_BYTES], columns[COLUMNS * FRAGMENT_BYTES];
  read_rows(a, bytes, rows);
  read_columns(b, bytes, columns);
  const uint32_t depth = b.count() * per_piece(types.a);
  double wide[FRAGMENT_ROWS * MOST_DEPTH], by_depth[FRAGMENT_ROWS * MOST_DEPTH];
  double numbers[COLUMNS * MOST_DEPTH];
  widen_pieces(types.a, rows, FRAGMENT_ROWS * b.count(), wide);
  widen_pieces(types.b, columns, COLUMNS * b.count(), numbers);
  turn(wide, FRAGMENT_ROWS, depth, by_depth);
  const Factors factors{by_depth, FRAGMENT_ROWS, numbers, depth, FRAGMENT_ROWS, COLUMNS, depth};
  add_fragment(factors, {true, 1.0, types.saturate}, types.d, old, d);
}

Flow execute(Step& step) {
  if (!step.aligned()) return step.wait_for_lanes(ALL_LANES);
  multiply_fragments(step, from_detail<ProductTypes>(step.code.detail));
  ++step.cluster().counters.matrices[step.operation().text];
  return Flow::Next;
}

Binding bind_mma(const Operation& op) {
  op.implied({"m16n8k4", "m16n8k8", "m16n8k16", "m16n8k32"});  // the counts of registers say it
  op.implied({"row", "col"});  // A is always by rows and B by columns
  const auto types = product_types(op);
  if (!types) return {};
  return {execute, false, to_detail(*types)};
}

const Registration registration{{"mma.sync.aligned", bind_mma}};

}  // namespace

}  // namespace emu
