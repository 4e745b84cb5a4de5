"""Finding a mistake in a mask: an off-by-one window, and an ``if`` that cannot work.

Three ways to look at a mask: `to_dense` gives every visible score as a tensor, `flexfa4.explain`
says what the compiler understood, and `flexfa4.plot_mask` draws it (with the `plot` extra), into
the folder that is named on the command line, else into a temporary one.  Takes about a second.
"""

import sys
import tempfile
from pathlib import Path

import flexfa4
from flexfa4.variants import SlidingWindow

LENGTH = 16


def window_of_4(b, h, q_idx, kv_idx):
    """See 4 keys, the own one among them.  This is what the author meant."""
    return (q_idx >= kv_idx) & (q_idx - kv_idx <= 4)


def with_a_branch(b, h, q_idx, kv_idx):
    """Ask for one True or False where there is one for each score."""
    return q_idx - kv_idx < 4 if q_idx >= kv_idx else False


def main(folder: Path) -> None:
    """Count, compare, explain, draw; then read an error."""
    mask = flexfa4.mask(window_of_4)

    made = flexfa4.create_block_mask(mask, q_len=LENGTH, kv_len=LENGTH)
    seen = made.to_dense()[0, 0]  # (queries, keys), True where the query sees the key
    print(f"keys that each query sees: {seen.sum(-1).tolist()}")  # 5, not 4

    # What do they see that they should not?  A mask minus a mask is a mask.
    surplus = flexfa4.create_block_mask(mask & ~SlidingWindow(4), q_len=LENGTH, kv_len=LENGTH)
    query, key = surplus.to_dense()[0, 0].nonzero()[0].tolist()
    print(f"for the first time at query {query}: key {key}, at distance {query - key}")

    print(flexfa4.explain(mask)["mask mod"])  # `<= 4` counts distances, 0 to 4: five of them

    figure = flexfa4.plot_mask(mask & ~SlidingWindow(4), LENGTH, block_size=16, title="too much")
    figure.savefig(folder / "mask.png")
    print(f"picture: {folder / 'mask.png'}\n")

    try:
        flexfa4.create_block_mask(with_a_branch, q_len=LENGTH, kv_len=LENGTH)
    except flexfa4.FlexFA4Error as error:
        print(error)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()))
