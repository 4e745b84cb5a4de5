// What a launch did: counted by each worker for itself, added up at the end.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace emu {

// Bytes and operations, named as Python reports them.
struct Traffic {
  uint64_t global_read = 0, global_written = 0;      // by ld, st: bytes
  uint64_t shared_read = 0, shared_written = 0;      // by ld, st, ldmatrix, stmatrix
  uint64_t local_read = 0, local_written = 0;
  uint64_t cluster_read = 0, cluster_written = 0;    // shared memory of another block
  uint64_t copied_in = 0;         // by cp.async: bytes
  uint64_t bulk_loaded = 0, bulk_stored = 0, bulk_reduced = 0;        // cp.async.bulk: bytes
  uint64_t tensor_loaded = 0, tensor_stored = 0, tensor_reduced = 0;  // by tensor map: bytes
  uint64_t multicast = 0;         // bytes written beyond those of the first destination
  uint64_t global_reductions = 0, shared_reductions = 0;  // of atom and red: operations

  struct Row {
    const char* name;
    uint64_t Traffic::*member;
  };
  static const std::vector<Row>& rows();  // all of them
};

struct Counters {
  // Executed instructions: [warp of its block][operation].
  std::vector<std::vector<uint64_t>> executed;
  std::map<std::string, uint64_t> matrices;  // "tcgen05.mma cta_group::1 kind::f16 m128n128k16"
  Traffic traffic;

  void add(const Counters& other);
};

}  // namespace emu
