"""WeightDelta as a probe: per layer and group, relative to the weights, and the steps it spans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import learnscope as ls
from learnscope.core.moment import Moment
from learnscope.core.subject import Subject
from learnscope.probes.updates.weight_delta import FIRST, WeightDelta


def made() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))


def wide(model: nn.Module) -> dict[str, Any]:
    return {name: p.detach().double().numpy().copy() for name, p in model.named_parameters()}


def norm(values: list[Any]) -> float:
    return float(np.sqrt(sum((value**2).sum() for value in values)))


def watch(folder: Path, steps: int, every: int = 2, model: nn.Module | None = None) -> tuple[Any, list[dict[str, Any]]]:
    """A watched run; its run and the weights after every step, those at the beginning first."""
    model = model or made()
    optimizer = torch.optim.SGD(
        [{"params": model.get_submodule("0").parameters()}, {"params": model.get_submodule("2").parameters()}], lr=0.1
    )
    kept = [wide(model)]
    probe = WeightDelta(every=every, path=str(folder / "c.pt"), run="a")
    with ls.watch(model, optimizer, run=folder / "run", probes=[probe], strict=True) as w:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            kept.append(wide(model))
    return w.run, kept


def test_layers_groups_and_ratios(tmp_path: Path) -> None:
    run, kept = watch(tmp_path, 6)
    records = list(run.records("WeightDelta"))
    assert [record.step for record in records] == [2, 4, 6]
    members = {("model", "model"): ("0", "2"), ("layer", "0"): ("0",), ("layer", "2"): ("2",)}
    members |= {("group", "group_0"): ("0",), ("group", "group_1"): ("2",)}
    for record in records:
        old, new = (kept[step] for step in record.notes["span"])
        seen = set()
        for row in record.rows():
            names = [name for name in new if name.startswith(members[row.kind, row.scope])]
            change, before = norm([new[n] - old[n] for n in names]), norm([old[n] for n in names])
            expected = {"l2": change, "update_to_weight": change / before}[row.name]
            assert row.value == pytest.approx(expected, rel=1e-6)
            seen.add((row.kind, row.scope, row.name))
        assert seen == {(*place, name) for place in members for name in ("l2", "update_to_weight")}
    assert [record.notes["span"][0] for record in records] == [1, 2, 4]


@pytest.mark.parametrize("every", [1, 3])
def test_the_first_measurement_compares_with_the_weights_before_its_step(tmp_path: Path, every: int) -> None:
    run, kept = watch(tmp_path, every, every=every)
    (record,) = run.records("WeightDelta")
    assert list(record.notes["span"]) == [every - 1, every]
    (value,) = [row.value for row in record.rows() if (row.kind, row.name) == ("model", "l2")]
    expected = norm([kept[every][name] - kept[every - 1][name] for name in kept[0]])
    assert value == pytest.approx(expected, rel=1e-6)


def test_without_anything_kept_every_number_is_null_and_says_why(tmp_path: Path) -> None:
    subject = Subject(made())
    probe = WeightDelta(path=str(tmp_path / "c.pt"), run="a")
    state: dict[str, Any] = {}
    first, second = (
        probe.measure(Moment(step=step, phase="after_step", source="test", subject=subject, state=state))
        for step in (4, 5)
    )
    rows = [row for table in first.tables for row in table.rows()]
    assert {(row.kind, row.scope) for row in rows} == {("model", "model"), ("layer", "0"), ("layer", "2")}
    assert {(row.value, row.status) for row in rows} == {(None, FIRST)}
    assert "span" not in first.notes
    assert second.notes["span"] == [4, 5]
    assert [float(value) for table in second.tables for value in table.columns[0].values] == [0.0] * 3


def test_weights_of_zero_have_no_ratio(tmp_path: Path) -> None:
    model = made()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    run, _ = watch(tmp_path, 4, model=model)
    *_, last = run.records("WeightDelta")
    rows = {(row.name, row.kind, row.scope): row for row in last.rows()}
    assert rows["l2", "layer", "0"].value == 0.0
    assert rows["update_to_weight", "layer", "0"].value is None
    assert rows["update_to_weight", "layer", "0"].status == "nan"


def test_it_agrees_with_the_probe_that_keeps_a_copy_in_memory(tmp_path: Path) -> None:
    model = made()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    probes = [WeightDelta(every=3, path=str(tmp_path / "c.pt"), run="a"), ls.ParameterChange(every=3)]
    with ls.watch(model, optimizer, run=tmp_path / "run", probes=probes, strict=True) as w:
        for _ in range(9):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
    frame = w.run.frame(name="l2", kind="layer").set_index(["probe", "step", "scope"]).value
    here, there = frame["WeightDelta"], frame["ParameterChange"]
    later = [(step, layer) for step in (6, 9) for layer in ("0", "2")]
    assert here[later].to_numpy() == pytest.approx(there[later].to_numpy(), rel=1e-6)
