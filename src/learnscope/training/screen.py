"""What a training prints: the settings, a bar or lines of progress, and the result."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text
from transformers import TrainerCallback
from typing_extensions import override

import learnscope as ls
from learnscope.progress import progress_bar
from learnscope.report.terminal import print_findings

SHOWN = {
    "loss": "loss",
    "mean_token_accuracy": "accuracy",
    "reward": "reward",
    "kl": "kl",
    "grad_norm": "gradient norm",
}
"""Which of the logged names are shown, and what they are called on the screen."""


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
        """A bar that disappears when it is done; a line where there is no terminal."""
        if not self.console.is_terminal:
            self.say(f"{what} …")
        with progress_bar(what, console=self.console, after=0.0) as update:
            yield update

    def outcome(self, trainer: Any, method: str, folder: Path, tracking: Any) -> None:
        """Print first and last loss, where the files are, the findings, and what to type next."""
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
        more = "Shortened: `learnscope report` shows all of it."
        print_findings(run.findings(), self.console, run.checks(), more=more)
        self.say(f"next: learnscope report {shlex.quote(str(tracking.folder))}")

    def broken_off(self, step: int, folder: Path, checkpoint: Path | None, error: BaseException) -> None:
        """After Ctrl-C or an error: print how far training came, and how to resume."""
        self.say(f"\nbroken off after {step} steps by {type(error).__name__}", style="bold")
        if checkpoint is None:
            self.say(f"no checkpoint was written; config.training.save_steps says how often they are ({folder})")
        else:
            self.say("to go on: the same command with --config.training.resume_from_checkpoint latest")


class ProgressLines(TrainerCallback):
    """A bar with the newest numbers on a terminal; elsewhere a line each time the trainer logs."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._bar: Progress | None = None
        self._task: Any = None

    @override
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self._screen.console.is_terminal:
            return
        numbers = TextColumn("steps  {task.fields[numbers]}")
        columns = (BarColumn(), MofNCompleteColumn(), numbers, TimeRemainingColumn())
        self._bar = Progress(*columns, console=self._screen.console, transient=True)
        self._task = self._bar.add_task("", total=state.max_steps, completed=state.global_step, numbers="")
        self._bar.start()

    @override
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=state.global_step)

    @override
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        logs = logs or {}
        numbers = "  ".join(f"{word} {float(logs[name]):.4g}" for name, word in SHOWN.items() if name in logs)
        if not numbers or "train_runtime" in logs:
            return
        if self._bar is not None:
            self._bar.update(self._task, numbers=numbers)
        else:
            self._screen.say(f"step {state.global_step:>{len(str(state.max_steps))}}/{state.max_steps}  {numbers}")

    def close(self) -> None:
        """Called also after an error: a bar that is left running would hide what is printed next."""
        if self._bar is not None:
            self._bar.stop()

    @override
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()
