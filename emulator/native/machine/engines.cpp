#include "machine/engines.hpp"

#include <utility>

#include "machine/cluster.hpp"
#include "machine/warp.hpp"

namespace emu {

void Engines::defer(const Step& step, Queue queue, Work work) {
  const uint64_t number = ++number_;
  if (queue == ANY) queue = number;  // kinds begin at bit 56, so that these are of no other queue
  ++step.cluster().version;
  const Warp* warp = &step.warp;
  auto at = queues_.try_emplace(queue).first;
  at->second.push_back({std::move(work), warp, warp->groups[warp->current].lanes, step.code.line});
  ++waiting_;
  // Work may give rise to other work, which then waits for its turn.
  if (at_once_ && !running_) {
    while (waiting_) run_one();
  }
}

void Engines::run_one(Random* random) {
  auto at = queues_.begin();
  if (random && queues_.size() > 1) std::advance(at, random->below(uint32_t(queues_.size())));
  Item item = std::move(at->second.front());
  at->second.pop_front();
  if (at->second.empty()) queues_.erase(at);
  --waiting_;
  running_ = true;
  try {
    item.work();
  } catch (Failure& failure) {
    running_ = false;
    if (!failure.line) failure.line = item.line;
    failure.fields.emplace("who", item.warp->name(item.lanes));
    throw;
  }
  running_ = false;
}

}  // namespace emu
