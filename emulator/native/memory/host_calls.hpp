// Functions that a kernel calls and the device's run-time library supplies: vprintf, __assertfail.
#pragma once

#include "machine/step.hpp"

namespace emu {

// Call one for the active lanes; its arguments are those of the step's instruction.  Throws
// AssertionError for __assertfail, UnknownHostFunctionError for a function that is not known.
void call_host(Step& step, const Function& function);

}  // namespace emu
