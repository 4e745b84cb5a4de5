"""The emulator of GPU kernels.

`ptx` reads the text of kernels, `host` receives their launches, and `errors` has the root of all
failures.  The emulator imports nothing else of the project: it serves kernels of any origin.
"""

if __name__ != "flexfa4.emulator":
    raise ImportError(
        "the folder emulator/ is not a top-level package: write `import flexfa4.emulator`"
    )

from flexfa4.emulator.errors import EmulationError

__all__ = ["EmulationError"]
