"""What the compiler knows about a mod, and pictures of masks.

Shows: `flexfa4.explain` on functions and text, the error for a mistake, and `flexfa4.plot_mask`
(with the `plot` extra), in the folder that is named on the command line, else in a temporary one.
Takes about a second.
"""

import sys
import tempfile
from pathlib import Path

import flexfa4
from flexfa4.variants import PrefixLM, SlidingWindow, softcap


def branching(score, b, h, q_idx, kv_idx):
    """Ask a traced value for one True or False: a mistake."""
    return score if q_idx > kv_idx else score * 0.5


def main(folder: Path) -> None:
    """Explain two mods, show the error for a third, and draw a mask into `folder`."""
    print(flexfa4.explain(softcap))
    print(flexfa4.explain("score + 0.5 * (kv - q)"))
    try:
        flexfa4.trace(branching)
    except flexfa4.FlexFA4Error as error:
        print(error)
    figure = flexfa4.plot_mask(
        PrefixLM(300) & ~SlidingWindow(32), 1024, title="a prefix, not too near"
    )
    figure.savefig(folder / "mask.png")
    print(f"picture: {folder / 'mask.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()))
