// Tensor memory of a block: 128 lanes of 512 columns of 32 bits, and whose columns are allocated.
//
// An address is `lane << 16 | column` (PTX ISA, "Tensor Memory Addressing").  The lanes of a column
// lie side by side here, as those of a register do; the race detector counts bytes in that order.
//
// Deliberately does not know instructions: what they touch they check through `Tensors::check`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "memory/memory.hpp"

namespace emu {

class Cta;

// An address of tensor memory, taken apart.
struct Cell {
  uint32_t lane = 0, column = 0;

  static Cell at(uint32_t address) { return {address >> 16, address & 0xFFFF}; }
};

// Cells that an instruction touches: a rectangle.
struct Cells {
  uint32_t lane = 0, lanes = 0, column = 0, columns = 0;
};

class Tensors {
 public:
  static constexpr uint32_t LANES = 128;
  static constexpr uint32_t COLUMNS = 512;
  static constexpr uint32_t UNIT = 32;  // columns are allocated in units of this

  explicit Tensors(Cta& cta);

  // The tensor memory of a block, which is made when it is first asked for.
  static Tensors& of(Cta& cta);

  // The lanes of a column, from a lane on.
  uint32_t* cells(uint32_t lane, uint32_t column) { return &cells_[column * LANES + lane]; }
  // Where a cell is for the race detector, in bytes.
  static uint64_t offset(uint32_t lane, uint32_t column) {
    return (uint64_t(column) * LANES + lane) * sizeof(uint32_t);
  }

  // Throws TensorBoundsError for cells that do not exist, UnallocatedColumnsError for those that
  // nobody has allocated.
  void check(const Cells& cells) const;
  // Throws UninitialisedTensorError if some of the cells were never written, where that is checked.
  void check_written(const Cells& cells) const;
  void mark_written(const Cells& cells);

  struct Allocation {
    uint32_t start = 0, columns = 0;
    uint32_t group = 1;  // of cta_group::1 or cta_group::2
    uint32_t warp = 0;   // that asked for it
  };
  // Where so many columns are free: in this block, and with `pair` at the same place in that one.
  std::optional<uint32_t> find_free(uint32_t columns, const Tensors* pair = nullptr) const;
  // Columns of a new allocation hold poison.
  void allocate(const Allocation& allocation);
  // Throws DeallocationError if there is no such allocation.
  void deallocate(uint32_t start, uint32_t columns, uint32_t group);
  // At the end of the block; throws TensorMemoryLeakError.
  void check_freed() const;
  std::string describe_allocations() const;

  // PTX ISA: all instructions of a kernel have the same .cta_group; throws MixedGroupsError.
  void check_group(uint32_t group);

  // A request for columns in both blocks of a pair, which waits for the one of the other block.
  struct Request {
    bool waiting = false, granted = false;
    uint32_t warp = 0, columns = 0, start = 0;
  };
  Request request;
  bool relinquished = false;  // the block may not allocate any more
  std::vector<uint32_t> stores_in_flight;  // by warp: issued by tcgen05.st, not happened yet

 private:
  Cta& cta_;
  std::vector<uint32_t> cells_;
  std::vector<Known> known_;
  std::vector<Allocation> allocations_;
  uint32_t used_ = 0;   // a bit for each unit of columns
  uint32_t group_ = 0;  // that the block's instructions have; 0: none yet
};

}  // namespace emu
