// tcgen05.alloc, tcgen05.dealloc and tcgen05.relinquish_alloc_permit (PTX ISA, "Tensor Memory
// Allocation").
//
// An allocation takes the first columns that are free, and waits while there are too few.  With
// cta_group::2 a warp of each block of the pair asks for it; both wait for each other and get the
// same columns.  Each block gives its own columns back.
#include <cstring>

#include "machine/machine.hpp"
#include "matrices/tensor_access.hpp"
#include "memory/access.hpp"
#include "program/operation.hpp"

namespace emu {

namespace {

std::string describe_columns(const Waiting& waiting) {
  return std::to_string(waiting.object) + " free columns of tensor memory; allocated are " +
         Tensors::of(*waiting.cta).describe_allocations();
}

std::string describe_other(const Waiting& waiting) {
  return "tcgen05.alloc in the other block of the pair, " + waiting.cta->name();
}

std::string describe_warp(const Waiting& waiting) {
  return "the tcgen05.alloc of warp " + std::to_string(waiting.object);
}

uint32_t checked_columns(const Step& step, const Operand& operand) {
  const uint32_t columns = uint32_t(step.uniform(operand));
  const bool power = columns && (columns & (columns - 1)) == 0;
  if (!power || columns < Tensors::UNIT || columns > Tensors::COLUMNS) {
    throw Failure("ColumnCountError").with("columns", columns);
  }
  return columns;
}

// Write the address of new columns to shared memory.
Flow hand_out(const Step& step, uint32_t start) {
  const Operand& operand = step.operand(0);
  const int lane = lowest(step.active);
  const uint64_t address = step.address(operand, lane);
  const Space space = space_named(step.operation().roles[0].space);
  const Place place = reach(step, space, address, sizeof start, Touch::Write, lane);
  std::memcpy(place.bytes, &start, sizeof start);
  step.effect();
  return Flow::Next;
}

Flow allocate_alone(const Step& step, Tensors& tensors, uint32_t columns) {
  const auto start = tensors.find_free(columns);
  if (!start) return step.wait_for({describe_columns, &step.cta(), columns, 0, false});
  tensors.allocate({*start, columns, 1, step.warp.index});
  return hand_out(step, *start);
}

Flow allocate_together(const Step& step, Tensors& tensors, uint32_t columns) {
  const Blocks blocks(step.cta(), 2);
  Cta& other = blocks[1 - step.cta().rank % 2];
  Tensors& others = Tensors::of(other);
  Tensors::Request& mine = tensors.request;
  if (mine.waiting && mine.warp != step.warp.index) {
    return step.wait_for({describe_warp, &step.cta(), mine.warp, 0, false});
  }
  if (mine.granted) {
    const uint32_t start = mine.start;
    mine = {};
    return hand_out(step, start);
  }
  if (!mine.waiting) {
    mine = {true, false, step.warp.index, columns, 0};
    step.effect();
  }
  Tensors::Request& theirs = others.request;
  if (!theirs.waiting || theirs.granted) {
    return step.wait_for({describe_other, &other, 0, 0, false});
  }
  if (theirs.columns != columns) {
    throw Failure("PairColumnsError")
        .with("columns", columns)
        .with("others", theirs.columns);
  }
  const auto start = tensors.find_free(columns, &others);
  if (!start) return step.wait_for({describe_columns, &step.cta(), columns, 0, false});
  tensors.allocate({*start, columns, 2, step.warp.index});
  others.allocate({*start, columns, 2, theirs.warp});
  theirs.granted = true;
  theirs.start = *start;
  mine = {};
  return hand_out(step, *start);
}

Flow allocate(Step& step) {
  if (!step.aligned()) return step.wait_for_lanes(ALL_LANES);
  const uint32_t group = step.code.detail;
  Tensors& tensors = Tensors::of(step.cta());
  const uint32_t columns = checked_columns(step, step.operand(1));
  tensors.check_group(group);
  if (tensors.relinquished) throw Failure("RelinquishedError");
  return group == 1 ? allocate_alone(step, tensors, columns)
                    : allocate_together(step, tensors, columns);
}

Flow deallocate(Step& step) {
  if (!step.aligned()) return step.wait_for_lanes(ALL_LANES);
  const uint32_t group = step.code.detail;
  Tensors& tensors = Tensors::of(step.cta());
  tensors.check_group(group);
  const Cell cell = Cell::at(uint32_t(step.uniform(step.operand(0))));
  const uint32_t columns = checked_columns(step, step.operand(1));
  tensors.check({cell.lane, 1, cell.column, columns});
  tensors.deallocate(cell.column, columns, group);
  step.effect();
  return Flow::Next;
}

Flow relinquish(Step& step) {
  if (!step.aligned()) return step.wait_for_lanes(ALL_LANES);
  const uint32_t group = step.code.detail;
  Tensors& tensors = Tensors::of(step.cta());
  tensors.check_group(group);
  tensors.relinquished = true;
  return Flow::Next;
}

Binding bind_allocate(const Operation& op) { return with_group(op, allocate); }
Binding bind_deallocate(const Operation& op) { return with_group(op, deallocate); }
Binding bind_relinquish(const Operation& op) { return with_group(op, relinquish); }

const Registration registration{
    {"tcgen05.alloc", bind_allocate},
    {"tcgen05.dealloc", bind_deallocate},
    {"tcgen05.relinquish_alloc_permit", bind_relinquish},
};

}  // namespace

}  // namespace emu
