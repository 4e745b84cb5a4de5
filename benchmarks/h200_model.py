"""The performance model of the Hopper forward beside what was measured on an H200.

    python benchmarks/h200_model.py                               # the table
    python benchmarks/h200_model.py --write docs/notes/h200.md    # and put it there
    python benchmarks/h200_model.py --fit                         # constants for the model

Needs no GPU: it reads what `benchmarks/h200.py` measured.  The model's four constants are fitted to
these very measurements, so the last column shows the error of a case when they are fitted to all
the others.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

from hopper.predicted import Comparison, comparisons, fitted, measured_ms
from record import inserted

RESULTS: Final = Path(__file__).parent / "results" / "h200.json"
BEGIN: Final = "<!-- written by benchmarks/h200_model.py -->"


def main() -> None:
    """Show the table; fit constants or write the table to a document if asked to."""
    arguments = parser().parse_args()
    results = json.loads(arguments.results.read_text())
    if arguments.fit:
        print(fitted(measured_ms(results)))
        return
    text = table(results)
    print(text)
    if arguments.write:
        arguments.write.write_text(inserted(arguments.write.read_text(), text, BEGIN))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    made.add_argument("--results", type=Path, default=RESULTS, help="of benchmarks/h200.py")
    made.add_argument("--fit", action="store_true", help="fit the constants of the model")
    made.add_argument("--write", type=Path, metavar="FILE", help="document that has the marks")
    return made


def table(results: dict[str, Any]) -> str:
    """Return the comparison as a table of Markdown."""
    lines = [
        "| case | relative to | bound of a full tile | predicted | measured | error | fitted to"
        " the others |",
        "|---|---|---|---|---|---|---|",
    ]
    for found in comparisons(results):
        lines.append(" | ".join([*cells(found), f"{without(results, found):+.1%} |"]))
    return "\n".join(lines)


def cells(found: Comparison) -> list[str]:
    """Return the cells of a comparison."""
    numbers = (f"{found.predicted:.3f}", f"{found.measured:.3f}", f"{found.error:+.1%}")
    return [f"| {found.case}", found.base, found.bound, *numbers]


def without(results: dict[str, Any], found: Comparison) -> float:
    """Return the error of a case when constants are fitted to the others."""
    others = {name: ms for name, ms in measured_ms(results).items() if name != found.case}
    constants = fitted(others)
    return next(c.error for c in comparisons(results, constants) if c.case == found.case)


if __name__ == "__main__":
    main()
