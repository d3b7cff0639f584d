"""Five small models trained in about a minute: one healthy, three broken on purpose, one that groks."""

from __future__ import annotations

import time
from pathlib import Path

import torch

import learnscope as ls
from learnscope.demo import data, screen
from learnscope.demo.grokking import train_grokking, when_it_grokked
from learnscope.demo.runs import train_healthy, train_nan, train_overfit, train_vanishing
from learnscope.demo.scenario import Scenario, check_free, clear
from learnscope.model.cost.timing import fixed_threads

SCENARIOS = (
    Scenario(
        "digits",
        "A healthy run: a small conv net on handwritten digits. Look for gradient norms that stay together, "
        "a warm-up and a cosine, and the noise scale that grows as the loss falls.",
        train_healthy,
    ),
    Scenario(
        "overfit",
        "200 examples, a fifth of them labelled wrong, for far too long. Look for the held-out loss that turns "
        "and rises while the training loss still falls.",
        train_overfit,
    ),
    Scenario(
        "vanishing",
        "Eight sigmoid layers, and a head that was replaced after the optimizer was made. Look for the gradient "
        "norms, layer by layer, and for the weights that never change.",
        train_vanishing,
    ),
    Scenario(
        "nan",
        "A norm that is unsafe at zero, and one blank image among 1,437. Look for the tensor in which the first "
        "NaN appeared: it is right below the fault, while the loss of that step was still fine.",
        train_nan,
    ),
    Scenario(
        "grokking",
        "Addition modulo 47 from two fifths of all pairs. Look for the training accuracy that is perfect early, and "
        "the held-out accuracy that stays at chance and then rises much later.",
        train_grokking,
        when_it_grokked,
    ),
)


def run_demo(out: Path, quick: bool = False) -> int:
    """Train the demo's models into folders below `out` and print their findings; returns the exit code.

    Runs of an earlier demo in `out` are replaced; any other folder in their place raises a `RunError`.
    """
    data.digits()  # fails here, if at all: before the first run is removed
    check_free(out / scenario.name for scenario in SCENARIOS)
    console = screen.make_console()
    outcomes = []
    # one thread is fastest for models this small, and gives the same run on every machine
    with fixed_threads(1), torch.random.fork_rng(devices=[]):
        for number, scenario in enumerate(SCENARIOS, 1):
            console.print(f"\n[bold]{number}/{len(SCENARIOS)} {scenario.name}[/bold]\n{scenario.look_for}")
            clear(out / scenario.name)
            started = time.perf_counter()
            with screen.progress(console) as show:
                scenario.train(out / scenario.name, quick, show)
            seconds = time.perf_counter() - started
            with console.status("drawing the report"):
                run = ls.open_run(out / scenario.name)
                report, findings = run.report_with_findings(format="html")
            outcome = screen.Outcome(scenario.name, run, findings, report)
            screen.result(console, scenario, outcome, seconds)
            outcomes.append(outcome)
    screen.closing(console, outcomes)
    return 0
