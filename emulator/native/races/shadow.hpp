// What the race detector remembers of a memory: for every four bytes the last write, and the reads
// since then.
//
// Reads that are not ordered among each other are kept as a set; cells with the same history share
// one, so that a tile that eight warps read costs eight sets and not eight for each cell.  Of
// writes to different bytes of a cell the last one is remembered.
//
// Deliberately does not decide what is a race: the visitor does.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace emu {

// An access: who, when, where in the text, and how.
struct Stamp {
  uint32_t agent = 0;
  uint32_t cluster = 0;
  uint32_t time = 0;  // 0: no access
  uint32_t line : 24;
  uint32_t bytes : 4;    // of the cell
  uint32_t atomic : 1;   // a strong or atomic access: such do not conflict with each other
  uint32_t generic : 1;  // by the generic proxy

  Stamp() : line(0), bytes(0), atomic(0), generic(0) {}
  bool none() const { return time == 0; }
  bool same(const Stamp& other) const {
    return agent == other.agent && time == other.time && cluster == other.cluster &&
           line == other.line && bytes == other.bytes && atomic == other.atomic &&
           generic == other.generic;
  }
};

struct History {
  Stamp write;
  Stamp read;          // the only one, if `readers` is 0
  uint32_t readers = 0;  // number of a set

  bool same(const History& other) const {
    return readers == other.readers && write.same(other.write) && read.same(other.read);
  }
};

constexpr uint32_t GRANULE = 4;  // bytes

// Sets of reads, numbered from 1.
class ReaderSets {
 public:
  ReaderSets() : sets_(1) {}
  const std::vector<Stamp>& at(uint32_t number) const { return sets_[number]; }
  // The set of a cell's reads and another one, which takes the place of one by the same agent.
  uint32_t with(const History& cell, const Stamp& read);
  size_t size() const { return sets_.size(); }

 private:
  std::vector<std::vector<Stamp>> sets_;
  // The last question and its answer: neighbouring cells ask the same.
  History asked_;
  Stamp asked_read_;
  uint32_t answer_ = 0;
};

// The cells of a memory, made when they are first touched.  Most accesses are of whole tiles, so
// cells lie in blocks, of which one history stands for all while they have the same.
class Shadow {
 public:
  static constexpr uint32_t PAGE = 64;  // blocks
  // What matrix products read of a row of shared memory, and the lanes of a warp in tensor memory.
  static constexpr uint32_t ROW = 32, LANES = 32 * GRANULE;

  // With so many bytes in a block: 32 cells at most, and a power of 2.
  explicit Shadow(uint32_t bytes = ROW) : bytes_(bytes) {}

  // Call visit(history, mask, at, size) for what a range touches: `size` bytes of the range from
  // `at` on.  That is a whole block (`mask` has all bits), or a part of one cell, of which `mask`
  // has a bit for each byte.
  template <class Visit>
  void visit(uint64_t offset, uint64_t bytes, Visit&& visit) {
    uint64_t at = offset;
    const uint64_t stop = offset + bytes;
    while (at < stop) {
      const uint64_t start = at & ~uint64_t{bytes_ - 1};
      Block& block = block_at(start);
      const uint64_t next = std::min<uint64_t>(stop, start + bytes_);
      const bool whole = next - at == bytes_;
      if (whole && !block.cells) {
        visit(block.all, WHOLE, at, bytes_);
        at = next;
        continue;
      }
      if (!block.cells) block.split(bytes_ / GRANULE);
      while (at < next) {
        const uint32_t first = at % GRANULE;
        const uint32_t last = uint32_t(std::min<uint64_t>(next - at + first, GRANULE));
        visit(block.cells[(at - start) / GRANULE], (1u << last) - (1u << first), at, last - first);
        at += last - first;
      }
      if (whole) block.join(bytes_ / GRANULE);
    }
  }

  void clear(uint64_t offset, uint64_t bytes) {
    visit(offset, bytes, [](History& cell, uint32_t, uint64_t, uint32_t) { cell = History(); });
  }

 private:
  static constexpr uint32_t WHOLE = (1u << GRANULE) - 1;

  struct Block {
    History all;                       // if there are no cells
    std::unique_ptr<History[]> cells;

    void split(uint32_t count) {
      cells.reset(new History[count]);
      std::fill_n(cells.get(), count, all);
    }
    void join(uint32_t count) {
      for (uint32_t i = 1; i < count; ++i) {
        if (!cells[i].same(cells[0])) return;
      }
      all = cells[0];
      cells.reset();
    }
  };

  uint32_t bytes_;  // of a block
  std::unordered_map<uint64_t, std::unique_ptr<Block[]>> pages_;
  uint64_t last_ = ~0ull;
  Block* last_page_ = nullptr;

  Block& block_at(uint64_t start) {
    const uint64_t number = start / (PAGE * bytes_);
    const uint64_t index = start / bytes_ % PAGE;
    if (number == last_) return last_page_[index];
    auto& page = pages_[number];
    if (!page) page.reset(new Block[PAGE]);
    last_ = number;
    last_page_ = page.get();
    return last_page_[index];
  }
};

}  // namespace emu
