"""A resumed run's records equal an uninterrupted one's, apart from times and costs."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import learnscope as ls
from learnscope.session.opening import open_backend

DATA = torch.randn(400, 6, generator=torch.Generator().manual_seed(1))


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def probes() -> list[ls.Probe]:
    return [
        ls.GradientFlow(every=3, stability=True),
        ls.ParameterChange(every=10),
        ls.Loss(),
        ls.LearningRate(every=5),
        ls.Holdout(every=7),
    ]


def holdout() -> Any:
    return [(DATA[:32], (DATA[:32, 0] > 0).long())]


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, w: ls.Watch, first: int, last: int) -> None:
    for step in range(first, last):
        optimizer.zero_grad()
        for part in range(2):  # accumulation: the noise scale keeps averages that must survive
            x = DATA[(step * 16 + part * 8) % 384 :][:8]
            loss = F.cross_entropy(model(x), (x[:, 0] > 0).long() + (x[:, 1] > 1).long()) / 2
            loss.backward()
            w.log(loss=loss)
        optimizer.step()


def numbers(run: ls.Run) -> list[tuple[Any, ...]]:
    frame = run.frame().drop(columns=["time", "cost", "attempt"])
    return [tuple(None if value != value else value for value in row) for row in frame.itertuples(index=False)]


def uninterrupted(folder: Path) -> ls.Run:
    model, optimizer = make()
    with ls.watch(model, optimizer, run=folder, probes=probes(), holdout=holdout(), strict=True) as w:
        steps(model, optimizer, w, 0, 40)
    return ls.open_run(folder)


@pytest.mark.parametrize(("stop", "overshoot"), [(25, 0), (25, 6), (26, 0), (30, 1)])
def test_resumed_records_equal_uninterrupted_ones(tmp_path: Path, stop: int, overshoot: int) -> None:
    """Also from a checkpoint older than the last record: what came after it is superseded, not deleted."""
    whole = uninterrupted(tmp_path / "whole")
    folder = tmp_path / "parts"
    model, optimizer = make()
    w = ls.watch(model, optimizer, run=folder, probes=probes(), holdout=holdout(), strict=True)
    steps(model, optimizer, w, 0, stop)
    checkpoint = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    assert w.save_state() is not None
    steps(model, optimizer, w, stop, stop + overshoot)
    w.close("interrupted")

    model, optimizer = make()
    model.load_state_dict(checkpoint[0])
    optimizer.load_state_dict(checkpoint[1])
    again = ls.watch(
        model, optimizer, run=folder, probes=probes(), holdout=holdout(), strict=True, resume=True, step=stop
    )
    steps(model, optimizer, again, stop, 40)
    again.close()
    run = ls.open_run(folder)
    assert run.manifest["attempts"][1]["state_restored"] is True
    assert numbers(run) == numbers(whole)
    kept = len(list(run.records(superseded=True))) - len(list(run.records()))
    assert kept == (0 if overshoot == 0 else kept)
    assert (kept > 0) == (overshoot > 0)


def test_without_a_saved_state_the_span_says_where_it_starts(tmp_path: Path) -> None:
    model, optimizer = make()
    with ls.watch(model, optimizer, run=tmp_path / "r", probes=probes(), holdout=holdout()) as w:
        steps(model, optimizer, w, 0, 15)
    lost = "no state was saved at step 15, so what GradientFlow, ParameterChange remembered"
    with pytest.warns(ls.ProbeWarning, match=lost):
        w = ls.watch(model, optimizer, run=tmp_path / "r", probes=probes(), holdout=holdout(), resume=True)
    assert ls.open_run(tmp_path / "r").manifest["attempts"][1]["state_restored"] is False  # also if it is killed now
    with w:
        steps(model, optimizer, w, 15, 25)
    run = ls.open_run(tmp_path / "r")
    assert [finding.title for finding in run.findings() if finding.kind == "state_missing"] == [
        "Resumed at step 15 without what 2 probes remembered"
    ]
    assert [record.notes["span"] for record in run.records("ParameterChange")] == [[0, 10], [15, 20]]
    assert run.manifest["attempts"][1]["state_restored"] is False


def test_a_run_is_not_continued_by_accident(tmp_path: Path) -> None:
    model, optimizer = make()
    with ls.watch(model, optimizer, run=tmp_path / "r", probes=[ls.LearningRate(every=1)]) as w:
        steps(model, optimizer, w, 0, 2)
    earlier = (tmp_path / "r" / "records.jsonl").read_bytes()
    with pytest.raises(ls.RunError, match="already holds a run"):
        ls.watch(model, optimizer, run=tmp_path / "r", exist="refuse")
    with pytest.raises(ValueError, match="exist"):
        ls.watch(model, optimizer, run=tmp_path / "r", exist="overwrite")  # type: ignore[arg-type]
    for number in (2, 3):  # a script that is run again takes the next free name, and says so
        with pytest.warns(ls.ProbeWarning, match=rf"r already holds a run: this one goes to .*r-{number}\."):
            w = ls.watch(model, optimizer, run=tmp_path / "r", probes=[ls.LearningRate(every=1)])
        with w:
            steps(model, optimizer, w, 0, number)
        assert w.run.path == tmp_path / f"r-{number}"
        assert ls.open_run(tmp_path / f"r-{number}").last_step == number
    assert (tmp_path / "r" / "records.jsonl").read_bytes() == earlier
    with pytest.raises(ValueError, match="resume=True needs the run"):
        ls.watch(model, optimizer, resume=True)


def test_resume_starts_a_run_that_is_not_there(tmp_path: Path) -> None:
    model, optimizer = make()
    with ls.watch(model, optimizer, run=tmp_path / "new", probes=[ls.LearningRate(every=1)], resume=True) as w:
        steps(model, optimizer, w, 0, 3)
    assert ls.open_run(tmp_path / "new").last_step == 3


def test_epochs_go_on(tmp_path: Path) -> None:
    model, optimizer = make()
    for resume in (False, True):
        with ls.watch(
            model,
            optimizer,
            run=tmp_path / "r",
            probes=[ls.Holdout(at="epoch", every=1)],
            holdout=holdout(),
            resume=resume,
        ) as w:
            for _ in range(2):
                steps(model, optimizer, w, 0, 2)
                w.end_epoch()
    assert [record.epoch for record in ls.open_run(tmp_path / "r").records("Holdout")] == [0, 1, 2, 3]


def test_an_interrupted_loop_is_recorded_as_such(tmp_path: Path) -> None:
    model, optimizer = make()
    with pytest.raises(KeyboardInterrupt):
        with ls.watch(model, optimizer, run=tmp_path / "r", probes=[ls.LearningRate(every=1)]) as w:
            steps(model, optimizer, w, 0, 2)
            raise KeyboardInterrupt
    assert ls.open_run(tmp_path / "r").manifest["status"].startswith("interrupted by KeyboardInterrupt")


@pytest.mark.parametrize("closed", [False, True], ids=["still training", "finished meanwhile"])
def test_two_sessions_that_take_the_same_free_name(closed: bool, tmp_path: Path) -> None:
    """Both find the folder free before either writes; the second goes to the next name, whatever the first did."""
    first, second = (open_backend(tmp_path / "r", resume=False, exist="next") for _ in range(2))
    first.put_manifest({"who": "first"})
    if closed:
        first.close()
    with pytest.warns(ls.ProbeWarning, match=r"this one goes to .*r-2\."):
        second.put_manifest({"who": "second"})
    second.close()
    first.close()
    second.put_manifest({"who": "second again"})  # its own folder is not taken for another's
    second.close()
    written = {path.parent.name: json.loads(path.read_text())["who"] for path in tmp_path.glob("*/run.json")}
    assert written == {"r": "first", "r-2": "second again"}


def test_a_name_that_was_asked_for_is_not_changed(tmp_path: Path) -> None:
    first, second = (open_backend(tmp_path / "r", resume=False, exist="refuse") for _ in range(2))
    first.put_manifest({})
    with pytest.raises(ls.RunError, match="being written by another process"):
        second.put_manifest({})
    first.close()


def test_a_run_that_goes_back_keeps_the_states_it_saves_from_then_on(tmp_path: Path) -> None:
    """Those of later steps are of an attempt that is superseded, and are the first to go."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def save(first: int, last: int, **options: Any) -> list[str]:
        with ls.watch(model, optimizer, run=tmp_path / "r", probes=[ls.ParameterChange(every=1)], **options) as w:
            for _ in range(first, last):
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()
                w.save_state()
        return sorted(path.stem[-2:] for path in (tmp_path / "r" / "state").iterdir())

    assert save(0, 6) == ["04", "05", "06"]
    with pytest.warns(ls.ProbeWarning, match="no state was saved at step 1"):
        assert save(1, 2, resume=True, step=1) == ["02", "05", "06"]
