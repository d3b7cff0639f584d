"""What the demo prints. Nothing moves, and no line is cut, where the output is not a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text
from torch import Tensor

import learnscope as ls
from learnscope.demo.scenario import Scenario, Show

COLOURS = {"critical": "bold red", "warning": "yellow", "info": "cyan"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished run as the closing table shows it."""

    name: str
    run: ls.Run
    findings: Sequence[ls.Finding]
    report: Path


def make_console() -> Console:
    """Rich assumes 80 columns where there is no terminal; a log or a pipe has room for more."""
    console = Console(highlight=False, emoji=False)
    return console if console.is_terminal else Console(highlight=False, emoji=False, width=120)


def heading(console: Console, number: int, of: int, scenario: Scenario) -> None:
    console.print()
    console.print(Text.assemble((f"{number}/{of} {scenario.name}", "bold")))
    console.print(Padding(Text(scenario.look_for), (0, 0, 0, 4)))


@contextmanager
def progress(console: Console) -> Iterator[Show]:
    """A bar with steps and loss that goes away when the run is done."""
    columns = (
        TextColumn("   "),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps  loss {task.fields[loss]:.4f}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, loss=float("nan"))

        def show(step: int, steps: int, loss: Tensor) -> None:
            bar.update(task, completed=step, total=steps, loss=loss.item())

        yield show


def result(console: Console, scenario: Scenario, outcome: Outcome, seconds: float) -> None:
    """How the run went, what was found in it, and where the report is."""
    run = outcome.run
    facts = [f"{run.last_step} steps in {seconds:.1f} s", f"loss {_course(run, 'loss')}"]
    facts.append(f"held-out loss {_course(run, 'holdout_loss')}")
    if scenario.outcome is not None:
        facts.append(scenario.outcome(run))
    found = [
        Text.assemble((f"{finding.severity}: ", COLOURS[finding.severity]), finding.title)
        for finding in outcome.findings
    ]
    lines = [
        Text(", ".join(facts), style="dim"),
        *(found or [Text("nothing found: a healthy run", style="green")]),
        Text(f"report: {outcome.report}", overflow="fold"),
    ]
    for line in lines:
        console.print(Padding(line, (0, 0, 0, 4)))


def closing(console: Console, outcomes: Sequence[Outcome]) -> None:
    """All runs in one table, and what to type next."""
    table = Table(title="What the demo recorded", title_justify="left", title_style="bold")
    table.add_column("run", no_wrap=True)
    table.add_column("steps", justify="right", no_wrap=True)
    table.add_column("findings")
    table.add_column("report", overflow="fold")
    for outcome in outcomes:
        table.add_row(outcome.name, str(outcome.run.last_step), _summary(outcome.findings), Text(str(outcome.report)))
    console.print()
    console.print(table)
    folder = outcomes[-1].run.path
    console.print("\nNext:")
    console.print(f"    learnscope report {folder}", markup=False, soft_wrap=True)
    code = f'import learnscope as ls; run = ls.open_run("{folder}"); run.frame()'
    console.print(f"    python -i -c '{code}'", markup=False, soft_wrap=True)


def _summary(findings: Sequence[ls.Finding]) -> Text:
    """How many of each severity, and the gravest in words."""
    if not findings:
        return Text("none", style="green")
    counts = Counter(finding.severity for finding in findings)
    text = Text()
    for severity, colour in COLOURS.items():
        count = sum(n for kept, n in counts.items() if kept == severity)
        if count:
            text.append(", " if text else "").append(f"{count} {severity}", style=colour)
    return text.append(f": {findings[0].title}")


def _course(run: ls.Run, name: str) -> str:
    """First and last value. A value that is not finite was recorded as null, and why."""
    values = run.frame(name=name, kind="model").sort_values("step")
    first, last = (values.iloc[at] for at in (0, -1))
    return " to ".join(f"{row['value']:.3g}" for row in (first, last))


def refuse(message: str) -> None:
    """Why the demo does not run, where errors are looked for."""
    Console(stderr=True, highlight=False).print(message, markup=False, soft_wrap=True)
