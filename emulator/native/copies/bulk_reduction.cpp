#include "copies/bulk_reduction.hpp"

#include <mutex>

#include "machine/machine.hpp"

namespace emu {

Reduce reduction_named(std::string_view operation, std::string_view type) {
  return with_bulk_reduction(operation, type, [](auto f, auto as) -> Reduce {
    return reduce_elements<decltype(f), typename decltype(as)::type>;
  });
}

void reduce_global(Machine& machine, Reduce reduce, std::byte* to, const std::byte* from,
                   size_t bytes) {
  std::unique_lock<std::mutex> lock;
  if (machine.options.workers > 1) lock = std::unique_lock<std::mutex>(machine.global_mutex);
  reduce(to, from, bytes);
}

}  // namespace emu
