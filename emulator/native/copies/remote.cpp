// Asynchronous stores and reductions of registers into shared memory of the cluster.  PTX ISA,
// "st.async" and "red.async".
//
// Unlike copies they are of the generic proxy.  The values are those at the issue; each lane's
// operation happens by itself, in any order.
#include <cstring>

#include "copies/bulk_reduction.hpp"
#include "copies/landing.hpp"
#include "machine/cluster.hpp"
#include "memory/elements.hpp"

namespace emu {

namespace {

constexpr uint32_t MOST = 16;  // bytes of an operation

struct Values {
  std::byte bytes[MOST];
  uint32_t size = 0;
};

// Those of an operand, a register or a vector of registers, for one lane.
Values values_of(const Step& step, const Operand& operand, int lane) {
  Values values;
  each_element(step, operand, [&](const Operand& element, uint32_t) {
    const uint64_t value = step.read(element, lane);
    std::memcpy(values.bytes + values.size, &value, element.bits / 8);
    values.size += element.bits / 8;
  });
  return values;
}

// a, b, barrier.  `reduce` is null for a store.
Flow send(Step& step, Space space, Reduce reduce) {
  Cluster& cluster = step.cluster();
  if (cluster.ctas.size() == 1) throw Failure("LoneBlockError");
  for_each(step.active, [&](int lane) {
    const SharedPlace to = shared_place(step, space, step.address(step.operand(0), lane));
    const SharedPlace barrier = shared_place(step, space, step.address(step.operand(2), lane));
    const Values values = values_of(step, step.operand(1), lane);
    check_multiple("the address", to.offset, values.size);
    const Landing landing = landing_at(to, barrier, Pairing::Same).front();
    Races::Issued issued = begin(step, landing);
    issued.async_proxy = false;
    occupy(step, issued, to, values.size, reduce ? Meanwhile::Same : Meanwhile::Poison);
    cluster.counters.traffic.cluster_written += values.size;
    cluster.engines.defer(step, Engines::ANY, [landing, values, reduce]() {
      if (reduce) {
        reduce(landing.reach(values.size, Touch::Atomic), values.bytes, values.size);
      } else {
        std::memcpy(landing.reach(values.size), values.bytes, values.size);
      }
      landing.complete(values.size);
    });
  });
  return Flow::Next;
}

template <Space space>
Flow store(Step& step) {
  return send(step, space, nullptr);
}

template <class F, class T, Space space>
Flow reduce(Step& step) {
  return send(step, space, reduce_elements<F, T>);
}

Binding bind_store(const Operation& op) {
  // As weak as without it; the scope of an operation that no other thread can see before its
  // completion; and the number of elements, which the operand has.
  op.implied({"weak", "cluster", "v2", "v4"});
  return {op.has("cluster_space") ? store<Space::SharedCluster> : store<Space::Generic>, true};
}

Binding bind_reduce(const Operation& op) {
  op.implied({"relaxed", "cluster"});  // the only ones there are
  const bool generic = !op.has("cluster_space");
  return {with_bulk_reduction(reduction_of(op), op.type("b").name,
                              [generic](auto f, auto as) -> Execute {
                                using F = decltype(f);
                                using T = typename decltype(as)::type;
                                return generic ? reduce<F, T, Space::Generic>
                                               : reduce<F, T, Space::SharedCluster>;
                              }),
          true};
}

const Registration registration{
    {"st.async", bind_store},
    {"red.async", bind_reduce},
};

}  // namespace

}  // namespace emu
