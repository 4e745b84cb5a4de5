// What threads have to do with the launch itself: dependent grids, and clusters that they take over
// before these begin.  PTX ISA, "griddepcontrol" and "clusterlaunchcontrol".
//
// Launches run one after another, so there is never a grid to wait for, and nobody to release.
//
// The response to try_cancel has 16 bytes, whose meaning the PTX ISA leaves open: here the position
// of the cluster's first block, and a word that says whether there is one.
#include <cstring>

#include "copies/landing.hpp"
#include "machine/cluster.hpp"
#include "machine/machine.hpp"
#include "sync/shared_place.hpp"

namespace emu {

namespace {

Flow nothing(Step&) { return Flow::Next; }

struct Response {
  uint32_t x = UINT32_MAX, y = UINT32_MAX, z = UINT32_MAX;  // of a failed request, undefined
  uint32_t canceled = 0;
};
static_assert(sizeof(Response) == 16);

Response request(Machine& machine) {
  const uint32_t number = machine.take_cluster();
  if (number == NOWHERE) return {};
  const Dim3 at = machine.cluster_index(number);
  const Dim3 size = machine.shape.cluster;
  return {at.x * size.x, at.y * size.y, at.z * size.z, 1};
}

template <Space space, bool multicast>
Flow try_cancel(Step& step) {
  for_each(step.active, [&](int lane) {
    const SharedPlace to = own_place(step, space, step.address(step.operand(0), lane));
    const SharedPlace barrier = own_place(step, space, step.address(step.operand(1), lane));
    check_multiple("the address of the response", to.offset, sizeof(Response));
    const uint32_t all = uint32_t((uint64_t(1) << step.cluster().ctas.size()) - 1);
    const Landings landings = multicast ? landings_in(step, to, barrier, all, Pairing::Same)
                                        : landing_at(to, barrier, Pairing::Same);
    for (const Landing& landing : landings) announce(step, landing, sizeof(Response));
    step.cluster().engines.defer(
        step, Engines::ANY, [&machine = step.machine(), landings]() {
          const Response response = request(machine);
          for (const Landing& landing : landings) {
            std::memcpy(landing.reach(sizeof response), &response, sizeof response);
            landing.complete(sizeof response);
          }
        });
  });
  return Flow::Next;
}

Response response_of(const Step& step, const Operand& operand, int lane) {
  Response response;
  std::memcpy(&response, step.lanes<std::byte>(operand) + sizeof response * size_t(lane),
              sizeof response);
  return response;
}

Flow is_canceled(Step& step) {
  Lanes yes = 0;
  for_each(step.active, [&](int lane) {
    if (response_of(step, step.operand(1), lane).canceled) yes |= 1u << lane;
  });
  step.set_predicate(0, yes);
  return Flow::Next;
}

template <uint32_t Response::*axis>
Flow first_block(Step& step) {
  for_each(step.active, [&](int lane) {
    step.write(step.operand(0), lane, response_of(step, step.operand(1), lane).*axis);
  });
  return Flow::Next;
}

// The fourth element has no meaning in the PTX ISA.
Flow first_block_vector(Step& step) {
  const Operand& d = step.operand(0);
  for_each(step.active, [&](int lane) {
    const Response response = response_of(step, step.operand(1), lane);
    const uint32_t values[] = {response.x, response.y, response.z, 0};
    for (uint32_t i = 0; i < 4; ++i) {
      const Operand& element = step.element(d, i);
      if (element.is != Operand::Is::Sink) step.write(element, lane, values[i]);
    }
  });
  return Flow::Next;
}

Binding bind_nothing(const Operation&) { return {nothing, true}; }

Binding bind_try_cancel(const Operation& op) {
  const bool all = op.has("multicast_all");
  const BySpace one_block{try_cancel<Space::Generic, false>, try_cancel<Space::Shared, false>,
                          nullptr};
  const BySpace all_blocks{try_cancel<Space::Generic, true>, try_cancel<Space::Shared, true>,
                           nullptr};
  return {(all ? all_blocks : one_block).of(op.space("d")), true};
}

Binding bind_is_canceled(const Operation&) { return {is_canceled}; }

// get_first_ctaid is the name of the operation where it takes all axes, and else a modifier.
Binding bind_first_block(const Operation& op) {
  if (op.find("d") >= 0 && op.roles[0].count) {
    op.implied({"v4"});
    return {first_block_vector};
  }
  const std::string_view axis = op.get("first_ctaid");
  if (axis.empty()) return {};
  return {axis.back() == 'x'   ? first_block<&Response::x>
          : axis.back() == 'y' ? first_block<&Response::y>
                               : first_block<&Response::z>};
}

const Registration registration{
    {"griddepcontrol.wait", bind_nothing},
    {"griddepcontrol.launch_dependents", bind_nothing},
    {"clusterlaunchcontrol.try_cancel.async", bind_try_cancel},
    {"clusterlaunchcontrol.query_cancel.is_canceled", bind_is_canceled},
    {"clusterlaunchcontrol.query_cancel", bind_first_block},
    {"clusterlaunchcontrol.query_cancel.get_first_ctaid", bind_first_block},
};

}  // namespace

}  // namespace emu
