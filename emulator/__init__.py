"""The place of the emulator of GPU kernels; empty in this release.

The folder exists so that the package's layout and the import rules around it are settled: it
imports nothing of the project.
"""

if __name__ != "flexfa4.emulator":
    raise ImportError(
        "the folder emulator/ is not a top-level package: write `import flexfa4.emulator`"
    )
