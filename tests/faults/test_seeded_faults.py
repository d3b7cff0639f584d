"""One thing happens to a watched training, at a step, with probes and in sizes that a seed draws.

Nothing is lost that was said to be written, and what is lost is said; no other exception than the one that happened;
a training that goes on is the unwatched one, bit for bit; no process hangs; what is left of the run opens and goes on.
"""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

import learnscope as ls
from faults.faulty_run import FEATURES, NO_DISK, Plan, draw, model_of
from faults.strikes import STRIKES
from forked import run_program

PROGRAM = Path(__file__).with_name("faulty_run.py")
SEEDS = 25
LIMIT = 600
"""Seconds that a process may take: one that needs three hangs, also on a busy machine."""


def strike(plan: Plan, room: Path) -> tuple[CompletedProcess[str], list[str]]:
    """The ended process with its warnings; nothing but warnings of ours and the one error may be there."""
    room.mkdir(parents=True, exist_ok=True)
    done = run_program(PROGRAM, plan.kind, str(plan.seed), str(room / "run"), folder=room, timeout=LIMIT)
    if done.returncode == NO_DISK:
        pytest.skip(done.stdout.strip())
    categories = set(re.findall(r"^\S+:\d+: (\w+): ", done.stderr, re.MULTILINE))
    assert categories <= {"ProbeWarning"}, done.stderr
    tracebacks = done.stderr.count("Traceback (most recent call last)")
    assert tracebacks == (1 if plan.kind == "broken loop" and done.returncode == 1 else 0), done.stderr
    return done, re.findall(r"ProbeWarning: (.*)", done.stderr)


def said(done: CompletedProcess[str]) -> int:
    """The last step that the process said was over."""
    return max((int(line) for line in done.stdout.split("\n")[:-1] if line.isdigit()), default=0)


def steps_in(run: ls.Run) -> list[int]:
    return [record.step for record in run.records("LearningRate")]


def on_disk(plan: Plan, over: int) -> list[int]:
    """The steps that were written for certain when `over` of them were over: those of the last few wait."""
    return list(range(1, 1 + (over if plan.write_every == 1 else max(0, over - plan.write_every))))


def went_on(plan: Plan, done: CompletedProcess[str]) -> None:
    """To the end, as if nothing watched."""
    assert done.returncode == 0, done.stderr
    assert said(done) == plan.steps
    assert json.loads(done.stdout.splitlines()[-1]) == [], "differs from the unwatched training"


def go_on(plan: Plan, folder: Path) -> str:
    """What is left can be continued by a step; returns how it had ended, in a word."""
    ended = ls.open_run(folder).status.split()[0]
    before = steps_in(ls.open_run(folder))
    model, optimizer = model_of(plan)
    with ls.watch(model, optimizer, run=folder, probes=[ls.LearningRate(every=1)], resume=True) as w:
        model(torch.zeros(2, FEATURES)).square().mean().backward()
        optimizer.step()
    run = ls.open_run(folder)
    assert run.status == "finished"
    assert steps_in(run) == [*before, w.steps]
    assert w.steps > max(before, default=0)
    assert list(folder.rglob("*.tmp")) == []
    return ended


def check_losses(plan: Plan, room: Path) -> str:
    """Files that cannot be written for a while, or from then on."""
    done, warned = strike(plan, room)
    went_on(plan, done)
    run = ls.open_run(room / "run")
    steps, attempt = steps_in(run), run.manifest["attempts"][-1]
    before = on_disk(plan, plan.at)
    assert steps[: len(before)] == before
    assert steps == sorted(set(steps))
    if run.manifest["status"] == "running":  # it could not say how it ended
        assert run.status == "killed"
        assert any("run.json could not be written" in message for message in warned)
    else:
        counts = attempt["records"]
        assert counts["written"] == len(list(run.records()))
        assert counts["lost"] >= plan.steps - len(steps)
        assert run.status == ("degraded" if counts["lost"] or attempt["files_lost"] else "finished")
        assert bool(warned) == (run.status == "degraded")
    if steps != list(range(1, plan.steps + 1)):
        assert any("a record could not be written" in message for message in warned)
    return go_on(plan, room / "run")


def check_vanished(plan: Plan, room: Path) -> str:
    done, warned = strike(plan, room)
    went_on(plan, done)
    assert any("was removed while" in message or "was moved or removed" in message for message in warned)
    assert not (room / "run").exists()
    if not (room / "moved").exists():
        return "gone"
    assert steps_in(ls.open_run(room / "moved")) == list(range(1, plan.steps + 1))
    return go_on(plan, room / "moved")


def check_truncated(plan: Plan, room: Path) -> str:
    done, warned = strike(plan, room)
    went_on(plan, done)
    cut = re.findall(r"^cut (.*)$", done.stdout, re.MULTILINE)[0]
    run = ls.open_run(room / "run")
    steps = steps_in(run)
    if cut == "records.jsonl":
        assert any("another process cut" in message for message in warned)
        assert run.status == "degraded"
        assert run.problems != []
        assert set(range(plan.at + 2, plan.steps + 1)) <= set(steps)  # the record that met the cut is lost and counted
    else:
        assert steps == list(range(1, plan.steps + 1))
        assert run.status == "finished"
    return go_on(plan, room / "run")


def check_ended(plan: Plan, room: Path) -> str:
    """By a signal that can be heard, or by an error."""
    done, warned = strike(plan, room)
    run = ls.open_run(room / "run")
    if plan.kind == "SIGTERM":
        assert done.returncode == -signal.SIGTERM, done.stderr
        assert run.status == "terminated by SIGTERM"
    else:
        assert done.returncode in (1, 3), done.stderr
        assert run.status.startswith("interrupted by ")
        assert said(done) == plan.at
    assert warned == []
    assert run.problems == []
    assert steps_in(run)[: said(done)] == list(range(1, said(done) + 1))
    assert run.manifest["attempts"][0]["records"] == {"written": len(list(run.records())), "lost": 0}
    return go_on(plan, room / "run")


def check_killed(plan: Plan, room: Path) -> str:
    done, _ = strike(plan, room)
    assert done.returncode == -signal.SIGKILL, done.stderr
    run = ls.open_run(room / "run")
    assert run.status == "killed"
    assert len(run.problems) <= 1
    before = on_disk(plan, said(done))
    assert steps_in(run)[: len(before)] == before
    return go_on(plan, room / "run")


def check_forked(plan: Plan, room: Path) -> str:
    done, warned = strike(plan, room)
    went_on(plan, done)
    assert warned == []
    run = ls.open_run(room / "run")
    assert run.status == "finished"
    assert run.problems == []
    assert steps_in(run) == list(range(1, plan.steps + 1))
    return go_on(plan, room / "run")


CHECKS: dict[str, Callable[[Plan, Path], str]] = {
    "full disk": check_losses, "size limit": check_losses, "read-only folder": check_losses,
    "refused rename": check_losses, "vanished folder": check_vanished, "truncated file": check_truncated,
    "SIGTERM": check_ended, "broken loop": check_ended, "SIGKILL": check_killed, "forked child": check_forked,
}  # fmt: skip
assert CHECKS.keys() == STRIKES.keys()


@pytest.mark.parametrize("kind", CHECKS)
def test_a_fault(kind: str, tmp_path: Path) -> None:
    CHECKS[kind](draw(kind, 0), tmp_path / "room")


@pytest.mark.soak
@pytest.mark.parametrize("kind", CHECKS)
def test_many_faults(kind: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    ends: Counter[str] = Counter()
    for seed in range(1, 1 + SEEDS):
        try:
            ends[CHECKS[kind](draw(kind, seed), tmp_path / str(seed))] += 1
        except AssertionError as error:
            raise AssertionError(f"{draw(kind, seed)}: {error}") from error
    assert kind == "forked child" or set(ends) != {"finished"}, "the fault was felt"
    record_property("faults", SEEDS)
    for end, number in sorted(ends.items()):
        record_property(end, number)
