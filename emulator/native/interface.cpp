// What the library exports: loading a program, running a launch, and reading what came of it.
//
// Plain C for Python's ctypes (`library.py` has the other side of every declaration).  Nothing is
// global: programs and machines are handles, and results are reports, which the caller frees.  No
// exception leaves: it becomes a report.
//
// A report is read like a program (`program/reader.hpp`):
//     u8 failed; if it is 1: text name, list of (text field, text value), u32 line
//     list of operations: text
//     list of warps: list of u64, executed instructions by operation
//     list of (text name, u64 number): matrix products
//     list of (text name, u64 number): traffic
//     list of text: printed
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "machine/failure.hpp"
#include "machine/machine.hpp"
#include "memory/memory.hpp"
#include "program/program.hpp"
#include "program/reader.hpp"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

using namespace emu;

struct Report {
  std::vector<std::byte> bytes;
};

// A launch as ctypes passes it; `library.py` has the same fields in the same order.
struct Launch {
  uint32_t grid[3], block[3], cluster[3];
  uint32_t dynamic_shared, max_shared, registers;
  uint32_t schedule, sms, workers, races, uninitialised;
  uint32_t parameter_count;  // bytes
  uint32_t range_count;
  uint32_t unused;  // keeps what follows aligned
  uint64_t seed;
  uint64_t max_instructions;  // the greatest number for no limit
  const std::byte* parameters;
  const GlobalMemory::Range* ranges;
};
static_assert(sizeof(Launch) == 112, "library.py has the same structure");
static_assert(sizeof(GlobalMemory::Range) == 24, "library.py has the same structure");

struct Run {
  GlobalMemory global;
  Machine machine;

  Run(const Program& program, const Launch& launch)
      : global({launch.ranges, launch.ranges + launch.range_count}),
        machine(program, shape_of(launch),
                {launch.parameters, launch.parameters + launch.parameter_count}, global,
                options_of(launch)) {}

  static Dim3 dim3(const uint32_t (&sizes)[3]) { return {sizes[0], sizes[1], sizes[2]}; }
  static LaunchShape shape_of(const Launch& launch) {
    LaunchShape shape;
    shape.grid = dim3(launch.grid);
    shape.block = dim3(launch.block);
    shape.cluster = dim3(launch.cluster);
    shape.dynamic_shared = launch.dynamic_shared;
    shape.max_shared = launch.max_shared;
    shape.registers = launch.registers;
    return shape;
  }
  static Options options_of(const Launch& launch) {
    Options options;
    options.schedule = Schedule(launch.schedule);
    options.seed = launch.seed;
    options.sms = launch.sms;
    options.workers = launch.workers;
    options.max_instructions = launch.max_instructions;
    options.races = launch.races != 0;
    options.uninitialised = launch.uninitialised != 0;
    return options;
  }
};

void write_failure(Writer& out, const Failure& failure) {
  out.u8(1);
  out.text(failure.name);
  out.u32(uint32_t(failure.fields.size()));
  for (const auto& [field, value] : failure.fields) {
    out.text(field);
    out.text(value);
  }
  out.u32(failure.line);
}

// Call something that may throw, and write that it succeeded or why it did not.
template <class F>
bool attempt(Writer& out, F&& call) {
  try {
    call();
    out.u8(0);
    return true;
  } catch (const Failure& failure) {
    write_failure(out, failure);
  } catch (const std::exception& error) {
    write_failure(out, Failure("CoreExceptionError").with("detail", error.what()));
  }
  return false;
}

template <class Map>
void write_numbers(Writer& out, const Map& numbers) {
  out.u32(uint32_t(numbers.size()));
  for (const auto& [name, number] : numbers) {
    out.text(name);
    out.u64(number);
  }
}

void write_results(Writer& out, const Machine& machine) {
  const Counters& counters = machine.counters;
  const std::vector<Operation>& operations = machine.program.operations;
  out.u32(uint32_t(operations.size()));
  for (const Operation& operation : operations) out.text(operation.text);
  out.u32(uint32_t(counters.executed.size()));
  for (const std::vector<uint64_t>& warp : counters.executed) {
    out.u32(uint32_t(warp.size()));
    for (const uint64_t number : warp) out.u64(number);
  }
  write_numbers(out, counters.matrices);
  std::vector<std::pair<std::string, uint64_t>> traffic;
  for (const Traffic::Row& row : Traffic::rows()) {
    traffic.emplace_back(row.name, counters.traffic.*row.member);
  }
  write_numbers(out, traffic);
  out.u32(uint32_t(machine.printed.size()));
  for (const std::string& text : machine.printed) out.text(text);
}

Report* report(const Writer& out) { return new Report{out.bytes()}; }

}  // namespace

// A program, or null; `*report` says why.
EXPORTED Program* flexfa4_load(const std::byte* data, size_t size, Report** reported) {
  Writer out;
  std::unique_ptr<Program> program;
  attempt(out, [&] { program = std::make_unique<Program>(load(data, size)); });
  *reported = report(out);
  return program.release();
}

EXPORTED void flexfa4_free_program(Program* program) { delete program; }

// A launch that can be run, once.  The program and what the launch points to outlive it; null
// where it cannot even begin, for which `*report` says why.
EXPORTED Run* flexfa4_prepare(const Program* program, const Launch* launch, Report** reported) {
  Writer out;
  std::unique_ptr<Run> run;
  attempt(out, [&] { run = std::make_unique<Run>(*program, *launch); });
  *reported = report(out);
  return run.release();
}

// Run a launch; the report has what it did, also where it failed.
EXPORTED Report* flexfa4_run(Run* run) {
  Writer out;
  attempt(out, [&] { run->machine.run(); });
  write_results(out, run->machine);
  return report(out);
}

// Let a run end early; from another thread.
EXPORTED void flexfa4_stop(Run* run) { run->machine.stop(); }

EXPORTED void flexfa4_free_run(Run* run) { delete run; }

// Whether the core executes an operation, given as in an encoded program.
EXPORTED Report* flexfa4_bind(const std::byte* data, size_t size) {
  Writer out;
  attempt(out, [&] {
    Reader in(data, size);
    bind(read_operation(in));
  });
  return report(out);
}

// The bytes of a report, which live as long as it does.
EXPORTED const std::byte* flexfa4_report(const Report* reported, size_t* size) {
  *size = reported->bytes.size();
  return reported->bytes.data();
}

EXPORTED void flexfa4_free_report(Report* reported) { delete reported; }
