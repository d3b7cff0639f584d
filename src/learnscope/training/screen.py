"""What a training prints: facts before, a bar or tidy lines during, and what came out after."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text
from transformers import TrainerCallback
from typing_extensions import override

import learnscope as ls
from learnscope.report.terminal import print_findings

SHOWN = {
    "loss": "loss",
    "mean_token_accuracy": "accuracy",
    "reward": "reward",
    "kl": "kl",
    "grad_norm": "gradient norm",
}
"""Of what trainers log, and what it is called on the screen."""


class Screen:
    """Prints to a terminal, or as plain lines to a file or pipe."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, emoji=False)
        self._begun = time.monotonic()

    def say(self, text: str, style: str = "") -> None:
        # a path is for copying: it is never broken into two lines
        self.console.print(Text(text, style=style), soft_wrap=True)

    def facts(self, **facts: str) -> None:
        width = max(len(name) for name in facts)
        for name, fact in facts.items():
            self.say(f"{name:<{width}}  {fact}")

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """A bar that goes away when it is done; a line where there is no terminal."""
        if not self.console.is_terminal:
            self.say(f"{what} …")
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, of: bar.update(task, completed=done, total=of)

    def outcome(self, trainer: Any, method: str, folder: Path, tracking: Any) -> None:
        """How it went, where the files are, what was found, and what to type next."""
        state = trainer.state
        name = "loss" if method == "sft" else "reward"
        values = [entry[name] for entry in state.log_history if name in entry]
        course = f", {name} {values[0]:.3g} → {values[-1]:.3g}" if values else ""
        self.say(f"\n{state.global_step} steps, {time.monotonic() - self._begun:.0f} s in all{course}", style="bold")
        self.say(f"adapter   {folder} (PEFT)")
        if tracking is None:
            return
        self.say(f"records   {tracking.folder}")
        folders = sorted({str(path.parent) for path in tracking.written if path.parent != tracking.logs})
        finals = [str(path) for path in tracking.written if path.parent == tracking.logs]
        for place in (*folders, *finals):
            self.say(f"tracked   {place}")
        self.say("")
        run = ls.open_run(tracking.folder)
        print_findings(run.findings(), self.console)
        self.say(f"next: learnscope report {shlex.quote(str(tracking.folder))}")

    def broken_off(self, step: int, folder: Path, checkpoint: Path | None, error: BaseException) -> None:
        """What is there after a Ctrl-C or an error, and how to go on."""
        self.say(f"\nbroken off after {step} steps by {type(error).__name__}", style="bold")
        if checkpoint is None:
            self.say(f"no checkpoint was written; config.training.save_steps says how often they are ({folder})")
        else:
            self.say("to go on: the same command with --config.training.resume_from_checkpoint latest")


class ProgressLines(TrainerCallback):
    """A bar with the newest numbers on a terminal, a line for every logging elsewhere."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._bar: Progress | None = None
        self._task: Any = None

    @override
    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if not self._screen.console.is_terminal:
            return
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps  {task.fields[numbers]}"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=self._screen.console, transient=True)
        self._task = self._bar.add_task("", total=state.max_steps, completed=state.global_step, numbers="")
        self._bar.start()

    @override
    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=state.global_step)

    @override
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **given: Any) -> None:
        numbers = "  ".join(_shown(logs or {}))
        if not numbers or "train_runtime" in (logs or {}):
            return
        if self._bar is not None:
            self._bar.update(self._task, numbers=numbers)
        else:
            self._screen.say(f"step {state.global_step:>{len(str(state.max_steps))}}/{state.max_steps}  {numbers}")

    def close(self) -> None:
        """Also after an error: a bar that is left running would swallow what is printed next."""
        if self._bar is not None:
            self._bar.stop()

    @override
    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.close()


def _shown(logs: dict[str, Any]) -> Sequence[str]:
    return [f"{word} {float(logs[name]):.4g}" for name, word in SHOWN.items() if name in logs]
