#include "sync/shared_place.hpp"

#include "machine/cluster.hpp"

namespace emu {

SharedPlace shared_place(const Step& step, Space space, uint64_t address) {
  if (space == Space::Shared) return own_place(step, space, address);
  if (space == Space::Generic) {
    if ((address & WINDOW) != SHARED_WINDOW) {
      throw Failure("NotSharedAddressError").hex("address", address);
    }
    address &= 0xFFFF'FFFF;
  }
  return {&shared_owner(step, address), uint32_t(address & SHARED_OFFSET)};
}

SharedPlace own_place(const Step& step, Space space, uint64_t address) {
  const SharedPlace place =
      shared_place(step, space == Space::Shared ? Space::SharedCluster : space, address);
  if (place.cta != &step.cta()) {
    throw Failure("NotOwnBlockError")
        .hex("address", place.cta->window() | place.offset)
        .with("owner", place.cta->name())
        .with("own", step.cta().name());
  }
  return place;
}

}  // namespace emu
