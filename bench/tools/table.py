"""Make one table of all benchmarks: docs/benchmarks.md, from bench/results/*.json.

    python bench/tools/table.py [--check]

Writes the page and prints its table. `--check` writes nothing, and fails if the page is not what the files give.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from tools.claims import RESULTS, Claim

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
FEWEST = 5
"""Runs of a claim that has a bound, and of a peer."""
HEAD = ("claim", "figure (all runs)", "unit", "limit", "bound", "verdict", "peer, in the same run", "threads", "on")
ABOVE = """\
# Benchmarks

Made by `python bench/tools/table.py` from `bench/results/`, in which every run is kept; `make bench` measures all of it
again and ends with this table. One script alone: `python bench/watch.py`; each says with `--help` what it does.

A figure is the median of all its runs, with the lowest and the highest and how many there were. The limit is what no
implementation could be better than. A bound is a goal that was set beforehand, or what a peer took: it is **held**
or **missed** by all runs, or the figure **wavers** across it. A peer is another project doing comparable work in the
same run, by a median of its own. For all figures, less is better.

"""
BELOW = """
## What limits it

For the bounds that are missed or that a figure wavers across, where the time goes (machine A, shared with others:
read the parts as shares of one another).

- **In a loop nothing of ours is in the caches.** An empty function takes 4 µs between two steps of a training, and
  handing a batch of 64 × 10 logits to the ledger two to three times as long as when it is repeated. Fewer calls help,
  faster ones hardly do. What reads arrays, and the hooks that a backward calls at every step, are therefore in C
  where there is a compiler.
- **Default probes on a small GPT-2** (28.6 ms a step at one thread; six loops in turns, a watched one less an unwatched
  one). A step at which nothing is due takes 0.2 ms more in the median: 0.05 in the backward (two hooks at each of four
  parameters: torch takes the interpreter's lock and wraps a gradient for each), 0.01 to 0.05 in the optimizer's step
  (four hooks in C; 0.11 before they were in C), 0.02 for logging, and 0.1 in no function of ours, as fewer things are
  where they were in the caches. Averaged over 600 steps, by timers in the functions: making and writing records 0.08 a
  step, `GradientFlow` 0.03 (at 40 steps), what is read of logits and targets 0.03 (at 28), `ParameterChange` 0.02 (at
  15), `Inputs` and `Objective` 0.02. 1 % are 0.29. A loop that takes turns with another one sees twice as many seconds
  a step, so that records, which wait for a second at most, are written in smaller portions than in a loop of its own.
  Tried and left: hooks at two parameters in place of four (no difference that could be told); records' text from pieces
  made in Python (292 µs instead of 229 by the encoder in C); a kernel for the text of floats (all text is 0.02 a step);
  no hooks but one function around the call that starts a backward, which costs what the hooks do. A collection of all
  that the process holds takes 0.2 s where transformers is loaded and falls into some step of some loop, so the
  benchmark collects beforehand.
- **Two threads**: a step is half as long, and what is read at a step is read by one thread, as starting a second
  takes longer than reading a million entries.
- **Ledger under `watch`**: of a step of 680 µs, some 65 are added (means of 30 epochs): handing a batch over 10, the
  hooks on the optimizer in C 3 (19 before), torch's own part of hooks at two parameters about 10, and the end of an
  epoch 42 a step. Of these 42, scores are 5, rows of the ledger 3, sums over groups 3, quantiles 5, tables and record
  8, its line and the file of records 6, `examples.parquet` and run.json 10, with pyarrow's first call. 5 % are 34.
  Each of these parts is a few calls of which most of the time is finding them in memory; the arithmetic of an epoch
  is 0.25 ms of its 20. Batches wait and are scored up to 32 at a time. Left as it is: records are written when an
  epoch ends, as a long evaluation may come before the next step. Not tried: one call in C from a waiting batch to the
  ledger's row; no hooks on parameters where only examples are followed, with the gradients' versions in their place.
- **The ledger's exponent over examples**: the number of operations is linear; the rows of 10⁴ examples fit into the
  cache and those of 10⁷ do not. A row is one piece of 112 bytes, asked for some examples before it is read, in large
  pages. Adding to rows of that size in an array, in the same order, has the exponent that stands there as the limit.
- **Tables of many rows** (`frame()`, `run.examples()`): the work is linear: repeated in one process, the table of
  examples takes 246, 195 and 168 ns a row at 1.1·10⁵, 3.3·10⁵ and 10⁶. A first call takes 760, 630 and 840: the
  difference is the system's giving of new memory, some 0.7 s for 10⁶ rows, and reading, unpacking and the table have
  their share of it. The exponent that stands above is of first calls, in which the larger sizes get more new memory.
- **`track_batch` without logits, a model in a class of its own**: the guard takes 160 µs when repeated, of which
  NumPy's `get_state` and `set_state` are 64 and the other generators 22. Reading NumPy's state directly from its
  memory would take 1 µs, but does not tell whether a second normal number is kept. A forward that ran already cannot
  stand in for it: it was in training mode and with the weights before the step, so the numbers would be others than
  those documented.
- **Sparse quality**: its ten forwards take less than ten plain ones, since GPT-2's activation is computed in fewer
  operations (10.1 to 10.4 forwards in all beside 10.5 to 10.9 without, code of before and after in turns); exchanging
  entries ten times takes 0.6 of one, choosing entries at random 0.3, comparing the outputs of nine variants 0.25.
- **Layer sensitivity**: bound by matrix products. A small model's re-evaluation takes 2.07 s and the probe 0.92, of
  which 0.43 are products of what follows the unit (0.53 of those of all blocks, at 111 GFLOPS, as large products
  have), attention 0.19, the head 0.05, activations 0.04, 0.06 the calls of modules, 0.13 all that is not a forward:
  comparing outputs 0.04, the model's own pass 0.04, quantising 0.03. Of what was saved (1.4 s before), new pages for
  what a pass has freed were 0.2, the activation in five operations 0.25, two groups of three variants instead of one
  of six 0.03. The limit that is measured beside it runs each variant's suffix by itself.
"""


@dataclass(frozen=True)
class Results:
    """What one script has kept."""

    script: str
    date: str
    machine: str
    torch: str
    claims: Sequence[Claim]
    absent: Mapping[str, str]
    """Peers that were not measured, and why."""

    @classmethod
    def of(cls, script: str, body: Mapping[str, Any]) -> Results:
        claims = [Claim(**claim) for claim in body["claims"]]
        return cls(script, body["date"], body["machine"], body["torch"], claims, body.get("absent", {}))

    @property
    def where(self) -> str:
        return f"{self.machine}, torch {self.torch}"

    def faults(self) -> list[str]:
        """Claims that have too few runs to be one."""
        few = [f"{self.script}: {c.name}: {len(c.runs)} runs" for c in self.claims if len(c.runs) < least(c)]
        return few + [
            f"{self.script}: {c.name}: {len(c.peer_runs)} runs of {c.peer}"
            for c in self.claims
            if c.peer and len(c.peer_runs) < FEWEST
        ]


def least(claim: Claim) -> int:
    return 1 if claim.bound is None else FEWEST


def read(folder: Path = RESULTS) -> tuple[list[Results], list[str]]:
    """The results by script, and the names of files in another form."""
    found, others = [], []
    for path in sorted(folder.glob("*.json")):
        body = json.loads(path.read_text(encoding="utf-8"))
        if "claims" in body:
            found.append(Results.of(path.stem, body))
        else:
            others.append(path.name)
    return found, others


def page(results: Sequence[Results]) -> str:
    machines = list(dict.fromkeys(one.where for one in results))
    notes: list[str] = []
    parts = [ABOVE, aligned([HEAD, *rows(results, machines, notes)])]
    if machines:
        parts.append("\nMachines: " + "; ".join(f"{letter(i)}: {name}" for i, name in enumerate(machines)) + ".\n")
    if notes:
        parts.append("\nNotes\n\n" + "".join(f"{number}. {note}\n" for number, note in enumerate(notes, 1)))
    absent = [f"- {peer}: {reason}\n" for one in results for peer, reason in one.absent.items()]
    if absent:
        parts.append("\nPeers that were not measured\n\n" + "".join(absent))
    parts.append(BELOW)
    return "".join(parts)


def rows(results: Sequence[Results], machines: Sequence[str], notes: list[str]) -> list[tuple[str, ...]]:
    """A row for each claim; its note goes to the end of the page."""
    made = []
    for one in results:
        for claim in one.claims:
            name = f"{one.script}: {claim.name}"
            if claim.note:
                if claim.note not in notes:
                    notes.append(claim.note)
                name += f" ({notes.index(claim.note) + 1})"
            peer = f"{claim.peer}: {figure(claim.peer_runs)}" if claim.peer else ""
            verdict = claim.verdict if claim.verdict in ("", "held") else f"**{claim.verdict}**"
            on = f"{letter(machines.index(one.where))}, {one.date}"
            made.append((
                name, figure(claim.runs), claim.unit, number(claim.limit), number(claim.bound), verdict, peer,
                str(claim.threads), on,
            ))  # fmt: skip
    return made


def figure(runs: Sequence[float]) -> str:
    """The median, and between which runs it lies."""
    if len(runs) == 1:
        return f"{number(runs[0])} (one run)"
    return f"{number(statistics.median(runs))} ({number(min(runs))} to {number(max(runs))}, {len(runs)} runs)"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def letter(place: int) -> str:
    return chr(ord("A") + place)


def aligned(table: Sequence[Sequence[str]]) -> str:
    """A Markdown table that can be read as text, too."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in table]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    cells.insert(1, ["-" * width for width in widths])
    return "".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |\n" for row in cells
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    options = parser.parse_args()
    results, others = read()
    for name in others:
        print(f"bench/results/{name} is in an older form: left out", file=sys.stderr)
    faults = [fault for one in results for fault in one.faults()]
    for fault in faults:
        print(f"too few runs: {fault}; at least {FEWEST} are needed", file=sys.stderr)
    if faults:
        return 1
    text = page(results)
    stale = not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text
    if options.check:
        if stale:
            print("docs/benchmarks.md is out of date: run `python bench/tools/table.py`", file=sys.stderr)
        return int(stale)
    PAGE.write_text(text, encoding="utf-8")
    print("\n".join(line for line in text.splitlines() if line.startswith("|")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
