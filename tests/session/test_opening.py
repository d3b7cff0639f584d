"""Probes that look when a session opens, and those that look when it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import learnscope as ls


class Opens(ls.Probe):
    """Writes down what it was given when the session opened."""

    refuse: bool = False
    every: int = 1

    def open(self, moment: Any) -> None:
        if self.refuse:
            raise ValueError("there is nothing here to look at")
        moment.state["opened"] = [*moment.state.get("opened", []), moment.step]

    def measure(self, moment: Any) -> dict[str, int]:
        return {"times_opened": len(moment.state["opened"]), "last_opened_at": moment.state["opened"][-1]}


class AtTheEnd(ls.Probe):
    at = "end"

    def measure(self, moment: Any) -> dict[str, float]:
        return {"norm": float(next(iter(moment.model.parameters())).detach().norm())}


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()


def hooks(optimizer: torch.optim.Optimizer) -> int:
    return len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)


def test_a_refusal_at_opening_leaves_nothing_behind(tmp_path: Path) -> None:
    model, optimizer = made()
    with pytest.raises(ValueError, match="nothing here to look at"):
        ls.watch(model, optimizer, run=tmp_path / "run", probes=[Opens(refuse=True)])
    assert not (tmp_path / "run").exists()
    assert hooks(optimizer) == 0
    with ls.watch(model, optimizer, run=tmp_path / "run", probes=[Opens()], strict=True) as w:  # the name is still free
        train(model, optimizer, 1)
    assert w.run.frame("Opens", "times_opened").value.tolist() == [1]


def test_a_refusal_of_a_resumed_session_leaves_its_run_as_it_was(tmp_path: Path) -> None:
    model, optimizer = made()
    with ls.watch(model, optimizer, run=tmp_path / "run", probes=[Opens()], strict=True):
        train(model, optimizer, 2)
    records = (tmp_path / "run" / "records.jsonl").read_bytes()
    with pytest.raises(ValueError, match="nothing here"):
        ls.watch(model, optimizer, run=tmp_path / "run", probes=[Opens(refuse=True)], resume=True)
    assert (tmp_path / "run" / "records.jsonl").read_bytes() == records
    assert hooks(optimizer) == 0
    assert (
        ls.open_run(tmp_path / "run").manifest["status"]
        == "interrupted by ValueError: there is nothing here to look at"
    )
    with pytest.warns(ls.ProbeWarning, match="no state was saved at step 2, so what Opens remembered is lost"):
        w = ls.watch(model, optimizer, run=tmp_path / "run", probes=[Opens()], resume=True, strict=True)
    with w:
        train(model, optimizer, 1)
    assert w.run.frame("Opens", "last_opened_at").value.tolist() == [0, 0, 2]


def test_a_resumed_session_opens_with_its_saved_state(tmp_path: Path) -> None:
    model, optimizer = made()
    with ls.watch(model, optimizer, run=tmp_path / "run", probes=[Opens()], strict=True) as w:
        train(model, optimizer, 2)
        w.save_state()
    with ls.watch(model, optimizer, run=tmp_path / "run", probes=[Opens()], resume=True, strict=True) as w:
        train(model, optimizer, 1)
    frame = w.run.frame("Opens", "times_opened")
    assert frame.value.tolist() == [1, 1, 2]


@pytest.mark.parametrize("source", ["replay", "audit"])
def test_other_sources_open_probes_too(source: str, tmp_path: Path) -> None:
    model, _ = made()
    where = {"run": tmp_path / "run"}

    def look(probe: ls.Probe) -> ls.Run:
        if source == "audit":
            return ls.audit(model, probes=[probe], strict=True, **where)
        return ls.replay({5: model.state_dict()}, model=model, probes=[probe], strict=True, **where)

    with pytest.raises(ValueError, match="nothing here"):
        look(Opens(refuse=True))
    assert not (tmp_path / "run").exists()
    assert look(Opens()).frame("Opens", "times_opened").value.tolist() == [1]


def test_the_end_is_after_the_last_step_and_only_once(tmp_path: Path) -> None:
    model, optimizer = made()
    with ls.watch(model, optimizer, run=tmp_path / "run", probes=[AtTheEnd()], strict=True) as w:
        train(model, optimizer, 3)
    w.close()
    frame = w.run.frame("AtTheEnd", "norm")
    assert frame.step.tolist() == [3]
    assert frame.phase.tolist() == ["end"]
    assert frame.value.tolist() == [float(model.weight.detach().norm())]


def test_a_loop_that_was_cut_short_has_no_end() -> None:
    model, optimizer = made()
    with pytest.raises(KeyboardInterrupt):
        with ls.watch(model, optimizer, probes=[AtTheEnd()], strict=True) as w:
            train(model, optimizer, 2)
            raise KeyboardInterrupt
    assert w.run.frame("AtTheEnd").empty


def test_in_a_replay_the_end_is_the_last_checkpoint() -> None:
    model, optimizer = made()
    checkpoints = {}
    for step in (1, 2, 3):
        train(model, optimizer, 1)
        checkpoints[step] = {name: value.clone() for name, value in model.state_dict().items()}
    run = ls.replay(checkpoints, model=model, probes=[AtTheEnd(), Opens()], strict=True)
    assert run.frame("AtTheEnd", "norm").step.tolist() == [3]
    assert run.frame("Opens", "times_opened").step.tolist() == [1, 2, 3]
