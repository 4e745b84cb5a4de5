#include "copies/bulk_groups.hpp"

#include <utility>

#include "machine/cluster.hpp"
#include "races/races.hpp"

namespace emu {

void BulkGroups::issue(const Step& step, int lane, std::function<Bytes()> read,
                       std::function<void(const Bytes&)> write) {
  threads_[lane].line = step.code.line;
  std::shared_ptr<Left>& open = threads_[lane].open;
  if (!open) open = std::make_shared<Left>();
  const std::shared_ptr<Left> left = open;
  ++left->reading;
  ++left->writing;
  // A queue of its own keeps the steps in order.  Numbers of queues come back after more operations
  // than are ever under way.
  constexpr uint32_t numbers = 1 << 24;
  const uint32_t owner = step.warp.index * numbers + operations_++ % numbers;
  const Engines::Queue queue = Engines::queue(Engines::Kind::BulkStore, step.cta().rank, owner);
  Cluster& cluster = step.cluster();
  const auto bytes = std::make_shared<Bytes>();
  const Cta& cta = step.cta();
  cluster.engines.defer(step, queue, [&cta, &cluster, left, bytes, read = std::move(read)]() {
    if (left->committed && !cta.threads_alive()) {
      throw Failure("ExitedSourceError").with("block", cta.name());
    }
    *bytes = read();
    --left->reading;
    ++cluster.version;
  });
  cluster.engines.defer(step, queue, [&cluster, left, bytes, write = std::move(write)]() {
    write(*bytes);
    --left->writing;
    ++cluster.version;
  });
}

void BulkGroups::commit(const Step& step, int lane) {
  const auto found = threads_.find(lane);
  // A group of nothing is complete; it counts only behind groups that are not.
  if (found == threads_.end()) return;
  OfThread& thread = found->second;
  if (!thread.open && thread.committed.empty()) return;
  Group group{std::exchange(thread.open, nullptr), std::exchange(thread.line, 0), 0, 0};
  if (!group.left) group.left = std::make_shared<Left>();
  group.left->committed = true;
  if (Races* races = step.races()) {
    group.read_mark = races->mark(step, Races::Stream::BulkRead);
    group.write_mark = races->mark(step, Races::Stream::BulkWrite);
  }
  thread.committed.push_back(std::move(group));
}

bool BulkGroups::complete(const Step& step, int lane, uint32_t count, bool read_only) {
  const auto found = threads_.find(lane);
  if (found == threads_.end()) return true;
  OfThread& thread = found->second;
  auto& committed = thread.committed;
  if (committed.size() <= count) return true;
  const size_t needed = committed.size() - count;
  for (size_t i = read_only ? thread.read : 0; i < needed; ++i) {
    const Left& left = *committed[i].left;
    if (read_only ? left.reading : left.writing) return false;
  }
  Races* races = step.races();
  if (races) {
    const Group& last = committed[needed - 1];
    races->complete(step, Races::Stream::BulkRead, last.read_mark);
    if (!read_only) races->complete(step, Races::Stream::BulkWrite, last.write_mark);
  }
  if (thread.read < needed) thread.read = needed;
  // Those that have happened and were not waited for stay for the race detector, which takes no
  // notice of when things happen to happen.
  for (size_t i = 0; i < needed && !(races && read_only) && !committed.front().left->writing; ++i) {
    committed.pop_front();
    --thread.read;
  }
  return true;
}

void BulkGroups::check_read(const Warp& warp) const {
  for (const auto& [lane, thread] : threads_) {
    for (size_t i = thread.read; i < thread.committed.size(); ++i) {
      const uint32_t line = thread.committed[i].line;
      if (!line) continue;
      Failure failure = Failure("ExitedSourceError")
                            .with("who", warp.name(1u << lane))
                            .with("block", warp.cta.name());
      failure.line = line;
      throw failure;
    }
  }
}

std::string BulkGroups::describe(int lane) const {
  const auto found = threads_.find(lane);
  uint32_t reading = 0, writing = 0;
  if (found != threads_.end()) {
    for (const Group& group : found->second.committed) {
      reading += group.left->reading;
      writing += group.left->writing;
    }
  }
  return "bulk copies of lane " + std::to_string(lane) + " (" + std::to_string(reading) +
         " to be read, " + std::to_string(writing) + " to be written)";
}

// ---- instructions

namespace {

std::string describe_wait(const Waiting& waiting) {
  const Warp& warp = *waiting.cta->warps[waiting.object];
  return warp.bulk_groups.describe(int(waiting.detail));
}

Flow commit(Step& step) {
  for_each(step.active, [&](int lane) { step.warp.bulk_groups.commit(step, lane); });
  return Flow::Next;
}

template <bool read_only>
Flow wait(Step& step) {
  const uint32_t count = uint32_t(step.operand(0).value);
  int missing = -1;
  for_each(step.active, [&](int lane) {
    if (!step.warp.bulk_groups.complete(step, lane, count, read_only)) missing = lane;
  });
  if (missing < 0) return Flow::Next;
  return step.wait_for({describe_wait, &step.cta(), step.warp.index, uint64_t(missing), false});
}

Binding bind_commit(const Operation&) { return {commit, true}; }

Binding bind_wait(const Operation& op) {
  return {op.has("read") ? wait<true> : wait<false>, true};
}

const Registration registration{
    {"cp.async.bulk.commit_group", bind_commit},
    {"cp.async.bulk.wait_group", bind_wait},
};

}  // namespace

}  // namespace emu
