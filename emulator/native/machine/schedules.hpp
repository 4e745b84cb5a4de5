// Whose turn it is: the order in which warps run and asynchronous work happens.
//
// A correct kernel computes the same under every schedule; a wrong one is found by those that it
// was not written for.
#pragma once

#include <cstdint>
#include <memory>

namespace emu {

class Cluster;
enum class Schedule : uint8_t;

class Agenda {
 public:
  virtual ~Agenda() = default;
  // Run one warp for a while, or some asynchronous work.  Returns the number of instructions, or
  // of pieces of work; 0 if nothing can run.
  virtual uint64_t turn(Cluster& cluster) = 0;
};

std::unique_ptr<Agenda> make_agenda(Schedule schedule);

}  // namespace emu
