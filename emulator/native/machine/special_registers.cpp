#include "machine/special_registers.hpp"

#include <map>

#include "machine/cluster.hpp"
#include "machine/machine.hpp"
#include "machine/warp.hpp"

namespace emu {

namespace {

struct Who {
  const Warp& warp;
  uint32_t lane;

  const Cta& cta() const { return warp.cta; }
  const Cluster& cluster() const { return warp.cta.cluster; }
  const Machine& machine() const { return warp.cta.cluster.machine; }
  const LaunchShape& shape() const { return machine().shape; }
  uint32_t thread() const { return warp.index * WARP + lane; }
};

using Value = uint64_t (*)(const Who&);

uint32_t clusters_along(uint32_t blocks, uint32_t size) { return blocks / size; }

// PTX ISA, "Special Registers"
const std::map<std::string, Value>& specials() {
  static const std::map<std::string, Value> table{
      {"tid.x", [](const Who& w) -> uint64_t { return w.thread() % w.shape().block.x; }},
      {"tid.y",
       [](const Who& w) -> uint64_t {
         return w.thread() / w.shape().block.x % w.shape().block.y;
       }},
      {"tid.z",
       [](const Who& w) -> uint64_t {
         return w.thread() / (w.shape().block.x * w.shape().block.y);
       }},
      {"ntid.x", [](const Who& w) -> uint64_t { return w.shape().block.x; }},
      {"ntid.y", [](const Who& w) -> uint64_t { return w.shape().block.y; }},
      {"ntid.z", [](const Who& w) -> uint64_t { return w.shape().block.z; }},
      {"ctaid.x", [](const Who& w) -> uint64_t { return w.cta().index.x; }},
      {"ctaid.y", [](const Who& w) -> uint64_t { return w.cta().index.y; }},
      {"ctaid.z", [](const Who& w) -> uint64_t { return w.cta().index.z; }},
      {"nctaid.x", [](const Who& w) -> uint64_t { return w.shape().grid.x; }},
      {"nctaid.y", [](const Who& w) -> uint64_t { return w.shape().grid.y; }},
      {"nctaid.z", [](const Who& w) -> uint64_t { return w.shape().grid.z; }},
      {"clusterid.x", [](const Who& w) -> uint64_t { return w.cluster().index.x; }},
      {"clusterid.y", [](const Who& w) -> uint64_t { return w.cluster().index.y; }},
      {"clusterid.z", [](const Who& w) -> uint64_t { return w.cluster().index.z; }},
      {"nclusterid.x",
       [](const Who& w) -> uint64_t {
         return clusters_along(w.shape().grid.x, w.shape().cluster.x);
       }},
      {"nclusterid.y",
       [](const Who& w) -> uint64_t {
         return clusters_along(w.shape().grid.y, w.shape().cluster.y);
       }},
      {"nclusterid.z",
       [](const Who& w) -> uint64_t {
         return clusters_along(w.shape().grid.z, w.shape().cluster.z);
       }},
      {"cluster_ctaid.x",
       [](const Who& w) -> uint64_t { return w.cta().index.x % w.shape().cluster.x; }},
      {"cluster_ctaid.y",
       [](const Who& w) -> uint64_t { return w.cta().index.y % w.shape().cluster.y; }},
      {"cluster_ctaid.z",
       [](const Who& w) -> uint64_t { return w.cta().index.z % w.shape().cluster.z; }},
      {"cluster_nctaid.x", [](const Who& w) -> uint64_t { return w.shape().cluster.x; }},
      {"cluster_nctaid.y", [](const Who& w) -> uint64_t { return w.shape().cluster.y; }},
      {"cluster_nctaid.z", [](const Who& w) -> uint64_t { return w.shape().cluster.z; }},
      {"cluster_ctarank", [](const Who& w) -> uint64_t { return w.cta().rank; }},
      {"cluster_nctarank", [](const Who& w) -> uint64_t { return w.shape().cluster.count(); }},
      {"is_explicit_cluster",
       [](const Who& w) -> uint64_t { return w.shape().cluster.count() > 1; }},
      {"laneid", [](const Who& w) -> uint64_t { return w.lane; }},
      {"warpid", [](const Who& w) -> uint64_t { return w.warp.index; }},
      {"nwarpid",
       [](const Who& w) -> uint64_t { return (w.shape().block.count() + WARP - 1) / WARP; }},
      {"smid",
       [](const Who& w) -> uint64_t {
         const uint32_t block = w.cluster().number * w.shape().cluster.count() + w.cta().rank;
         return block % w.machine().options.sms;
       }},
      {"nsmid", [](const Who& w) -> uint64_t { return w.machine().options.sms; }},
      {"gridid", [](const Who&) -> uint64_t { return 1; }},
      {"lanemask_eq", [](const Who& w) -> uint64_t { return 1u << w.lane; }},
      {"lanemask_lt", [](const Who& w) -> uint64_t { return (1u << w.lane) - 1; }},
      {"lanemask_le", [](const Who& w) -> uint64_t { return (2ull << w.lane) - 1; }},
      {"lanemask_gt", [](const Who& w) -> uint64_t { return uint32_t(~((2ull << w.lane) - 1)); }},
      {"lanemask_ge", [](const Who& w) -> uint64_t { return uint32_t(~((1u << w.lane) - 1)); }},
      {"dynamic_smem_size", [](const Who& w) -> uint64_t { return w.shape().dynamic_shared; }},
      {"total_smem_size",
       [](const Who& w) -> uint64_t { return w.cta().shared.size() - SHARED_START; }},
      {"aggr_smem_size", [](const Who& w) -> uint64_t { return w.cta().shared.size(); }},
      {"reserved_smem_offset_begin", [](const Who&) -> uint64_t { return 0; }},
      {"reserved_smem_offset_end", [](const Who&) -> uint64_t { return SHARED_START; }},
      {"reserved_smem_offset_cap", [](const Who&) -> uint64_t { return SHARED_START; }},
      {"WARP_SZ", [](const Who&) -> uint64_t { return WARP; }},
  };
  return table;
}

uint64_t special(const std::string& name, const Who& who) {
  const auto found = specials().find(name);
  if (found == specials().end()) {
    throw Failure("UnknownSpecialRegisterError").with("register", "%" + name);
  }
  return found->second(who);
}

}  // namespace

uint64_t initial_value(const Initial& initial, const Warp& warp, int lane) {
  using Is = Initial::Is;
  const Machine& machine = warp.cta.cluster.machine;
  const uint64_t shared = warp.cta.window() + SHARED_START + initial.value;
  switch (initial.is) {
    case Is::Number: return initial.value;
    case Is::Shared: return shared;
    case Is::SharedGeneric: return SHARED_WINDOW | shared;
    case Is::Global:
      return reinterpret_cast<uintptr_t>(machine.module_global.data()) + initial.value;
    case Is::Const:
    case Is::Param:
    case Is::Local: return initial.value;
    case Is::ConstGeneric: return CONST_WINDOW | initial.value;
    case Is::ParamGeneric: return PARAM_WINDOW | initial.value;
    case Is::LocalGeneric: return LOCAL_WINDOW | initial.value;
    case Is::Special: break;
  }
  return special(initial.name, {warp, uint32_t(lane)});
}

}  // namespace emu
