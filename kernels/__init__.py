"""kernels: see docs/architecture.md."""

if __name__ != "flexfa4.kernels":
    raise ImportError(
        "the folder kernels/ is not a top-level package: write `import flexfa4.kernels`"
    )
