"""The emulator of GPU kernels: runs PTX for Hopper and Blackwell on the CPU, strictly.

::

    with flexfa4.emulator.Device("sm_100a") as device:      # kernels of CuTe-DSL
        x = device.tensor(torch.randn(1024))
        cute.compile(kernel, from_dlpack(x))(from_dlpack(x))
    device.launches[0].run.executed

    flexfa4.emulator.load(ptx).run(grid=8, block=128, args=[x, y, 1024])    # any PTX

host       launches of CuTe-DSL arrive, with no GPU and no driver
kernel     launches of PTX by hand
arguments  values of their parameters, by the types that these declare
ptx        reads the text of kernels
decode     makes of it what the core loads
native     the execution core, in C++, built at first use
execution  runs a launch on it
options    schedules and checks
results    what a launch did
failures   what can go wrong in a kernel; `errors` has the root of all failures

Of the project only the table of environment variables is imported: the emulator serves kernels of
any origin.
"""

if __name__ != "flexfa4.emulator":
    raise ImportError(
        "the folder emulator/ is not a top-level package: write `import flexfa4.emulator`"
    )

from flexfa4.emulator.errors import EmulationError
from flexfa4.emulator.host.device import Device
from flexfa4.emulator.kernel import Kernel, load
from flexfa4.emulator.results import Run

__all__ = ["Device", "EmulationError", "Kernel", "Run", "load"]
