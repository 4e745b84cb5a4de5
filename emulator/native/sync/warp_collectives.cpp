// Instructions in which the lanes of a warp see each other: activemask, elect, shfl, vote, match,
// redux and bar.warp.sync.
//
// All but activemask name their members by a mask.  Lanes wait until every member that has not
// exited is here with the same mask; lanes that are here with several masks, each disjoint from the
// others, are several collectives at once.  A lane that is not a member of its own mask is an
// error, and so are members here with different masks (the PTX ISA leaves both undefined).
//
// Memory needs no ordering here: the lanes of a warp execute in the order of the program.
#include <cstring>
#include <string_view>
#include <type_traits>

#include "arithmetic/formats.hpp"
#include "arithmetic/dispatch.hpp"
#include "arithmetic/lane_loops.hpp"
#include "machine/warp.hpp"
#include "memory/memory.hpp"

namespace emu {

namespace {

// ---- members

// The lanes for which two numbers are equal.
template <class T>
Lanes equal_lanes(Lanes among, const T* values, T value) {
  Lanes result = 0;
  each_lane(among, [&](int lane) { result |= Lanes(values[lane] == value) << lane; });
  return result;
}

[[noreturn]] void report_outsiders(Lanes lanes, Lanes members) {
  throw Failure("NotMemberError").hex("lanes", lanes).hex("members", members);
}

[[noreturn]] void report_disagreement(const uint32_t* members, Lanes mask, Lanes others) {
  throw Failure("DifferentMembersError")
      .hex("members", mask)
      .with("other_lane", lowest(others))
      .hex("other_members", members[lowest(others)]);
}

// Calls f(lanes) for the lanes of each collective, once they are complete.
template <class F>
Flow collectively(Step& step, int members_at, F&& f) {
  const uint32_t* members = step.lanes<uint32_t>(members_at);
  Lanes awaited = 0;
  for (Lanes rest = step.active; rest;) {
    const Lanes mask = members[lowest(rest)];
    const Lanes group = equal_lanes(rest, members, mask);
    if (group & ~mask) report_outsiders(group & ~mask, mask);
    if (mask & step.active & ~group) {
      report_disagreement(members, mask, mask & step.active & ~group);
    }
    awaited |= mask;
    rest &= ~group;
  }
  if (!step.together(awaited)) return step.wait_for_lanes(awaited);
  for (Lanes rest = step.active; rest;) {
    const Lanes group = members[lowest(rest)] & rest;
    rest &= ~group;
    f(group);
  }
  return Flow::Next;
}

void set_all(uint32_t* d, Lanes lanes, uint32_t value) {
  each_lane(lanes, [=](int lane) { d[lane] = value; });
}

Flow activemask(Step& step) {
  set_all(step.lanes<uint32_t>(0), step.active, step.active);
  return Flow::Next;
}

// Leader of a mask: the lowest of its lanes.
Flow elect(Step& step) {
  Lanes leaders = 0;
  const Flow flow = collectively(step, 2, [&](Lanes group) {
    set_all(step.lanes<uint32_t>(0), group, uint32_t(lowest(group)));
    leaders |= 1u << lowest(group);
  });
  if (flow == Flow::Next) step.set_predicate(1, leaders);
  return flow;
}

// ---- shfl

// The bits of operand c that confine a lane to its segment of the warp.
struct Segment {
  int first;  // what the lane's number has in the bits of the segment mask
  int limit;
  int offset_bits;

  Segment(int lane, uint32_t c) {
    const int mask = int(c >> 8 & 31);
    first = lane & mask;
    limit = first | (int(c & 31) & ~mask);
    offset_bits = ~mask & 31;
  }
};

// The lane from which a lane reads, and whether it is in range.
struct Source {
  int lane;
  bool in_range;
};

struct Up {
  static Source source(int lane, int b, const Segment& segment) {
    return {lane - b, lane - b >= segment.limit};
  }
};
struct Down {
  static Source source(int lane, int b, const Segment& segment) {
    return {lane + b, lane + b <= segment.limit};
  }
};
struct Butterfly {
  static Source source(int lane, int b, const Segment& segment) {
    return {lane ^ b, (lane ^ b) <= segment.limit};
  }
};
struct Index {
  static Source source(int, int b, const Segment& segment) {
    const int lane = segment.first | (b & segment.offset_bits);
    return {lane, lane <= segment.limit};
  }
};

constexpr uint32_t POISON_WORD = 0x0101'0101u * POISON;

// d|p, a, b, c, members.  A lane out of range reads itself.  What is read of a lane that takes no
// part is undefined: here poison.
template <class Mode>
Flow shfl(Step& step) {
  uint32_t* d = step.lanes<uint32_t>(0);
  const uint32_t* b = step.lanes<uint32_t>(3);
  const uint32_t* c = step.lanes<uint32_t>(4);
  uint32_t values[WARP];  // operand a may be the register of d
  std::memcpy(values, step.lanes<uint32_t>(2), sizeof values);
  Lanes in_range = 0;
  const Flow flow = collectively(step, 5, [&](Lanes group) {
    int from[WARP];
    each_lane(group, [&](int lane) {
      const Source source = Mode::source(lane, int(b[lane] & 31), Segment(lane, c[lane]));
      from[lane] = source.in_range ? source.lane & 31 : lane;
      in_range |= Lanes(source.in_range) << lane;
    });
    each_lane(group, [&](int lane) {
      d[lane] = group >> from[lane] & 1 ? values[from[lane]] : POISON_WORD;
    });
  });
  if (flow == Flow::Next) step.set_predicate(1, in_range);
  return flow;
}

// ---- vote and match

struct All {
  static bool holds(Lanes votes, Lanes group) { return votes == group; }
};
struct Any {
  static bool holds(Lanes votes, Lanes) { return votes != 0; }
};
struct Uniform {
  static bool holds(Lanes votes, Lanes group) { return votes == 0 || votes == group; }
};

template <class Mode>
Flow vote(Step& step) {
  const Lanes votes = step.predicate(1);
  Lanes result = 0;
  const Flow flow = collectively(step, 2, [&](Lanes group) {
    if (Mode::holds(votes & group, group)) result |= group;
  });
  if (flow == Flow::Next) step.set_predicate(0, result);
  return flow;
}

Flow ballot(Step& step) {
  const Lanes votes = step.predicate(1);
  return collectively(step, 2, [&](Lanes group) {
    set_all(step.lanes<uint32_t>(0), group, votes & group);
  });
}

template <class T>
Flow match_any(Step& step) {
  uint32_t* d = step.lanes<uint32_t>(0);
  T values[WARP];  // operand a may be the register of d
  std::memcpy(values, step.lanes<T>(1), sizeof values);
  return collectively(step, 2, [&](Lanes group) {
    for (Lanes rest = group; rest;) {
      const Lanes same = equal_lanes(rest, values, values[lowest(rest)]);
      set_all(d, same, same);
      rest &= ~same;
    }
  });
}

template <class T>
Flow match_all(Step& step) {
  uint32_t* d = step.lanes<uint32_t>(0);
  const T* a = step.lanes<T>(2);
  Lanes matched = 0;
  const Flow flow = collectively(step, 3, [&](Lanes group) {
    const bool all = equal_lanes(group, a, a[lowest(group)]) == group;
    set_all(d, group, all ? group : 0);
    if (all) matched |= group;
  });
  if (flow == Flow::Next) step.set_predicate(1, matched);
  return flow;
}

// ---- redux

struct Add {
  uint32_t operator()(uint32_t a, uint32_t b) const { return a + b; }
};
struct And {
  uint32_t operator()(uint32_t a, uint32_t b) const { return a & b; }
};
struct Or {
  uint32_t operator()(uint32_t a, uint32_t b) const { return a | b; }
};
struct Xor {
  uint32_t operator()(uint32_t a, uint32_t b) const { return a ^ b; }
};
struct Min {
  template <class T>
  T operator()(T a, T b) const {
    return a < b ? a : b;
  }
};
struct Max {
  template <class T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

template <class Op, class T>
Flow redux(Step& step) {
  T* d = step.lanes<T>(0);
  const T* a = step.lanes<T>(1);
  return collectively(step, 2, [&](Lanes group) {
    T result = a[lowest(group)];
    for (Lanes rest = group & (group - 1); rest; rest &= rest - 1) {
      result = Op{}(result, a[lowest(rest)]);
    }
    each_lane(group, [=](int lane) { d[lane] = result; });
  });
}

// Numbers in the order of floats, -0 below +0; NaN is not among them.
int32_t rank(uint32_t bits) { return int32_t(bits >> 31 ? bits ^ 0x7FFF'FFFF : bits); }

// The extreme of f32.  With PROPAGATE one NaN makes the result NaN, without it NaN is left out, and
// the result is NaN where nothing is left.
template <class Op, bool ABSOLUTE, bool PROPAGATE>
Flow redux_float(Step& step) {
  uint32_t* d = step.lanes<uint32_t>(0);
  const uint32_t* a = step.lanes<uint32_t>(1);
  return collectively(step, 2, [&](Lanes group) {
    bool some = false, propagated = false;
    int32_t best = 0;
    for (Lanes rest = group; rest; rest &= rest - 1) {
      const uint32_t bits = a[lowest(rest)] & (ABSOLUTE ? 0x7FFF'FFFF : 0xFFFF'FFFF);
      if ((bits & 0x7FFF'FFFF) > 0x7F80'0000) {
        propagated |= PROPAGATE;
      } else {
        best = some ? Op{}(best, rank(bits)) : rank(bits);
        some = true;
      }
    }
    const uint32_t bits = uint32_t(rank(uint32_t(best)));  // it is its own inverse
    set_all(d, group, propagated || !some ? NAN_F32 : bits);
  });
}

// ---- bar.warp.sync

std::string describe_members(const Waiting& waiting) {
  return "the members " + hexadecimal(waiting.object) + " of its warp at bar.warp.sync";
}

// The lanes of other groups of the warp that wait at some bar.warp.sync with this mask.
Lanes waiting_elsewhere(const Step& step, Lanes mask) {
  Lanes lanes = 0;
  for (const Group& group : step.warp.groups) {
    const bool same = group.waiting.describe == describe_members && group.waiting.object == mask;
    if (group.waits && same) lanes |= Lanes(group.waiting.detail);
  }
  return lanes;
}

// Unlike the other instructions here it need not be the same one for all members: lanes may meet
// at several, in several branches, and whoever comes last releases the others.
Flow meet(Step& step) {
  const Flow flow = collectively(step, 0, [](Lanes) {});
  if (flow == Flow::Next) return flow;
  const uint32_t* members = step.lanes<uint32_t>(0);
  const Lanes mask = members[lowest(step.active)];
  if (equal_lanes(step.active, members, mask) != step.active) return flow;
  const Lanes elsewhere = waiting_elsewhere(step, mask) & ~step.active;
  if (mask & step.warp.alive() & ~(step.active | elsewhere)) {
    return step.wait_for({describe_members, &step.warp.cta, mask, step.active, false});
  }
  step.warp.released |= elsewhere;
  step.effect();
  return Flow::Next;
}

Flow bar_warp(Step& step) {
  Step rest = step;
  rest.active &= ~step.warp.released;
  if (rest.active && meet(rest) == Flow::Wait) return Flow::Wait;
  step.warp.released &= ~step.active;
  return Flow::Next;
}

// ---- binding

struct Mode {
  std::string_view name;
  Execute execute;
};

template <std::size_t N>
Binding choose_mode(const Mode (&modes)[N], std::string_view name) {
  for (const Mode& mode : modes) {
    if (mode.name == name) return {mode.execute};
  }
  return {};
}

Binding bind_shfl(const Operation& op) {
  static constexpr Mode modes[] = {
      {"up", shfl<Up>}, {"down", shfl<Down>}, {"bfly", shfl<Butterfly>}, {"idx", shfl<Index>}};
  return choose_mode(modes, op.get("shuffle"));
}

Binding bind_vote(const Operation& op) {
  static constexpr Mode modes[] = {{"all", vote<All>}, {"any", vote<Any>}, {"uni", vote<Uniform>}};
  return choose_mode(modes, op.get("vote"));
}

Binding bind_match_any(const Operation& op) {
  return {op.type("a").bits == 64 ? match_any<uint64_t> : match_any<uint32_t>};
}

Binding bind_match_all(const Operation& op) {
  return {op.type("a").bits == 64 ? match_all<uint64_t> : match_all<uint32_t>};
}

template <class Op>
Binding bind_redux_float(const Operation& op) {
  if (op.has("abs")) {
    return {op.has("NaN") ? redux_float<Op, true, true> : redux_float<Op, true, false>};
  }
  return {op.has("NaN") ? redux_float<Op, false, true> : redux_float<Op, false, false>};
}

Binding bind_redux(const Operation& op) {
  static constexpr Mode bits[] = {
      {"and", redux<And, uint32_t>}, {"or", redux<Or, uint32_t>}, {"xor", redux<Xor, uint32_t>}};
  if (op.has("add")) return {redux<Add, uint32_t>};
  if (op.has("boolean")) return choose_mode(bits, op.get("boolean"));
  const bool least = op.get("min_max") == "min";
  const Type& type = op.type("d");
  if (type.is("f32")) return least ? bind_redux_float<Min>(op) : bind_redux_float<Max>(op);
  return choose<uint32_t, int32_t>(type, [least](auto t) {
    using T = decltype(t);
    return Binding{least ? redux<Min, T> : redux<Max, T>};
  });
}

const Registration registration{
    {"activemask", [](const Operation&) { return Binding{activemask}; }},
    {"elect.sync", [](const Operation&) { return Binding{elect}; }},
    {"shfl.sync", bind_shfl},
    {"vote.sync", bind_vote},
    {"vote.sync.ballot", [](const Operation&) { return Binding{ballot}; }},
    {"match.any.sync", bind_match_any},
    {"match.all.sync", bind_match_all},
    {"redux.sync", bind_redux},
    {"bar.warp.sync", [](const Operation&) { return Binding{bar_warp, true}; }},
};

}  // namespace

}  // namespace emu
