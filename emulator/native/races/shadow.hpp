// What the race detector remembers of a memory: for every four bytes the accesses that a later one
// may conflict with.
//
// That is every access that none behind it stands for: of several that are not ordered among each
// other all are kept, as are those to different bytes.  The visitor says which one stands for
// which; here is only how they are kept.  Up to two lie in the cell itself, as most often there are
// a write and a read that came behind it.  More of them are a list, which cells with the same
// history share: a tile that eight warps read costs eight lists and not eight for each cell.
//
// Deliberately does not decide what is a race: the visitor does.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace emu {

// An access: who, when, where in the text, and how.
struct Stamp {
  uint32_t agent = 0;
  uint32_t cluster = 0;
  uint32_t time = 0;  // 0: no access
  uint32_t line : 24;
  uint32_t bytes : 4;     // of the cell
  uint32_t writes : 1;
  uint32_t strength : 2;  // 0: a weak access; else a strong one, 1 + its scope
  uint32_t generic : 1;   // by the generic proxy

  Stamp() : line(0), bytes(0), writes(0), strength(0), generic(0) {}
  bool none() const { return time == 0; }
  // The same access, or one of the same agent that nothing tells from it but its bytes and line.
  bool like(const Stamp& other) const {
    return agent == other.agent && time == other.time && cluster == other.cluster &&
           writes == other.writes && strength == other.strength && generic == other.generic;
  }
  bool same(const Stamp& other) const {
    return like(other) && line == other.line && bytes == other.bytes;
  }
};

// The accesses to a cell, the oldest first.
class History {
 public:
  static constexpr uint32_t FEW = 2;

  const Stamp* begin() const { return many_ ? many_->data() : few_; }
  const Stamp* end() const { return many_ ? many_->data() + many_->size() : few_ + count_; }
  bool same(const History& other) const {
    return many_ == other.many_ && count_ == other.count_ &&
           std::equal(few_, few_ + count_, other.few_,
                      [](const Stamp& a, const Stamp& b) { return a.same(b); });
  }

 private:
  friend class Recorder;
  using List = std::vector<Stamp>;

  Stamp few_[FEW];
  uint32_t count_ = 0;  // of the few; 0 where there is a list
  std::shared_ptr<const List> many_;
};

// Adds accesses to histories.
class Recorder {
 public:
  // Add an access, once `judge(earlier)` has been called for those before it: it says whether
  // whatever conflicts with the earlier one, and is not ordered behind it, will be found by its
  // conflict with the new one; or throws.
  template <class F>
  void add(History& cell, const Stamp& now, F&& judge) {
    if (!cell.many_ && add_to_few(cell, now, judge)) return;
    // The lanes of an atomic operation, one after another.
    if (now.strength && cell.many_ && cell.many_->back().same(now)) return;
    // Neighbouring cells ask the same.  What an agent knows can have grown since: then the answer
    // has more than it needs.
    if (answered_ && asked_now_.same(now) && asked_.same(cell)) {
      cell = answer_;
      return;
    }
    answered_ = false;
    asked_ = cell;
    asked_now_ = now;
    list_.clear();
    uint32_t bytes = now.bytes;
    for (const Stamp& earlier : cell) {
      if (!replaces(now, bytes, earlier, judge)) list_.push_back(earlier);
    }
    list_.push_back(now);
    list_.back().bytes = bytes;
    const bool few = list_.size() <= History::FEW;
    cell.count_ = few ? uint32_t(list_.size()) : 0;
    std::copy_n(list_.begin(), cell.count_, cell.few_);
    cell.many_ = few ? nullptr : std::make_shared<const History::List>(list_);
    answer_ = cell;
    answered_ = true;
  }
  // Ask again, where cells with the same history differ.
  void forget() { answered_ = false; }

 private:
  History asked_, answer_;  // the last question and its answer
  Stamp asked_now_;
  bool answered_ = false;
  std::vector<Stamp> list_;  // room

  // Whether the new access takes the place of an earlier one: one like it becomes a part of it, of
  // which `bytes` are all bytes.
  template <class F>
  static bool replaces(const Stamp& now, uint32_t& bytes, const Stamp& earlier, F&& judge) {
    if (judge(earlier)) return true;
    if (!earlier.like(now)) return false;
    bytes |= earlier.bytes;
    return true;
  }

  // False, and nothing is changed, if they become too many.
  template <class F>
  static bool add_to_few(History& cell, const Stamp& now, F&& judge) {
    uint32_t kept = 0, bytes = now.bytes;
    for (uint32_t i = 0; i < cell.count_; ++i) {
      if (replaces(now, bytes, cell.few_[i], judge)) continue;
      if (kept != i) cell.few_[kept] = cell.few_[i];
      ++kept;
    }
    if (kept == History::FEW) return false;
    cell.few_[kept] = now;
    if (bytes != now.bytes) cell.few_[kept].bytes = bytes;
    cell.count_ = kept + 1;
    return true;
  }
};

// The cells of a memory, made when they are first touched.  Most accesses are of whole tiles, so
// cells lie in blocks, of which one history stands for all while they have the same.
class Shadow {
 public:
  static constexpr uint32_t GRANULE = 4;  // bytes of a cell
  // How many bytes a block has: in shared memory those that a swizzle keeps together, in tensor
  // memory the lanes of a warp, and in global memory what a transaction moves.
  enum class Of : uint32_t { Shared = 16, Tensor = 128, Global = 32 };

  explicit Shadow(Of memory) : bytes_(uint32_t(memory)) {
    while (bytes_ >> shift_ > 1) ++shift_;
  }

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

  static constexpr uint32_t PAGE = 6;  // log2 of its blocks
  uint32_t bytes_, shift_ = 0;         // of a block, and their log2
  std::unordered_map<uint64_t, std::unique_ptr<Block[]>> pages_;
  uint64_t last_ = ~0ull;
  Block* last_page_ = nullptr;

  Block& block_at(uint64_t start) {
    const uint64_t number = start >> (shift_ + PAGE);
    const uint64_t index = start >> shift_ & ((1u << PAGE) - 1);
    if (number == last_) return last_page_[index];
    auto& page = pages_[number];
    if (!page) page.reset(new Block[1u << PAGE]);
    last_ = number;
    last_page_ = page.get();
    return last_page_[index];
  }
};

}  // namespace emu
