// Shared memory with what is known of its bytes, and the look-up of allocations.
#include "memory/memory.hpp"

#include <algorithm>
#include <cstring>

namespace emu {

SharedMemory::SharedMemory(uint32_t size)
    : bytes_(size, std::byte{POISON}), known_(size, Known::Unwritten) {}

bool SharedMemory::all(uint32_t offset, uint32_t bytes, Known known) const {
  const Known* first = known_.data() + offset;
  return std::all_of(first, first + bytes, [known](Known byte) { return byte == known; });
}

void SharedMemory::mark(uint32_t offset, uint32_t bytes, Known known) {
  std::memset(known_.data() + offset, int(known), bytes);
}

void SharedMemory::poison(uint32_t offset, uint32_t bytes, Known known) {
  std::memset(bytes_.data() + offset, POISON, bytes);
  mark(offset, bytes, known);
}

GlobalMemory::GlobalMemory(std::vector<Range> ranges) : ranges_(std::move(ranges)) {
  ranges_.erase(std::remove_if(ranges_.begin(), ranges_.end(),
                               [](const Range& range) { return range.stop <= range.start; }),
                ranges_.end());
  std::sort(ranges_.begin(), ranges_.end(),
            [](const Range& a, const Range& b) { return a.start < b.start; });
  uint64_t reach = 0;
  for (const Range& range : ranges_) reach_.push_back(reach = std::max(reach, range.stop));
}

const GlobalMemory::Range* GlobalMemory::find(uint64_t address, uint64_t bytes) const {
  if (address + bytes < address) return nullptr;
  const auto after =
      std::upper_bound(ranges_.begin(), ranges_.end(), address,
                       [](uint64_t value, const Range& range) { return value < range.start; });
  // Of the ranges that begin in time, the last ones first, until none reaches far enough.
  for (size_t i = size_t(after - ranges_.begin()); i-- && reach_[i] >= address + bytes;) {
    if (ranges_[i].stop >= address + bytes) return &ranges_[i];
  }
  return nullptr;
}

const GlobalMemory::Range* GlobalMemory::nearest(uint64_t address) const {
  const auto distance = [address](const Range& range) {
    if (address < range.start) return range.start - address;
    return address >= range.stop ? address - range.stop + 1 : 0;
  };
  const auto closest = std::min_element(
      ranges_.begin(), ranges_.end(),
      [&](const Range& a, const Range& b) { return distance(a) < distance(b); });
  return closest == ranges_.end() ? nullptr : &*closest;
}

}  // namespace emu
