"""primitives: see docs/architecture.md."""

if __name__ != "flexfa4.primitives":
    raise ImportError(
        "the folder primitives/ is not a top-level package: write `import flexfa4.primitives`"
    )
