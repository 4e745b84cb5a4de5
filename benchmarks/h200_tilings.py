"""The tables of the tilings of Hopper's kernels, from measurements on an H200.

    python benchmarks/h200_tilings.py --only 'forward-*'        # measure; adds to the results
    python benchmarks/h200_tilings.py --only 'backward-*' --limit 55
    python benchmarks/h200_tilings.py                           # what was measured, no GPU
    python benchmarks/h200_tilings.py --write                   # the tables, from the results

A search is a pass at head dims (`hopper.tilings`: the candidates, and which of them is chosen).
Its kernels are compiled by other processes, a core each, while those of the searches before it are
measured: full and causal attention, in forward passes a window, too, calls alternating.  A
candidate is left out whose kernel spills, but for the present one, cannot be compiled or launched,
is the kernel of another one, or whose results are wrong.

Results are written after every search; what the limit did not leave time for is named, and what
was measured before stays.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, replace
from multiprocessing.pool import AsyncResult, Pool
from pathlib import Path
from typing import Any, Final

import torch
from hopper.ahead import processes
from hopper.speed import in_a_line
from hopper.tiling_calls import Ground, Made, Trial, made, shape_for, trials_before
from hopper.tilings import (
    DECIDING,
    PRESENT,
    VARIANTS,
    Measured,
    Search,
    Tables,
    Tiling,
    as_json,
    chosen,
    in_words,
    relative_times,
    searches,
    source,
    tiling_of,
)
from hopper.timing import Call, Clock, DeviceClock, Rounds, interleaved
from hopper.variants import Shape
from record import FOLDER, card, commit, machine
from rich.console import Console
from rich.table import Table

RESULTS: Final = FOLDER / "h200_tilings.json"
KERNELS: Final = Path(__file__).parent.parent / "kernels" / "sm90"

ROUNDS: Final = Rounds(7, 6.0)
PATIENCE: Final = 25.0
"""Seconds that a search waits for others after its first kernel: spilling takes ptxas minutes."""

Entry = dict[str, Any]
"""A candidate in the results: its tiling, what its kernel is, and its times or why it has none."""
Results = dict[str, Any]


def main() -> None:
    """Measure, or show what was measured, or write the tables."""
    arguments = parser().parse_args()
    results: Results = {"runs": [], "searches": {}}
    if arguments.results.exists():
        results = json.loads(arguments.results.read_text())
    if arguments.only is not None:
        names = [name for name in searches() if fnmatch.fnmatchcase(name, arguments.only)]
        if not names:
            raise SystemExit(
                f"--only {arguments.only}: no search; there are {', '.join(searches())}"
            )
        if not torch.cuda.is_available():
            raise SystemExit("no CUDA device: without --only it shows what was measured")
        device = torch.device("cuda", torch.cuda.current_device())
        bench = Bench(device, DeviceClock(), time.monotonic() + arguments.limit)
        results["runs"].append(circumstances(arguments))
        with processes(arguments.workers) as pool:
            for row in measured([searches()[name] for name in names], bench, pool):
                results["searches"][row["search"]] = {**row, "run": len(results["runs"]) - 1}
                keep(results, arguments.results)
    show(results)
    if arguments.write:
        made = tables(results)
        for way in VARIANTS:
            (KERNELS / way / "tilings.py").write_text(source(way, made))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    made.add_argument("--only", metavar="PATTERN", help="measure the searches with such names")
    made.add_argument("--limit", type=float, default=570.0, help="seconds after which it ends")
    made.add_argument(
        "--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="that compile"
    )
    made.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help="JSON")
    made.add_argument("--commit", help="what is measured, where there is no git checkout")
    made.add_argument("--write", action="store_true", help="write the tables from the results")
    return made


def circumstances(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return under what this process measures."""
    return {
        "date": datetime.date.today().isoformat(),
        "commit": arguments.commit or commit(),
        "machine": machine(),
        "card": card(),
    }


def keep(results: Results, path: Path) -> None:
    """Write the results: to a new file that then takes the place of the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(results, indent=1) + "\n")
    new.replace(path)


# ---- measuring -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bench:
    """With what is measured.

    Attributes:
        device: where.
        clock: what measures.
        deadline: in the time of `time.monotonic`; nothing begins after it.
        rounds: how much.
        shape: of all calls, but for their head dims; None for those of `shape_for`.
    """

    device: torch.device
    clock: Clock
    deadline: float
    rounds: Rounds = ROUNDS
    shape: Shape | None = None

    def shape_for(self, search: Search, variant: str) -> Shape:
        """Return the shape of a search's calls."""
        if self.shape is None:
            return shape_for(search, variant)
        dim, value_dim = search.head_dims
        return replace(self.shape, dim=dim, value_dim=value_dim)

    @property
    def left(self) -> float:
        """Seconds until the deadline, or 0."""
        return max(0.0, self.deadline - time.monotonic())


class OutOfTimeError(Exception):
    """What is asked for cannot be done before the deadline."""


@dataclass(frozen=True)
class Compiling:
    """The kernels of some candidates.

    Attributes:
        kernels: theirs, by tiling and variant.
        others: what their calls need besides, by variant.
    """

    kernels: dict[tuple[Tiling, str], AsyncResult[Made]]
    others: dict[str, list[AsyncResult[Made]]]

    def of(self, variant: str, seconds: float) -> dict[Tiling, AsyncResult[Made]]:
        """Return the kernels of a variant, when all are done or `PATIENCE` is over; not before the
        first one is done.

        Raises:
            OutOfTimeError: that takes more than some seconds.
        """
        own = {key[0]: result for key, result in self.kernels.items() if key[1] == variant}
        until = time.monotonic() + seconds
        needed = [*self.others[variant], next(iter(own.values()))]
        if not all(_waited(result, until) for result in needed):
            raise OutOfTimeError
        patience = min(until, time.monotonic() + PATIENCE)
        if not all([_waited(result, patience) for result in own.values()]) and patience == until:
            raise OutOfTimeError
        return own


def _waited(result: AsyncResult[Made], until: float) -> bool:
    """Wait for a result until a time of `time.monotonic`; return whether it is there."""
    result.wait(max(0.0, until - time.monotonic()))
    return result.ready()


def measured(chosen: list[Search], bench: Bench, pool: Pool) -> Iterable[dict[str, Any]]:
    """Yield the row of each search, as far as the time goes: once, or again with more candidates.

    Second candidates are measured after the first ones of all searches, so that they are compiled
    meanwhile.

    Args:
        chosen: the searches.
        bench: with what is measured.
        pool: who compiles.
    """
    begun = time.monotonic()
    queue = [(search, 0, compiling(search, search.first(), bench, pool)) for search in chosen]
    rows: dict[Search, dict[str, Any]] = {}
    for search, number, kernels in queue:  # which grows
        try:
            entries = entries_of(search, kernels, bench)
        except OutOfTimeError:
            print(f"not reached: {search.name}, {number + 1}", file=sys.stderr)
            continue
        except Exception:  # the other searches are measured all the same
            traceback.print_exc()
            continue
        row = rows.setdefault(search, {"search": search.name, "stages": []})
        row["stages"].append(entries)
        seconds = time.monotonic() - begun
        print(f"{seconds:6.1f} s  {search.name}, {number + 1}", file=sys.stderr, flush=True)
        yield row
        found = timed(search, entries)
        times = relative_times(found, search.variants) if found else {}
        more = [] if number else search.second(times)
        if more:
            queue.append((search, 1, compiling(search, more, bench, pool)))


def compiling(search: Search, tilings: list[Tiling], bench: Bench, pool: Pool) -> Compiling:
    """Return the kernels of some candidates, which other processes begin to compile."""
    shapes = {variant: bench.shape_for(search, variant) for variant in search.variants}
    before = {name: trials_before(search, name, shape) for name, shape in shapes.items()}
    others = {name: [pool.apply_async(made, (trial,)) for trial in before[name]] for name in shapes}
    kernels = {
        (tiling, variant): pool.apply_async(
            made, (Trial(search, tiling, variant, shapes[variant]),)
        )
        for variant in shapes
        for tiling in tilings
    }
    return Compiling(kernels, others)


def entries_of(search: Search, kernels: Compiling, bench: Bench) -> list[Entry]:
    """Return the candidates of a search, measured.

    Raises:
        OutOfTimeError: there is not the time.
    """
    entries: dict[Tiling, Entry] = {
        tiling: {"tiling": as_json(tiling), "bytes": search.nbytes(tiling), "ms": {}}
        for tiling, _ in kernels.kernels
    }
    for variant in search.variants:
        if not bench.left:
            raise OutOfTimeError
        fit = fit_of(search, kernels.of(variant, bench.left), variant, entries)
        shape = bench.shape_for(search, variant)
        ground = Ground.of(search, variant, shape, bench.device)
        calls: dict[str, Call] = {}
        for tiling, digest in fit.items():
            call, wrong = tried(ground, Trial(search, tiling, variant, shape), digest)
            if wrong is None:
                calls[in_words(tiling)] = call
            else:
                entries[tiling]["failed"] = f"{variant}: {wrong}"
        times = interleaved(calls, bench.clock, bench.rounds)
        for tiling in fit:
            if in_words(tiling) in times:
                entries[tiling]["ms"][variant] = times[in_words(tiling)]
        del calls, ground
        torch.cuda.empty_cache()
    return list(entries.values())


def tried(ground: Ground, trial: Trial, digest: str) -> tuple[Call, str | None]:
    """Return the call of a trial, and what is wrong with it; None if nothing is.

    Args:
        ground: of its search.
        trial: a candidate.
        digest: of the kernel that was compiled for it.
    """
    try:
        call = ground.call(trial)
        if Made.of(ground.kernel(trial)).digest != digest:
            return call, "another kernel is launched"
        return call, ground.wrong(call())
    except Exception as error:  # the others are measured all the same
        traceback.print_exc()
        return lambda: None, in_a_line(error)


def fit_of(
    search: Search,
    kernels: dict[Tiling, AsyncResult[Made]],
    variant: str,
    entries: dict[Tiling, Entry],
) -> dict[Tiling, str]:
    """Return the candidates whose kernels may be launched, with the digests of these.

    Args:
        search: whose they are.
        kernels: of the variant.
        variant: its name.
        entries: that what is known of the kernels is added to.
    """
    found: dict[Tiling, str] = {}
    for tiling, result in kernels.items():
        entry = entries[tiling]
        try:
            kernel = result.get(timeout=0)
        except Exception as error:
            why = in_a_line(error) if result.ready() else "takes the compiler too long"
            entry.setdefault("failed", f"{variant}: {why}")
            continue
        entry.setdefault("registers", {})[variant] = kernel.registers
        entry.setdefault("spills", {})[variant] = kernel.spills
        if kernel.spills and tiling != search.present:  # which others have to beat
            entry.setdefault("failed", f"{variant}: spills {kernel.spills} bytes")
        elif kernel.digest in found.values():
            entry.setdefault("failed", f"{variant}: the kernel is that of another candidate")
        elif "failed" not in entry:
            found[tiling] = kernel.digest
    return found


# ---- what was measured ---------------------------------------------------------------------------


def timed(search: Search, entries: list[Entry]) -> list[Measured]:
    """Return the candidates that have times for all variants."""
    return [
        Measured(tiling_of(search.way, entry["tiling"]), entry["bytes"], entry["ms"])
        for entry in entries
        if "failed" not in entry and set(entry["ms"]) == set(search.variants)
    ]


def tables(results: Results) -> Tables:
    """Return the tables that results give; head dims that they say nothing of stay as they are."""
    made = {name: {**table} for name, table in PRESENT.items()}
    for name, row in results["searches"].items():
        search = searches()[name]
        found = timed(search, row["stages"][-1])
        if found:
            for table, present in search.presents.items():
                taken = chosen(found, present[search.head_dims], DECIDING[table])
                made[table][search.head_dims] = taken
    for head_dims, tiling in made["forward"].items():
        if made["unmasked"].get(head_dims) == tiling:
            del made["unmasked"][head_dims]
    return made


def show(results: Results, console: Console | None = None) -> None:
    """Print a table for each search: what was measured last, the fastest first."""
    console = console or Console(width=None if sys.stdout.isatty() else 160)
    new = tables(results)
    for name, row in results["searches"].items():
        search, run = searches()[name], results["runs"][row["run"]]
        entries = row["stages"][-1]
        present = search.presents
        taken = {
            name: new[name].get(search.head_dims, new[search.way][search.head_dims])
            for name in present
        }
        columns = {name: relative_times(timed(search, entries), DECIDING[name]) for name in present}
        times = columns[search.way]
        table = Table(
            "tiling", "bytes", *(f"{variant} ms" for variant in search.variants),
            *(f"for {name}" for name in present), "",
            title=f"{name}, {run['date']}, {run['card']['name']}",
        )  # fmt: skip
        found = {tiling_of(search.way, entry["tiling"]): entry for entry in entries}
        for tiling in sorted(found, key=lambda tiling: times.get(tiling, 99.0)):
            entry = found[tiling]
            marks = [mark for mark, is_so in (
                ("present", tiling == search.present),
                *((f"chosen for {name}", tiling == own) for name, own in taken.items()),
            ) if is_so]  # fmt: skip
            medians = [entry["ms"].get(variant) for variant in search.variants]
            table.add_row(
                in_words(tiling),
                str(entry["bytes"]),
                *("" if ms is None else f"{statistics.median(ms):.3f}" for ms in medians),
                *(f"{own[tiling]:.3f}" if tiling in own else "" for own in columns.values()),
                entry.get("failed", ", ".join(marks)),
            )
        console.print(table)


if __name__ == "__main__":
    main()
