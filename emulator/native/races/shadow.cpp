#include "races/shadow.hpp"

namespace emu {

uint32_t ReaderSets::with(const History& cell, const Stamp& read) {
  if (answer_ && asked_.readers == cell.readers && asked_read_.same(read) &&
      (cell.readers || asked_.read.same(cell.read))) {
    return answer_;
  }
  std::vector<Stamp> set = cell.readers ? sets_[cell.readers] : std::vector<Stamp>{cell.read};
  bool found = false;
  for (Stamp& stamp : set) {
    if (stamp.agent != read.agent || stamp.cluster != read.cluster) continue;
    const uint32_t bytes = stamp.bytes | read.bytes;
    stamp = read;
    stamp.bytes = bytes;
    found = true;
  }
  if (!found) set.push_back(read);
  sets_.push_back(std::move(set));
  asked_ = cell;
  asked_read_ = read;
  return answer_ = uint32_t(sets_.size() - 1);
}

}  // namespace emu
