"""emulator: see docs/architecture.md."""

if __name__ != "flexfa4.emulator":
    raise ImportError(
        "the folder emulator/ is not a top-level package: write `import flexfa4.emulator`"
    )
