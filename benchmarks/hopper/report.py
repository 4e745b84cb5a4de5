"""Results as tables: what was measured, beside what is asked for.

Results are a dictionary of ``runs``, the circumstances of each process that measured, and ``rows``,
of which each names its run; `merged` joins those of several processes.  A ratio compares times of
the same rounds of one process only.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from hopper.first_calls import FIRST_MOST_S, FROM_DISK_MOST_S
from hopper.providers import OURS, PROVIDERS
from hopper.step import NOTHING
from hopper.timing import Summary, ratios, summary
from hopper.turns import launches
from hopper.variants import Shape
from hopper.varlen import FLASH, KNOWN, TABLE
from rich.console import Console
from rich.table import Table

Row = dict[str, Any]
Results = dict[str, Any]

SPEED: Final = {
    "table": "Forward, TFLOPS",
    "paper": "The paper's grid, TFLOPS",
    "backward": "Backward, TFLOPS",
}
"""Groups of rows that are cases, with the titles of their tables."""


@dataclass(frozen=True)
class Comparison:
    """Ours beside the peer that took the least time.

    Attributes:
        peer: its name.
        ratio: of its time to ours, round by round.
    """

    peer: str
    ratio: Summary


def comparison(row: Row) -> Comparison | None:
    """Return how ours compares in a case; None where either side was not timed."""
    times = {name: found["ms"] for name, found in row["providers"].items() if "ms" in found}
    mine = times.pop(OURS, None)
    if mine is None or not times:
        return None
    peer = min(times, key=lambda name: summary(times[name]).median)
    return Comparison(peer, summary(ratios(times[peer], mine)))


def tflops(row: Row, provider: str) -> Summary | None:
    """Return the speed of a provider in a case; None where it was not timed."""
    found = row["providers"].get(provider, {})
    if "ms" not in found:
        return None
    return summary([row["tflop"] / ms * 1e3 for ms in found["ms"]])


def merged(parts: Iterable[Results]) -> Results:
    """Return the results of several processes as one; a later row replaces one of the same job."""
    runs: list[Row] = []
    rows: dict[str, Row] = {}
    for part in parts:
        for row in part["rows"]:
            rows[row["job"]] = {**row, "run": row["run"] + len(runs)}
        runs += part["runs"]
    return {"runs": runs, "rows": list(rows.values())}


def of_group(results: Results, *groups: str) -> list[Row]:
    """Return the rows of some groups that hold measurements."""
    return [r for r in results["rows"] if r["group"] in groups and "failed" not in r]


# ---- tables --------------------------------------------------------------------------------------


def show(results: Results, console: Console | None = None) -> None:
    """Print all tables that have rows."""
    console = console or Console(width=None if sys.stdout.isatty() else 180)
    for run in results["runs"]:
        console.print(circumstances(run), soft_wrap=True)
    for table in tables(results):
        if table.row_count:
            console.print(table)
    for line in failures(results):
        console.print(line, soft_wrap=True, markup=False)


def circumstances(run: Row) -> str:
    """Return on what and when was measured, in a line."""
    card = run["card"]
    versions = ", ".join(f"{name} {version}" for name, version in card["packages"].items())
    ceiling = " and ".join(f"{x:.0f}" for x in run["ceiling_tflops"])
    return (
        f"{run['date']}, {card['name']}, driver {card['driver']}, {versions}; "
        f"matrix product {ceiling} TFLOPS before and after"
    )


def tables(results: Results) -> Iterator[Table]:
    """Yield a table for each kind of rows."""
    for group, title in SPEED.items():
        yield speed_table(of_group(results, group), title)
    yield turns_table(of_group(results, "backward"))
    yield step_table(of_group(results, "step"))
    yield varlen_table(of_group(results, "varlen"))
    yield order_table(of_group(results, "order"))
    yield first_call_table(of_group(results, "first-call"))
    yield repeated_table(of_group(results, "host"))
    yield mask_table(of_group(results, "masks"))


def speed_table(rows: list[Row], title: str) -> Table:
    """Return the table of some cases."""
    shown = list(dict.fromkeys(name for row in rows for name in row["providers"]))
    shown.sort(key=lambda name: list(PROVIDERS).index(name) if name in PROVIDERS else 99)
    table = Table(
        "case", "shape", *shown, "best peer", "ratio", "must", "aim", "met", "ceiling", title=title
    )
    for row in rows:
        said = comparison(row)
        table.add_row(
            row["case"],
            shape_text(row["shape"]),
            *(_speed(row, name) for name in shown),
            "" if said is None else said.peer,
            "" if said is None else f"{said.ratio.median:.3f} ±{said.ratio.spread / 2:.1%}",
            _number(row["must"]),
            _number(row["aim"]),
            met(row, said),
            "/".join(f"{x:.0f}" for x in row["ceiling_tflops"]),
        )
    return table


def turns_table(rows: list[Row]) -> Table:
    """Return what turns cost, as measured and as simulated, for the cases that take them."""
    table = Table(title="Deterministic, as a part of our own speed without")
    for column in ("case", "measured", "simulated", "points off", "naive order, simulated"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for row in rows:
        said = comparison(row)
        if not row["case"].endswith("-deterministic") or said is None:
            continue
        found = launches(row["variant"], Shape(**row["shape"]))
        measured, naive = said.ratio.median, found.free / found.naive
        off = 100 * (found.ratio - measured)
        numbers = (f"{measured:.3f}", f"{found.ratio:.3f}", f"{off:+.1f}", f"{naive:.3f}")
        table.add_row(row["case"], *numbers)
    return table


def shape_text(shape: Row) -> str:
    """Return a shape as ``B4 H16 S8192 d128``."""
    heads = str(shape["heads"])
    if shape["kv_heads"] != shape["heads"]:
        heads += f"/{shape['kv_heads']}"
    dims = str(shape["dim"])
    if shape["value_dim"] != shape["dim"]:
        dims += f"/{shape['value_dim']}"
    return f"B{shape['batch']} H{heads} S{shape['length']} d{dims}"


def met(row: Row, said: Comparison | None) -> str:
    """Return what a case reaches: "aim", "must", "no", or nothing where nothing is asked."""
    if row["must"] is None:
        return ""
    if said is None:
        return "no"
    ratio = said.ratio.median
    return "aim" if ratio >= row["aim"] else "must" if ratio >= row["must"] else "no"


def _speed(row: Row, name: str) -> str:
    found = row["providers"].get(name)
    if found is None:
        return ""
    speed = tflops(row, name)
    return "fails" if speed is None else f"{speed.median:.0f} ±{speed.spread / 2:.1%}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def step_table(rows: list[Row]) -> Table:
    """Return the table of a block's training steps."""
    shown = list(dict.fromkeys(name for row in rows for name in row["providers"]))
    shown.sort(key=lambda name: list(PROVIDERS).index(name) if name in PROVIDERS else 99)
    table = Table(
        "variant", "shape", *(f"{name} ms" for name in shown), "best peer", "ratio",
        title="A training step of a transformer block, and the share of it that attention takes",
    )  # fmt: skip
    for row in rows:
        found = row["providers"]
        compared = {name: each for name, each in found.items() if name != NOTHING}
        said = comparison({**row, "providers": compared})
        table.add_row(
            row["variant"],
            shape_text(row["shape"]),
            *(_step_time(found, name) for name in shown),
            "" if said is None else said.peer,
            "" if said is None else f"{said.ratio.median:.3f} ±{said.ratio.spread / 2:.1%}",
        )
    return table


def _step_time(found: dict[str, Any], name: str) -> str:
    """Return the time of a provider's step, and what of it is not that without attention."""
    each = found.get(name)
    if each is None:
        return ""
    if "ms" not in each:
        return "fails"
    time = summary(each["ms"])
    text = f"{time.median:.2f} ±{time.spread / 2:.1%}"
    if name == NOTHING or "ms" not in found.get(NOTHING, {}):
        return text
    return f"{text}, {1 - summary(ratios(found[NOTHING]['ms'], each['ms'])).median:.0%}"


def varlen_table(rows: list[Row]) -> Table:
    """Return the table of sequences of different lengths."""
    table = Table(
        "lengths", "sequences", "tokens", f"{OURS} TFLOPS", FLASH, "ratio", KNOWN,
        f"{TABLE} us", "of the call", title="Variable lengths",
    )  # fmt: skip
    for row in rows:
        found = row["providers"]
        times = {name: each["ms"] for name, each in found.items() if "ms" in each}
        mine, theirs, alone = (times.get(name) for name in (OURS, FLASH, TABLE))
        ratio = summary(ratios(theirs, mine)) if mine and theirs else None
        part = summary(ratios(alone, mine)).median if mine and alone else None
        table.add_row(
            row["lengths"], str(row["sequences"]), str(row["tokens"]),
            _speed(row, OURS), _speed(row, FLASH),
            "" if ratio is None else f"{ratio.median:.3f} ±{ratio.median * ratio.spread / 2:.3f}",
            _speed(row, KNOWN),
            "" if alone is None else f"{summary(alone).median * 1e3:.1f}",
            "" if part is None else f"{part:.1%}",
        )  # fmt: skip
    return table


def order_table(rows: list[Row]) -> Table:
    """Return the table of orders of work."""
    table = Table(
        "causal", "shape", "longest first ms", "natural ms", "gain", "a block for each ms", "gain",
        title="Orders of work (in the FlashAttention-4 paper: 4-8 % MHA, 7-14 % MQA of 8 heads)",
    )  # fmt: skip
    for row in rows:
        best, cells = row["ms"]["longest first"], []
        for name in ("natural", "a block for each"):
            times = row["ms"].get(name)
            if times is None:  # of a run that did not have it
                cells += ["", ""]
                continue
            gain = summary(ratios(times, best))
            shown = f"{gain.median - 1:+.1%} ±{gain.median * gain.spread / 2:.1%}"
            cells += [f"{summary(times).median:.3f}", shown]
        table.add_row(row["order"], shape_text(row["shape"]), f"{summary(best).median:.3f}", *cells)
    return table


def first_call_table(rows: list[Row]) -> Table:
    """Return the table of first calls."""
    table = Table(
        "provider", "first s", "of which import", "another variant s", "backward s",
        "from disk s", "another from disk s", "backward from disk s", "met",
        title="First calls in a fresh process",
    )  # fmt: skip
    for row in rows:
        empty, disk = row["empty"], row["disk"]
        times = (
            (empty, "first_s"), (empty, "import_s"), (empty, "another_s"), (empty, "backward_s"),
            (disk, "first_s"), (disk, "another_s"), (disk, "backward_s"),
        )  # fmt: skip
        cells = [f"{found[key]:.2f}" if key in found else "fails" for found, key in times]
        table.add_row(row["provider"], *cells, _first_calls_met(row))
    return table


def _first_calls_met(row: Row) -> str:
    if row["provider"] != OURS:
        return ""
    new = [row["empty"].get(key, math.inf) <= FIRST_MOST_S for key in ("another_s", "backward_s")]
    disk = [row["disk"].get(key, math.inf) <= FROM_DISK_MOST_S for key in ("first_s", "backward_s")]
    return "; ".join(
        f"{name}: {_yes(forward)}, backward {_yes(backward)}"
        for name, (forward, backward) in (("new variant", new), ("disk", disk))
    )


def repeated_table(rows: list[Row]) -> Table:
    """Return the table of repeated calls."""
    names = list(dict.fromkeys(name for row in rows for name in row["providers"]))
    table = Table(
        "variant", *(f"{name} us" for name in names), "limit", "met", title="Repeated small calls"
    )
    for row in rows:
        found = [row["providers"].get(name) for name in names]
        cells = ["" if f is None else f"{f['us']:.1f}" if "us" in f else "fails" for f in found]
        mine = row["providers"].get(OURS, {}).get("us", float("inf"))
        limit = row["limit_us"]
        table.add_row(row["variant"], *cells, f"{limit:g}", _yes(mine <= limit))
    return table


def mask_table(rows: list[Row]) -> Table:
    """Return the table of the making of masks."""
    table = Table(
        "mask", "ours ms", "the first", "create_block_mask ms", "the first", "limit", "met",
        title="Making a mask, inside the first call with it",
    )  # fmt: skip
    for row in rows:
        mine, torchs, limit = row[OURS], row["create_block_mask"], row["limit_ms"]
        table.add_row(
            row["mask"],
            *(f"{found[key]:.2f}" for found in (mine, torchs) for key in ("ms", "first_ms")),
            f"{limit:g}",
            _yes(mine["ms"] <= limit),
        )
    return table


def _yes(met: bool) -> str:
    return "yes" if met else "no"


def failures(results: Results) -> Iterator[str]:
    """Yield a line for each thing that was not measured, and why."""
    for row in results["rows"]:
        if "failed" in row:
            yield f"{row['job']}: {row['failed']}"
        found = row.get("providers", {})
        if row["group"] == "first-call":
            found = {which: row[which] for which in ("empty", "disk") if which in row}
        for name, each in found.items():
            if "failed" in each:
                yield f"{row['job']}, {name}: {each['failed']}"
