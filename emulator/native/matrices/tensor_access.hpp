// What instructions on tensor memory have in common: the address that they name, and their report
// to the race detector.
#pragma once

#include "machine/cluster.hpp"
#include "machine/step.hpp"
#include "machine/warp.hpp"
#include "matrices/tensor_memory.hpp"
#include "races/races.hpp"

namespace emu {

// The address of tensor memory that all active lanes name.
inline uint32_t tensor_address(const Step& step, const Operand& operand) {
  return uint32_t(step.uniform(operand));
}

// The one lane that issues an operation of the tensor core; throws NotOneThreadError.
inline int issuing_lane(const Step& step) {
  if (count(step.active) != 1) {
    throw Failure("NotOneThreadError").with("threads", count(step.active));
  }
  return lowest(step.active);
}

// The number in cta_group::1 or cta_group::2.
inline uint8_t group_of(const Operation& op) {
  return op.get("cta_group") == "cta_group::2" ? 2 : 1;
}

// The code of an operation of which it only has to know the group, as its detail.  `.sync` and
// `.aligned`, where a row of the table has them as modifiers, are what `Step::aligned` checks.
inline Binding with_group(const Operation& op, Execute execute) {
  op.implied({"sync", "aligned"});
  return {execute, true, group_of(op)};
}

// The block, or with cta_group::2 the two blocks, that an instruction of a block is about: those
// whose ranks differ in the last bit only.  Throws NoPairError where there is no other block.
struct Blocks {
  Cta* block[2] = {};
  uint32_t count = 1;

  Blocks(Cta& cta, uint32_t group) : count(group) {
    block[0] = &cta;
    if (group == 1) return;
    auto& all = cta.cluster.ctas;
    const uint32_t even = cta.rank & ~1u;
    if (even + 1 >= all.size()) throw Failure("NoPairError").with("blocks", all.size());
    block[0] = all[even].get();
    block[1] = all[even + 1].get();
  }
  Cta& operator[](uint32_t index) const { return *block[index]; }
  // Where the operations of the tensor cores of these blocks wait for their turn.
  Engines::Queue queue() const {
    return Engines::queue(Engines::Kind::TensorCore, block[0]->rank);
  }
};

// Report cells: `by` is the step, or the asynchronous operation.
template <class By>
void touch_cells(Races& races, const By& by, Cta& cta, const Cells& cells, Touch touch) {
  const Region region{Region::Is::Tensor, &cta};
  if (cells.lanes == Tensors::LANES) {
    races.touch(by, region, Tensors::offset(0, cells.column),
                uint64_t(cells.columns) * Tensors::LANES * sizeof(uint32_t), touch);
    return;
  }
  for (uint32_t column = cells.column; column < cells.column + cells.columns; ++column) {
    races.touch(by, region, Tensors::offset(cells.lane, column), cells.lanes * sizeof(uint32_t),
                touch);
  }
}

}  // namespace emu
