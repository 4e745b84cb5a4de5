// Asynchronous work: copies and matrix products that were issued and have not happened yet.
//
// Work of one queue happens in order; queue ANY has no order at all.  When work happens is for the
// schedule: at once ("eager"), when nothing else can ("late"), or at random.  What an operation
// reads and writes it reads and writes when it happens; what it knew when it was issued is what the
// work captured.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>

#include "machine/lanes.hpp"
#include "machine/random.hpp"

namespace emu {

class Step;
class Warp;

class Engines {
 public:
  using Work = std::function<void()>;
  using Queue = uint64_t;
  static constexpr Queue ANY = 0;

  // Who may have a queue of its own: the tensor core of a block, the copies of a warp, ...
  enum class Kind : uint8_t { TensorCore = 1, BulkStore, AsyncCopy, Wgmma, TensorStore };
  static Queue queue(Kind kind, uint32_t cta_rank, uint32_t owner = 0) {
    return uint64_t(kind) << 56 | uint64_t(cta_rank) << 32 | (owner + 1);
  }

  explicit Engines(bool at_once) : at_once_(at_once) {}

  // Add work that an instruction issued; a failure in it is reported at that instruction.
  void defer(const Step& step, Queue queue, Work work);
  bool idle() const { return waiting_ == 0; }
  uint64_t waiting() const { return waiting_; }
  // Do the work that is next in some queue: a random one, or the first.
  void run_one(Random* random = nullptr);

 private:
  struct Item {
    Work work;
    const Warp* warp;  // that issued it
    Lanes lanes;
    uint32_t line;
  };
  bool at_once_;
  bool running_ = false;
  uint64_t waiting_ = 0, number_ = 0;
  std::map<Queue, std::deque<Item>> queues_;  // no empty ones; work without order is alone in one
};

}  // namespace emu
