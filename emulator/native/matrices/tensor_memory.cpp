#include "matrices/tensor_memory.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

#include "machine/cluster.hpp"
#include "machine/machine.hpp"
#include "races/races.hpp"

namespace emu {

namespace {

constexpr uint32_t POISON_WORD = 0x0101'0101u * POISON;

std::string range(uint64_t first, uint64_t count) {
  return std::to_string(first) + "-" + std::to_string(first + count - 1);
}

// The units of columns that some columns lie in, as bits.
uint32_t units_of(uint32_t column, uint32_t columns) {
  const uint32_t first = column / Tensors::UNIT;
  const uint32_t last = (column + columns - 1) / Tensors::UNIT;
  return uint32_t((uint64_t(2) << last) - (uint64_t(1) << first));
}

}  // namespace

Tensors::Tensors(Cta& cta)
    : stores_in_flight(cta.warps.size()),
      cta_(cta),
      cells_(LANES * COLUMNS, POISON_WORD),
      known_(LANES * COLUMNS, Known::Unwritten) {}

Tensors& Tensors::of(Cta& cta) {
  if (!cta.tensors) cta.tensors = std::make_unique<Tensors>(cta);
  return *cta.tensors;
}

void Tensors::check(const Cells& cells) const {
  // In 64 bits: an address or an offset of an instruction may be anything.
  if (uint64_t(cells.lane) + cells.lanes > LANES ||
      uint64_t(cells.column) + cells.columns > COLUMNS) {
    throw Failure("TensorBoundsError")
        .with("lanes", range(cells.lane, cells.lanes))
        .with("columns", range(cells.column, cells.columns));
  }
  if (units_of(cells.column, cells.columns) & ~used_) {
    throw Failure("UnallocatedColumnsError")
        .with("columns", range(cells.column, cells.columns))
        .with("block", cta_.name())
        .with("allocations", describe_allocations());
  }
}

void Tensors::check_written(const Cells& cells) const {
  if (!cta_.cluster.machine.options.uninitialised) return;
  for (uint32_t column = cells.column; column < cells.column + cells.columns; ++column) {
    const Known* known = &known_[column * LANES + cells.lane];
    const Known* end = known + cells.lanes;
    const Known* found = std::find_if(known, end, [](Known k) { return k != Known::Written; });
    if (found == end) continue;
    throw Failure("UninitialisedTensorError")
        .with("lane", cells.lane + (found - known))
        .with("column", column)
        .with("block", cta_.name());
  }
}

void Tensors::mark_written(const Cells& cells) {
  for (uint32_t column = cells.column; column < cells.column + cells.columns; ++column) {
    std::fill_n(&known_[column * LANES + cells.lane], cells.lanes, Known::Written);
  }
}

std::optional<uint32_t> Tensors::find_free(uint32_t columns, const Tensors* pair) const {
  const uint32_t used = used_ | (pair ? pair->used_ : 0);
  for (uint32_t start = 0; start + columns <= COLUMNS; start += UNIT) {
    if (!(units_of(start, columns) & used)) return start;
  }
  return {};
}

void Tensors::allocate(const Allocation& allocation) {
  allocations_.push_back(allocation);
  used_ |= units_of(allocation.start, allocation.columns);
  const size_t first = allocation.start * LANES, count = allocation.columns * LANES;
  std::fill_n(cells_.begin() + first, count, POISON_WORD);
  std::fill_n(known_.begin() + first, count, Known::Unwritten);
}

void Tensors::deallocate(uint32_t start, uint32_t columns, uint32_t group) {
  const auto found = std::find_if(allocations_.begin(), allocations_.end(), [&](const auto& one) {
    return one.start == start && one.columns == columns && one.group == group;
  });
  if (found == allocations_.end()) {
    throw Failure("DeallocationError")
        .with("columns", range(start, columns))
        .with("group", group)
        .with("allocations", describe_allocations());
  }
  allocations_.erase(found);
  used_ &= ~units_of(start, columns);
  if (Races* races = cta_.cluster.races.get()) {
    const uint64_t bytes = offset(0, start + columns) - offset(0, start);
    races->forget({Region::Is::Tensor, &cta_}, offset(0, start), bytes);
  }
}

void Tensors::check_freed() const {
  if (allocations_.empty()) return;
  throw Failure("TensorMemoryLeakError")
      .with("block", cta_.name())
      .with("allocations", describe_allocations());
}

std::string Tensors::describe_allocations() const {
  std::string text;
  for (const Allocation& one : allocations_) {
    if (!text.empty()) text += ", ";
    text += "columns " + range(one.start, one.columns) + " (cta_group::" +
            std::to_string(one.group) + ", by warp " + std::to_string(one.warp) + ")";
  }
  return text.empty() ? "none" : text;
}

void Tensors::check_group(uint32_t group) {
  if (group_ == 0) group_ = group;
  if (group_ == group) return;
  throw Failure("MixedGroupsError").with("group", group).with("other", group_);
}

}  // namespace emu
