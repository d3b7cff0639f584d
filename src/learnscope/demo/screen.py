"""What the demo prints. Without a terminal there is no progress bar, and no line is cut."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text
from torch import Tensor

import learnscope as ls
from learnscope.demo.scenario import Scenario, Show
from learnscope.quantities import Quantity
from learnscope.quantities.outputs import Holdout, Loss
from learnscope.report.terminal import print_findings

COLOURS = {"critical": "bold red", "warning": "yellow", "info": "cyan"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished run, for the closing table."""

    name: str
    run: ls.Run
    findings: Sequence[ls.Finding]
    report: Path


def make_console() -> Console:
    """Rich assumes 80 columns where there is no terminal; a log or a pipe has room for more."""
    return Console(highlight=False, emoji=False, width=None if Console().is_terminal else 120)


@contextmanager
def progress(console: Console) -> Iterator[Show]:
    """A bar with steps and loss that disappears when the run is done."""
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("steps  {task.fields[loss]}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, loss="")

        def show(step: int, steps: int, loss: Tensor) -> None:
            bar.update(task, completed=step, total=steps, loss=f"loss {loss.item():.4f}")

        yield show


def result(console: Console, scenario: Scenario, outcome: Outcome, seconds: float) -> None:
    """Print first and last losses, the findings, and where the report is."""
    run = outcome.run
    losses = [f"loss {_ends(run, Loss.loss)}", f"held-out loss {_ends(run, Holdout.holdout_loss)}"]
    facts = [f"{run.last_step} steps in {seconds:.1f} s", *losses]
    facts += [] if scenario.outcome is None else [scenario.outcome(run)]
    console.print(Text(", ".join(facts), style="dim"))
    more = "Shortened: `learnscope report` shows all of it."
    print_findings(outcome.findings, console, run.checks(), more=more)
    # a path is for copying: it is never broken into two lines
    console.print(Text(f"report: {outcome.report}"), soft_wrap=True)


def closing(console: Console, outcomes: Sequence[Outcome]) -> None:
    """All runs in one table, and what to type next."""
    # paths stay in one line where that leaves enough room for the findings
    short = all(len(str(outcome.report)) <= console.width // 2 for outcome in outcomes)
    table = Table(title="What the demo recorded", title_justify="left", title_style="bold", box=SIMPLE)
    table.add_column("run", no_wrap=True)
    table.add_column("steps", justify="right", no_wrap=True)
    table.add_column("findings")
    table.add_column("report", overflow="fold", no_wrap=short)
    for outcome in outcomes:
        table.add_row(outcome.name, str(outcome.run.last_step), _summary(outcome.findings), Text(str(outcome.report)))
    console.print()
    console.print(table)
    folder = str(outcomes[-1].run.path)
    console.print("\nNext, in a shell and in Python:")
    console.print(Text(f"    learnscope report {shlex.quote(folder)}"), soft_wrap=True)
    console.print(Text(f"    import learnscope as ls; ls.open_run({folder!r}).frame()"), soft_wrap=True)


def _summary(findings: Sequence[ls.Finding]) -> Text:
    """How many of each severity, and the title of the gravest."""
    if not findings:
        return Text("none", style="green")
    counts = Counter(finding.severity for finding in findings)
    parts = [
        Text(f"{count} {severity}{'s' if severity == 'warning' and count > 1 else ''}", style=COLOURS[severity])
        for severity, count in counts.items()
    ]
    return Text(", ").join(parts).append(f": {findings[0].title}")


def _ends(run: ls.Run, quantity: Quantity) -> str:
    """Its first and last value."""
    first, last = run.frame(name=quantity.name, kind="model").sort_values("step")["value"].iloc[[0, -1]]
    return f"{first:.3g} to {last:.3g}"
