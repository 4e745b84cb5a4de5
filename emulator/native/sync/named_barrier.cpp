// The 16 barriers of a block, which count threads.  PTX ISA, "barrier".
//
// A warp counts as 32 threads, once all of its threads that have not exited are here; those of
// `.aligned` forms (and of `bar`, which is one) come together, others one group after another.
// Where no number is given, all threads of the block have to come, but for those that have exited;
// a number is what it says, and exited threads do not lower it.  A warp that arrives may come once
// more, to wait, and counts twice (the epilogue of flash-attn-4's backward: a warp that stores for
// all arrives for the store and waits with the others).  What else the PTX ISA leaves undefined is
// an error: a warp that comes twice before the barrier completes, numbers that differ, bar.red
// among other forms.
#include <string>

#include "machine/cluster.hpp"
#include "machine/machine.hpp"
#include "races/races.hpp"

namespace emu {

// ---- objects

namespace {

uint32_t threads_of(const Cta& cta) { return uint32_t(cta.warps.size()) * WARP; }

}  // namespace

void NamedBarrier::check(const Step& step, uint32_t number, const Arrival& arrival,
                         Lanes fresh) const {
  const Cta& cta = step.cta();
  const uint32_t threads = arrival.threads ? arrival.threads : threads_of(cta);
  if (threads % WARP || threads > 2 * threads_of(cta)) {  // warps may count twice
    throw Failure("BarrierThreadsError")
        .with("number", number)
        .with("threads", threads)
        .with("all", threads_of(cta));
  }
  if (!expected_) return;
  if (threads != expected_) {
    throw Failure("DifferentThreadsError")
        .with("barrier", describe(cta, number))
        .with("threads", threads)
        .with("expected", expected_);
  }
  if (arrival.use != use_) throw Failure("MixedUseError").with("barrier", describe(cta, number));
  const uint32_t warp = step.warp.index;
  const bool arrived = (counted_ & ~before_) >> warp & 1 && !here_[warp];
  if (arrived && arrival.waits) return;
  if (counted_ >> warp & 1 || here_[warp] & fresh) {
    throw Failure("SecondArrivalError").with("barrier", describe(cta, number));
  }
}

uint32_t NamedBarrier::came() const { return uint32_t(count(counted_) + count(before_)) * WARP; }

bool NamedBarrier::complete(const Cta& cta) const {
  if (!expected_) return false;
  if (came() >= expected_) return true;
  if (!all_) return false;
  for (const auto& warp : cta.warps) {
    if (!(counted_ >> warp->index & 1) && warp->alive()) return false;
  }
  return true;
}

void NamedBarrier::release() {
  const uint32_t result = use_ == Use::And  ? cleared_ == 0
                          : use_ == Use::Or ? set_ != 0
                                            : set_;
  for (int warp = 0; warp < WARPS; ++warp) {
    if (!((counted_ | before_) >> warp & 1)) continue;  // lanes of a warp that is not complete stay
    if (here_[warp]) results_[warp] = result;
    released_[warp] |= here_[warp];
    here_[warp] = arriving_[warp] = 0;
  }
  counted_ = before_ = expected_ = set_ = cleared_ = 0;
  all_ = false;
  completed.join(arriving);
  arriving.clear();
}

bool NamedBarrier::come(const Step& step, uint32_t number, const Arrival& arrival) {
  const uint32_t warp = step.warp.index;
  Lanes& here = here_[warp];
  Lanes& released = released_[warp];
  const Lanes fresh = step.active & ~here & ~released;
  if (fresh) {
    check(step, number, arrival, fresh);
    before_ |= counted_ & 1u << warp;
    counted_ &= ~(1u << warp);
    expected_ = arrival.threads ? arrival.threads : threads_of(step.cta());
    all_ |= arrival.threads == 0;
    use_ = arrival.use;
    here |= fresh;
    if (!arrival.waits) arriving_[warp] |= fresh;
    set_ += uint32_t(count(fresh & arrival.predicate));
    cleared_ += uint32_t(count(fresh & ~arrival.predicate));
    if (Races* races = step.races()) races->release(step, arriving);
    step.effect();
  }
  // The lanes that are missing may have exited since.
  if (here && !(step.warp.alive() & ~here) && !(counted_ >> warp & 1)) {
    counted_ |= 1u << warp;
    released |= arriving_[warp];
    here &= ~arriving_[warp];
    arriving_[warp] = 0;
    step.effect();
  }
  if (complete(step.cta())) {
    release();
    step.effect();
  }
  if (step.active & ~released) return false;
  released &= ~step.active;
  if (arrival.waits && step.races()) step.races()->acquire(step, completed);
  return true;
}

std::string NamedBarrier::describe(const Cta& cta, uint32_t number) const {
  std::string text = "barrier " + std::to_string(number) + " of " + cta.name();
  if (!expected_) return text + " (nobody is there)";
  return text + " (" + std::to_string(came()) + " of " + std::to_string(expected_) +
         " threads came: " + numbered("warp", counted_ | before_) + ")";
}

// ---- instructions

namespace {

using Use = NamedBarrier::Use;

std::string describe_wait(const Waiting& waiting) {
  const uint32_t number = uint32_t(waiting.object);
  return waiting.cta->barriers[number].describe(*waiting.cta, number);
}

// The number of the barrier, and of the threads that come to it.
struct Named {
  uint32_t number, threads;
};

Named named(const Step& step, const Operand& barrier, const Operand* threads) {
  const uint64_t number = step.uniform(barrier);
  if (number >= 16) throw Failure("BarrierNumberError").with("number", int64_t(number));
  if (!threads || threads->is == Operand::Is::Missing) return {uint32_t(number), 0};
  const uint64_t count = step.uniform(*threads);
  if (count == 0 || count > UINT16_MAX) {
    throw Failure("BarrierThreadsError")
        .with("number", int64_t(number))
        .with("threads", int64_t(count))
        .with("all", threads_of(step.cta()));
  }
  return {uint32_t(number), uint32_t(count)};
}

template <bool aligned, bool waits>
Flow meet(Step& step) {
  if (aligned && !step.aligned()) return step.wait_for_lanes(ALL_LANES);
  const auto [number, threads] = named(step, step.operand(0), &step.operand(1));
  NamedBarrier& barrier = step.cta().barriers[number];
  if (barrier.come(step, number, {threads, Use::Plain, waits, 0})) return Flow::Next;
  return step.wait_for({describe_wait, &step.cta(), number, 0, false});
}

template <bool aligned, Use use>
Flow reduce(Step& step) {
  if (aligned && !step.aligned()) return step.wait_for_lanes(ALL_LANES);
  // d, a{, b}, c
  const int last = step.operation().roles.size() == 4 ? 3 : 2;
  const auto [number, threads] =
      named(step, step.operand(1), last == 3 ? &step.operand(2) : nullptr);
  NamedBarrier& barrier = step.cta().barriers[number];
  if (!barrier.come(step, number, {threads, use, true, step.predicate(last)})) {
    return step.wait_for({describe_wait, &step.cta(), number, 0, false});
  }
  const uint32_t result = barrier.result(step.warp.index);
  if (use == Use::Count) {
    for_each(step.active, [&](int lane) { step.write(step.operand(0), lane, result); });
  } else {
    step.set_predicate(0, result ? ALL_LANES : 0);
  }
  return Flow::Next;
}

template <bool waits>
Binding bind_bar(const Operation&) {
  return {meet<true, waits>, true};
}

template <bool waits>
Binding bind_barrier(const Operation& op) {
  return {op.has("aligned") ? meet<true, waits> : meet<false, waits>, true};
}

template <bool always_aligned>
Binding bind_reduce(const Operation& op) {
  const bool aligned = op.has("aligned") || always_aligned;
  const std::string_view kind = op.get("and_or");
  if (op.has("popc")) {
    return {aligned ? reduce<true, Use::Count> : reduce<false, Use::Count>, true};
  }
  if (kind == "and") return {aligned ? reduce<true, Use::And> : reduce<false, Use::And>, true};
  return {aligned ? reduce<true, Use::Or> : reduce<false, Use::Or>, true};
}

const Registration registration{
    {"bar.sync", bind_bar<true>},
    {"bar.arrive", bind_bar<false>},
    {"bar.cta.sync", bind_bar<true>},
    {"bar.cta.arrive", bind_bar<false>},
    {"barrier.sync", bind_barrier<true>},
    {"barrier.arrive", bind_barrier<false>},
    {"barrier.cta.sync", bind_barrier<true>},
    {"barrier.cta.arrive", bind_barrier<false>},
    {"bar.red", bind_reduce<true>},
    {"barrier.red", bind_reduce<false>},
};

}  // namespace

}  // namespace emu
