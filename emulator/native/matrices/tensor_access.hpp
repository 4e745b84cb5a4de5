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
  const int first = lowest(step.active);
  const uint32_t address = uint32_t(step.address(operand, first));
  for_each(step.active, [&](int lane) {
    const uint32_t other = uint32_t(step.address(operand, lane));
    if (other == address) return;
    throw Failure("NotUniformError")
        .hex("first", address)
        .with("first_lane", first)
        .hex("other", other)
        .with("other_lane", lane);
  });
  return address;
}

// The one lane that issues an operation of the tensor core; throws NotOneThreadError.
inline int issuing_lane(const Step& step) {
  if (count(step.active) != 1) {
    throw Failure("NotOneThreadError").with("threads", int64_t(count(step.active)));
  }
  return lowest(step.active);
}

// The number in cta_group::1 or cta_group::2.  `.sync` and `.aligned`, where a row of the table has
// them as modifiers, are what `Step::aligned` checks.
inline uint32_t group_of(const Operation& operation) {
  operation.get("sync");
  operation.get("aligned");
  return operation.get("cta_group") == "cta_group::2" ? 2 : 1;
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
    if (even + 1 >= all.size()) throw Failure("NoPairError").with("blocks", int64_t(all.size()));
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
