#include "machine/counters.hpp"

namespace emu {

void Counters::add(const Counters& other) {
  for (size_t warp = 0; warp < other.executed.size(); ++warp) {
    if (executed.size() <= warp) executed.resize(warp + 1);
    executed[warp].resize(other.executed[warp].size());
    for (size_t i = 0; i < other.executed[warp].size(); ++i) {
      executed[warp][i] += other.executed[warp][i];
    }
  }
  for (const auto& [name, number] : other.matrices) matrices[name] += number;
  for (const Traffic::Row& row : Traffic::rows()) traffic.*row.member += other.traffic.*row.member;
}

const std::vector<Traffic::Row>& Traffic::rows() {
  static const std::vector<Row> table{
      {"global_read", &Traffic::global_read},
      {"global_written", &Traffic::global_written},
      {"shared_read", &Traffic::shared_read},
      {"shared_written", &Traffic::shared_written},
      {"local_read", &Traffic::local_read},
      {"local_written", &Traffic::local_written},
      {"cluster_read", &Traffic::cluster_read},
      {"cluster_written", &Traffic::cluster_written},
      {"copied_in", &Traffic::copied_in},
      {"bulk_loaded", &Traffic::bulk_loaded},
      {"bulk_stored", &Traffic::bulk_stored},
      {"bulk_reduced", &Traffic::bulk_reduced},
      {"tensor_loaded", &Traffic::tensor_loaded},
      {"tensor_stored", &Traffic::tensor_stored},
      {"tensor_reduced", &Traffic::tensor_reduced},
      {"multicast", &Traffic::multicast},
      {"global_reductions", &Traffic::global_reductions},
      {"shared_reductions", &Traffic::shared_reductions},
  };
  return table;
}

}  // namespace emu
