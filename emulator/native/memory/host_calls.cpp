// vprintf and __assertfail, as the device's run-time library has them.  CUDA C++ Programming Guide,
// "Formatted Output", "Assertion".
//
// Deliberately does not call the process's printf with a kernel's format as it is: each conversion
// is read here, and strings come from memory that the kernel may read.
#include "memory/host_calls.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "machine/cluster.hpp"
#include "machine/machine.hpp"
#include "memory/access.hpp"

namespace emu {

namespace {

// ---- what is passed

const Operand& variable(const Step& step, int operand, uint32_t index) {
  return step.element(step.operand(operand), index);
}

uint64_t argument(const Step& step, uint32_t index, int lane) {
  const Operand& passed = variable(step, 2, index);
  uint64_t value = 0;
  std::memcpy(&value, step.warp.call(lane) + passed.value, std::min<size_t>(passed.size, 8));
  return value;
}

void give_back(const Step& step, int32_t value, int lane) {
  const Operand& returns = step.operand(0);
  if (returns.is != Operand::Is::Variables || returns.count == 0) return;
  const Operand& result = variable(step, 0, 0);
  std::memcpy(step.warp.call(lane) + result.value, &value, std::min<size_t>(result.size, 4));
}

template <class T>
T read_generic(const Step& step, uint64_t address, int lane) {
  T value;
  const Place place = reach(step, Space::Generic, address, sizeof(T), Touch::Read, lane);
  std::memcpy(&value, place.bytes, sizeof value);
  return value;
}

std::string text_at(const Step& step, uint64_t address, int lane) {
  std::string text;
  while (const char letter = read_generic<char>(step, address++, lane)) text += letter;
  return text;
}

// ---- printf

// A conversion: "%-5.2lld" has the flags and numbers "-5.2", the length "ll" and the letter 'd'.
struct Conversion {
  std::string numbers, length;
  char letter = 0;
};

class Format {
 public:
  Format(const Step& step, int lane, std::string text, uint64_t arguments)
      : step_(step), lane_(lane), text_(std::move(text)), arguments_(arguments) {}

  std::string written;
  int conversions = 0;

  void write() {
    for (size_t at = 0; at < text_.size();) {
      if (text_[at] != '%') {
        written += text_[at++];
        continue;
      }
      const size_t start = at++;
      const Conversion conversion = parse(start, at);
      if (conversion.letter == '%') {
        written += '%';
        continue;
      }
      ++conversions;
      write_argument(conversion, text_.substr(start, at - start));
    }
  }

 private:
  const Step& step_;
  const int lane_;
  const std::string text_;
  uint64_t arguments_;  // address of the next one

  [[noreturn]] void fail(const std::string& conversion) const {
    throw Failure("FormatError").with("conversion", conversion).with("format", text_);
  }

  // `at` is behind the percent sign, and then behind the conversion.
  Conversion parse(size_t start, size_t& at) {
    Conversion conversion;
    const auto take = [&](const char* letters, std::string& into) {
      while (at < text_.size() && std::strchr(letters, text_[at])) into += text_[at++];
    };
    take("-+ #0", conversion.numbers);
    take_number(conversion.numbers, at);
    if (at < text_.size() && text_[at] == '.') {
      conversion.numbers += text_[at++];
      take_number(conversion.numbers, at);
    }
    take("hljzt", conversion.length);
    if (at == text_.size() || !std::strchr("diuoxXcspfFeEgGaA%", text_[at])) {
      fail(text_.substr(start, at + 1 - start));
    }
    conversion.letter = text_[at++];
    return conversion;
  }

  // A width or precision: digits, or an argument.
  void take_number(std::string& into, size_t& at) {
    if (at < text_.size() && text_[at] == '*') {
      ++at;
      into += std::to_string(next<int32_t>());
    }
    while (at < text_.size() && text_[at] >= '0' && text_[at] <= '9') into += text_[at++];
    if (into.size() > 64) fail(into);
  }

  // Arguments lie one behind another, aligned to their sizes.
  template <class T>
  T next() {
    arguments_ = (arguments_ + sizeof(T) - 1) / sizeof(T) * sizeof(T);
    const T value = read_generic<T>(step_, arguments_, lane_);
    arguments_ += sizeof(T);
    return value;
  }

  template <class T>
  void print(const std::string& format, T value) {
    const int size = std::snprintf(nullptr, 0, format.c_str(), value);
    std::vector<char> text(size_t(size < 0 ? 0 : size) + 1);
    std::snprintf(text.data(), text.size(), format.c_str(), value);
    written += text.data();
  }

  void write_argument(const Conversion& conversion, const std::string& whole) {
    const std::string start = "%" + conversion.numbers;
    const std::string& length = conversion.length;
    const bool wide = !length.empty() && length != "h" && length != "hh";
    switch (conversion.letter) {
      case 'd':
      case 'i': {
        int64_t value = wide ? next<int64_t>() : next<int32_t>();
        if (length == "h") value = int16_t(value);
        if (length == "hh") value = int8_t(value);
        return print(start + "lld", static_cast<long long>(value));
      }
      case 'u':
      case 'o':
      case 'x':
      case 'X': {
        uint64_t value = wide ? next<uint64_t>() : next<uint32_t>();
        if (length == "h") value = uint16_t(value);
        if (length == "hh") value = uint8_t(value);
        return print(start + "ll" + conversion.letter, static_cast<unsigned long long>(value));
      }
      case 'c': return print(start + "c", int(next<int32_t>()));
      case 's': return print(start + "s", text_at(step_, next<uint64_t>(), lane_).c_str());
      case 'p': return print(start + "p", reinterpret_cast<void*>(next<uint64_t>()));
      default:
        if (length == "h" || length == "hh") fail(whole);
        return print(start + conversion.letter, next<double>());
    }
  }
};

// int vprintf(const char* format, const void* arguments): how many conversions there are, -1
// without a format.
void print_formatted(Step& step) {
  Machine& machine = step.machine();
  for_each(step.active, [&](int lane) {
    const uint64_t format = argument(step, 0, lane);
    if (!format) return give_back(step, -1, lane);
    Format text(step, lane, text_at(step, format, lane), argument(step, 1, lane));
    text.write();
    const std::lock_guard<std::mutex> lock(machine.printed_mutex);
    machine.printed.push_back(std::move(text.written));
    give_back(step, text.conversions, lane);
  });
}

// void __assertfail(const char* condition, const char* file, unsigned line, const char* function,
//                   size_t character_size)
void fail_assertion(Step& step) {
  const int lane = lowest(step.active);
  const auto text = [&](uint32_t index) {
    const uint64_t address = argument(step, index, lane);
    return address ? text_at(step, address, lane) : std::string("?");
  };
  throw Failure("KernelAssertionError")
      .with("condition", text(0))
      .with("file", text(1))
      .with("number", int64_t(argument(step, 2, lane)))
      .with("function", text(3));
}

constexpr struct {
  const char* name;
  void (*call)(Step&);
  uint32_t parameters;
} FUNCTIONS[] = {{"vprintf", print_formatted, 2}, {"__assertfail", fail_assertion, 5}};

}  // namespace

void call_host(Step& step, const Function& function) {
  std::string names;
  for (const auto& row : FUNCTIONS) {
    if (function.name == row.name && step.operand(2).count == row.parameters) return row.call(step);
    if (!names.empty()) names += ", ";
    names += row.name;
    names += " with " + std::to_string(row.parameters) + " arguments";
  }
  throw Failure("UnknownHostFunctionError").with("name", function.name).with("names", names);
}

}  // namespace emu
