"""Building blocks of attention that backends compose.

::

    key_runs        iteration over the non-empty blocks of a mask, as long runs of keys
    online_softmax  running maximum and sum of rows, in base 2
"""

if __name__ != "flexfa4.primitives":
    raise ImportError(
        "the folder primitives/ is not a top-level package: write `import flexfa4.primitives`"
    )
