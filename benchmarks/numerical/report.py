"""Results as tables of Markdown; measures nothing."""

from __future__ import annotations

import statistics
from typing import Any, Final

from numerical import errors, training

Results = dict[str, Any]

LAST: Final = 50
"""Steps at the end of a run over which its losses are compared with the reference's."""

_NATS: Final = "{:.4f}"
_CHANGE: Final = "{:+.4f}"


def mark(name: str) -> str:
    """Return what a table's place in a document begins with."""
    return f"<!-- written by benchmarks/numerics.py: {name} -->"


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their places."""
    return {
        "circumstances": circumstances(results),
        "errors": errors_table(results),
        "lengths": lengths_table(results),
        "training": training_table(results),
        "bits": bits_table(results),
    }


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def circumstances(results: Results) -> str:
    """Return a paragraph about what was run, where and when."""
    run, size = results["run"], results["size"]
    model, card = size["model"], run["card"]
    where = "the emulator" if card is None else f"one {card['name']}, CUDA {card['cuda']}"
    packages = {"torch": run["machine"]["torch"], **(card or {}).get("packages", {})}
    shown = ", ".join(f"{name} {version}" for name, version in packages.items())
    left_out = f" Not reached: {', '.join(run['missing'])}." if run["missing"] else ""
    return (
        f"Measured {run['date']} on {where} ({shown}). The model has {model['layers']} layers,"
        f" {model['heads']} heads of {model['head_dim']} and so a width of"
        f" {model['heads'] * model['head_dim']}; a step takes {size['batch']} sequences of"
        f" {size['length']} bytes, a run {size['steps']} steps, and {size['held_out']} sequences"
        f" are held out.{left_out}"
    )


# ---- errors --------------------------------------------------------------------------------------


def ways_of_errors(results: Results) -> list[str]:
    """Return the ways that errors were measured of, in order."""
    found = {row["way"] for row in results["errors"]}
    return [way for way in errors.WAYS if way in found]


def lengths_of(results: Results) -> list[int]:
    """Return the lengths that errors were measured at."""
    return sorted({row["shape"]["length"] for row in results["errors"]})


def variants_of(results: Results) -> list[str]:
    """Return the variants that errors were measured of, in order."""
    found = {row["variant"] for row in results["errors"]}
    return [variant for variant in errors.VARIANTS if variant in found]


def error_of(results: Results, length: int, variant: str, way: str, tensor: str) -> float | None:
    """Return a relative error, root mean square; None where it was not measured."""
    for row in results["errors"]:
        if (row["shape"]["length"], row["variant"], row["way"]) == (length, variant, way):
            return float(row["errors"][tensor]["rms"])
    return None


def errors_table(results: Results) -> str:
    """Return errors at the greatest length, in thousandths."""
    ways = ways_of_errors(results)
    rows = []
    for length in lengths_of(results)[-1:]:
        for variant in variants_of(results):
            for tensor in errors.TENSORS:
                found = [error_of(results, length, variant, way, tensor) for way in ways]
                shown = ["" if e is None else f"{1000 * e:.2f}" for e in found]
                rows.append([variant, tensor, *shown])
    return table(["variant", "", *ways], rows)


def lengths_table(results: Results) -> str:
    """Return, for each length, the largest ratio of our error to that of dense bf16."""
    lengths = lengths_of(results)
    rows = []
    for variant in variants_of(results):
        cells = []
        for length in lengths:
            ratios = {
                f"{tensor}, {way}": mine / dense
                for way in ways_of_errors(results)
                if way in training.CHOICES
                for tensor in errors.TENSORS
                if (mine := error_of(results, length, variant, way, tensor))
                and (dense := error_of(results, length, variant, errors.DENSE, tensor))
            }
            worst = max(ratios, key=lambda name: ratios[name], default=None)
            cells.append("" if worst is None else f"{ratios[worst]:.2f} ({worst})")
        rows.append([variant, *cells])
    return table(["variant", *map(str, lengths)], rows)


# ---- training ------------------------------------------------------------------------------------


def runs_of(results: Results, way: str) -> dict[int, Any]:
    """Return the training runs of a way by seed."""
    rows = results["training"]
    found = {row["seed"]: row for row in rows if row["way"] == way and "repeated" not in row}
    return dict(sorted(found.items()))


def apart(run: Any, reference: Any) -> list[float]:
    """Return how much larger the losses of a run's steps are than those of the reference."""
    return [x - y for x, y in zip(run["losses"], reference["losses"], strict=True)]


def training_table(results: Results) -> str:
    """Return the losses at the end, and how far they are from those of the same seed in fp32."""
    references = runs_of(results, training.REFERENCE)
    rows = []
    for way in training.WAYS:
        runs = runs_of(results, way)
        pairs = [(run, references[seed]) for seed, run in runs.items() if seed in references]
        if not pairs:
            continue
        losses = [run["held_out"] for run, _ in pairs]
        changes = [run["held_out"] - reference["held_out"] for run, reference in pairs]
        last = [abs(x) for pair in pairs for x in apart(*pair)[-LAST:]]
        cells = [_NATS.format(statistics.mean(losses))]
        if way != training.REFERENCE:
            cells.append(_CHANGE.format(statistics.mean(changes)))
            cells.append(" to ".join(_CHANGE.format(f(changes)) for f in (min, max)))
            cells.append(_NATS.format(statistics.mean(last)))
        rows.append([way, *cells, *[""] * (4 - len(cells))])
    head = [
        "attention", "held-out loss", "less fp32's", "by seed", f"loss of a step, last {LAST}",
    ]  # fmt: skip
    spread = [run["held_out"] for run in references.values()]
    said = ""
    if len(spread) > 1:
        between = max(spread) - min(spread)
        said = f"\n\nThe seeds themselves are {between:.4f} apart in the reference."
    return table(head, rows) + said


def bits_table(results: Results) -> str:
    """Return which runs, done twice, end with the same bits in every weight."""
    rows = []
    for way in training.WAYS:
        again = [r for r in results["training"] if r["way"] == way and "repeated" in r]
        if len(again) < 2:
            continue
        curves = [r["losses"] for r in again]
        same = len({r["fingerprint"] for r in again}) == 1
        first = next((i for i, x in enumerate(zip(*curves, strict=True)) if len(set(x)) > 1), None)
        shown = "never" if first is None else f"at step {first}"
        rows.append([way, str(len(curves[0])), "all" if same else "not all", shown])
    return table(["attention", "steps", "same bits in the end", "losses differ"], rows)
