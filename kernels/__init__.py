"""Backends: from graphs, facts and sizes to attention that runs.

``cpu/`` is the backend in plain torch, and the definition of what every other one computes.
Kernels for GPUs get a folder for each architecture beside it.  Never names a variant.
"""

if __name__ != "flexfa4.kernels":
    raise ImportError(
        "the folder kernels/ is not a top-level package: write `import flexfa4.kernels`"
    )
