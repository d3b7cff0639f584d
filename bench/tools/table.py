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

For the bounds that are missed, where the time goes, by the thread's own processor time within each call of a loop that
runs (machine A, shared with others: read the parts as shares of one another).

- **In a loop nothing of ours is in the caches.** Handing a batch of 64 × 10 logits to the ledger takes 6 µs when it
  is repeated and 35 to 45 µs between two steps of a training; an empty function takes 4 µs there. Fewer calls help,
  faster ones hardly do.
- **Ledger under `watch`**, of a step of 1.25 ms: copying ids, logits and targets 35 to 45 µs (one `_foreach_copy_` for
  all three takes 28 of it; three clones or `memmove` would take 22, NumPy 44), scoring and adding up 64 examples 30
  to 37 (half of it in the arithmetic), the hooks of the step 60, the epoch's statistics 17,
  `examples.parquet` every ten epochs 15, of which compression is a quarter. 5 % are 62 µs. Batches wait and are scored
  up to 32 at a time, which here is once an epoch. By a newer profile, of a step of 1.9 ms (loaded): handing over 75, of
  which the copy 22; scoring 17, adding up 16, sums over groups 7, statistics and record of the epoch 35, the file 13 to
  36. The file takes 3.7 ms, of which pyarrow's writing is 2.3, 1.6 into memory; a buffer before the file saves 0.3. Not
  tried: to write it on another thread, which would save at most these.
- **The ledger's exponent over examples**: the number of operations is linear; the rows of 10⁴ examples fit into the
  cache and those of 10⁷ do not. A row is one piece of 112 bytes, where it was three of 24, 48 and 40, and is read
  once a presentation. Old and new code in turns, loaded: with ids 0..N−1 0.72 of the time among 10⁴, 0.71 among 10⁵
  and 0.65 among 10⁶ (0.14 µs an example beside 0.21); with any ids 0.88, 0.83 and 0.99, most of which is looking for
  them. As few examples became faster too, the exponent falls less than the time. The rows grow by moving pages
  (`mremap`), without a second copy: 125 bytes each at 10⁶ instead of 198, 133 instead of 203 with any ids. NumPy's
  own `resize` copied here.
- **`track_batch` without logits, a model in a class of its own**: the guard takes 160 µs when repeated, of which
  NumPy's `get_state` and `set_state` are 64 and the other generators 22 (on a loaded machine 335, of which 100 and 50,
  hooks that set gradients aside 56, looking for hooks that were added 32). Reading NumPy's state directly from its
  memory would take 1 µs, but does not tell whether a second normal number is kept. A forward that ran already cannot
  stand in for it: it was in training mode and with the weights before the step, so the numbers would be others than
  those documented.
- **Adapter gradients**, 0.69 of the time of the code before, in turns (396 pairs; 0.26 ms beside 0.39 at best tenth):
  Σg² of 32 tensors in rows of 512 takes 0.13 by NumPy's product of rows, beside 0.16 to 0.19 by torch's norm of rows,
  and is as good where all entries are equal (2e-8; `_foreach_norm` is wrong by 1e-5 there). 2 MB are read for it,
  which no cache of a core holds: 0.05 to 0.08. Looking whether the model has changed takes 0.03 instead of 0.04 to
  0.07; names, the moment and the probe 0.1.
- **Adapter spectra**, of 8.7 ms where the QR core by itself takes 3.5 (a loaded machine: read the parts as shares): Q
  and R of all factors 2.1 (by Cholesky where a factor's condition is below 64, else by reflections, which take 3.4),
  inner products with earlier spans 1.6, their eigenvalues 0.7, the cores' values 0.4, bringing the factors into
  float64 0.6, reading the adapters 0.5, numbers and columns 0.9 (1.5 before they were made with NumPy), comparing
  what was kept 0.7. Old and new code in turns on one model: 0.97 of the time (medians of 56 pairs), 8.0 ms at best
  tenth beside 8.2. NumPy's products of long, thin factors take half of torch's time, and a quarter less in rows than
  in columns; both earlier spans of a module side by side, as one product, take as long as two.
- **Gradients at every step**: 2 of the 2.7 ms a step are before the step, in `GradientFlow`, of which by an earlier
  profile two thirds read 2 MB of gradients that are not in the cache, twice. Not tried: to read them in the backward. A
  newer profile, of 1.7 ms beside a step of 46 (loaded): norms and zeros of seven large gradients 0.5, of 21 small ones
  in one matrix 0.25 and 0.2 to copy them there, choosing how each is read 0.2 (0.03 when repeated), names and scopes
  0.35, the record 0.15. One look for zeros takes as long as the norm; NumPy's or torch's count of floats, in place of a
  comparison and a count of its flags, takes three times as long. In a later profile (2.3 ms, more loaded) a quarter,
  0.58, was the share of entries at the limit of a clip by value, which is counted in a fifth of the time now (0.07 to
  0.10 instead of 0.35 to 0.52 for 128,000 entries when repeated): of what is left, most waits for memory. Since then
  gradients of float32 in the memory of the host are squared where they are, by NumPy's product of rows, and the small
  ones are joined in float64 instead of being copied into rows: `GradientFlow` takes 1.2 ms a step instead of 1.6
  (quiet). Of these, reading 2.2 MB once takes 0.16 by itself, as they are not in the cache, the look for zeros 0.11 to
  0.25 in pieces of any size, the share at the limit of a clip 0.1, names and scopes 0.1; making and writing the record
  0.2. Not tried: to leave out the look for zeros, as its number is recorded.
- **Parameter change at every step**: 4.8 ms a step beside 5.9 before, of which the statistics of 0.5 M entries are
  1.75 (about 1.0 when repeated: 16 passes over pieces that the cache holds), copying weights and snapshot into shared
  rows 0.55, the rest around them 0.6, making and writing the record 0.9 (since then all kinds of scopes are
  tabled in one pass), the new snapshot 0.2, the hooks 0.2. Smaller pieces take longer (128 rows 1.96, 512 rows 1.6),
  since calls cost more than misses. A compiled kernel takes 0.5 ns an entry, and seven seconds to compile. Since then
  the snapshot of a model of up to 2²⁰ entries lies in rows, and the copy of the weights in rows becomes the next
  snapshot: 4.8 ms instead of 5.6, old and new code in turns in one process on a loaded machine (medians of 57 steps of
  43 ms). Of the rest, half is the 16 passes, a tenth the one copy into rows, a sixth the record.
- **Parameter change, 124 M**: the kernel reads both copies at 1.3 to 1.8 × dot in one call and is bound by its
  arithmetic (0.5 ns an entry); 52 calls for the tensors of a GPT-2 add 0.1 ms each, most of it in the compiler's
  checks. The new snapshot is a plain copy, 1.0 to 1.2 × dot by itself: with it, no less than 2.2 is possible in two
  passes. A kernel that also writes the copy was tried: the compiler makes two loops of it (2.3 to 2.7 × dot).
- **Sparse quality**: its ten forwards take less than ten plain ones, since GPT-2's activation is computed in fewer
  operations (10.1 to 10.4 forwards in all beside 10.5 to 10.9 without, code of before and after in turns); exchanging
  entries ten times takes 0.6 of one, choosing entries at random 0.3, comparing the outputs of nine variants 0.25.
- **Layer sensitivity**: bound by matrix products. A small model's re-evaluation takes 2.07 s and the probe 0.92, of
  which 0.43 are products of what follows the unit (0.53 of those of all blocks, at 111 GFLOPS, as large products have),
  attention 0.19, the head 0.05, activations 0.03, 0.06 the calls of modules, 0.13 all that is not a forward: comparing
  outputs 0.04, the model's own pass 0.03, quantising 0.03. Of what was saved (1.4 s before), new pages for what a pass
  has freed were 0.2, the activation in five operations 0.25, two groups of three variants instead of one of six 0.03.
  The limit that is measured beside it runs each variant's suffix by itself.
- **Whole audit**: half of the processor time are matrix products, at the speed that large ones have. GPT-2's activation
  in five operations was an eighth, and is now a thirtieth where outputs are compared. At one thread an audit of 9.8 M
  takes 98 s of the processor beside 109, code of before and after at the same time on a loaded machine, one run each.
  Not tried: to judge fewer of the 26 configurations by default, as `--quick` does, which would take some 15 s less and
  leave most of the frontier unjudged.
- **Default audit of a Llama of 15 M**, by a profile on a loaded machine (shares of 217 s): products of matrices 36 %,
  most of them with the head of 32,000 tokens; comparing outputs 8 (14 before sums of 128 entries were taken in float32
  and exponentials of the reference kept); rounding weights by GPTQ and AWQ 10; importing and loading 9, figures and
  report 8. The logits of a pass are 115 MB, whose pages were taken anew each time, a tenth of an audit. glibc now keeps
  what is freed while bits and robustness are examined: 146 s beside 188, one run each with the other core busy; the
  most memory of a quick audit is 1,212 MB beside 1,239. Not kept: torch's large pages (a fifth less for a repeated
  product, nothing that could be seen of an audit).
- **A step of a tiny MLP**, on a loaded machine: read the parts as shares. A step at which nothing is due took 190 µs,
  of which what the loop logs was half: a moment, a firing, a measurement and a record for one number. It is kept as it
  is now, and its line is filled into a form when 50 of them are written: logging 15 µs, keeping the number 15
  to 24, its line 3 instead of 20 to 25. What is left of such a step, 80 µs (p10) beside 128 before, has no large part:
  hooks of four parameters 12 and as much in torch, which wraps a gradient for each; the optimizer's hooks 15 before and
  25 after the step; planning the next 10; hooks that see what a backward has added 2; queues of sinks, without sinks,
  nothing that could be measured. A step with something due: `ParameterChange` 1.7 ms (a third in its tables and
  line), `GradientFlow` 0.47, `Objective` 0.4, `Inputs` 0.35, `LoopCalls` 0.15, `LearningRate` 0.07. Since then such a
  quiet step calls 57 functions of ours instead of 98: additions to a gradient are counted by a hook that is one call in
  C, a model without dropout and batch norm has no hook on its forward, and what is called at every step has no wrapper
  around it. Nine loops in turns, so that nothing is in the caches, on a loaded machine: 86 µs (p10) or 128 (median) a
  quiet step, and 148 or 192 with the code before; without logging 59, without the hooks of `LoopCalls` 53, a session
  without any probe 43. Of these 43, two hooks on each of three parameters take about 18, even if they do nothing: torch
  takes the interpreter's lock and wraps the gradient. Of the others, 60 empty functions would take 11. Records are made
  and written every 50 steps, so that the mean is 54 above the median, and 8 above it with losses alone. Since then 48
  functions are called instead of 64, which is 2 to 8 µs of 110 (p10; old and new code in turns in one process, on a
  loaded machine) and not to be seen in medians. Tried and left: no hooks on parameters, but one function around the
  call that starts every backward, which compares gradients before and after it. Counts were the same, but its own
  lines cost about what the hooks do: −6, −10, +23, −11 µs at p10 in four runs. What no probe is charged for, once
  in a process: objects made while records are written set off a collection of all that the process has imported,
  120 to 290 ms, somewhere in the first 100 steps. The collector is now off while records are written; the objects of
  measurements that wait, and those of the training itself, can still bring it about: 1,000 steps have 5 collections
  instead of 14, and 1 unwatched.
- **Default probes on a small GPT-2**. What no probe was charged for was `Inputs` reading the model's outputs in a hook
  of the forward: √(Σy²/n) of 512 × 1,000 logits made two copies in float64, 6 ms (0.7 where it needs no new pages, of
  which it took 2,100), and takes 0.3 to 0.5 in pieces of 2¹⁴. `Objective` took 16 for the same logits beside a training
  (2.5 when repeated), and takes 0.7: NumPy's argmax takes a twelfth of torch's maximum by rows, `amin` and `amax` over
  columns a tenth of `aminmax`, and logarithms of sums are taken only of rows that can be logarithms. A step at which
  all is due now has `ParameterChange` 4.0 ms, what is seen of outputs, loss and tokens 3.4, `GradientFlow` 2.1, making
  records 1.5: together a quarter of a step. In the first 100 steps there are ten of them, which is why these are given
  apart. At other steps the hooks take 0.1 to 0.2 ms. A training step of this size takes 0 to 5,000 new pages itself,
  watched or not, which is most of what its time wavers by. By segments of a step (quiet, 200 steps): of a step at which
  all is due 2.9 ms are added to the forward and 3.9 to the optimizer's step; of any other step 0.06 to 0.08 to the
  forward and 0.10 to the step. Of the 2.9: what a loss is given 1.1, its tokens 0.6, √(Σy²/n) of two outputs 0.8,
  inputs 0.5. Tried and left: to square outputs in float32 by rows, which takes half the time and is off by 1e-9. The
  collector's part is 0.02 ms a step.
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
