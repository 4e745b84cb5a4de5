"""Variants in a configuration file: text is data, not code.

A mod may be a text.  It is read by a grammar and never evaluated as Python, so a configuration may
come from anywhere; a mistake in it is an error that shows the place.  Values of its names are bound
when it is parsed.  This example needs a reader of YAML (``pip install pyyaml``), FlexFA4 does not.
Takes about a second.
"""

from pathlib import Path
from typing import Any

import torch
import yaml

import flexfa4

ARGUMENTS = {"mask": "block_mask", "score": "score_mod"}


def read(path: Path) -> dict[str, dict[str, flexfa4.Mod]]:
    """Return the mods of each layer, as arguments of `flexfa4.attention`."""
    layers = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {
        name: {ARGUMENTS[kind]: mod(entries) for kind, entries in layer.items()}
        for name, layer in layers.items()
    }


def mod(entries: dict[str, Any]) -> flexfa4.Mod:
    """Parse a text, with the other entries as values of its names."""
    return flexfa4.parse(entries["text"], **{n: v for n, v in entries.items() if n != "text"})


def main() -> None:
    """Run x through the layers of the file, then show what a mistake looks like."""
    torch.manual_seed(0)
    x = torch.randn(1, 4, 256, 32)
    for name, arguments in read(Path(__file__).parent / "variants.yaml").items():
        x = flexfa4.attention(x, x, x, **arguments)
        print(f"{name}: {' and '.join(arguments)} from text, norm of the output {x.norm():.2f}")

    try:
        flexfa4.parse("q >= kv and q - kv < widow", window=64)
    except flexfa4.FlexFA4Error as error:
        print(error)


if __name__ == "__main__":
    main()
