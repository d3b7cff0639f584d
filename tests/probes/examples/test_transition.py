"""The probe against one backward an example at the weights of its last measurement and at those of now."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import learnscope as ls
from learnscope.model.examples.attribution import transition_since
from learnscope.task import TupleTask
from model.examples.one_by_one import ConvNet, batches_of, one_by_one, state
from probes.reference import at_scope, mlp

PROBE = "ExampleTransitions"
Matrix = np.ndarray[Any, Any]
Batches = list[tuple[Tensor, ...]]


def by_hand(previous: dict[str, Tensor], model: nn.Module, data: Batches) -> dict[str, Matrix]:
    """Two models: the one of now, and the same, with its buffers, at the parameters of then."""
    then = copy.deepcopy(model)
    with torch.no_grad():
        for name, p in then.named_parameters():
            p.copy_(previous[name])
    sides = []
    for one in (then.eval(), copy.deepcopy(model).eval()):
        each = [F.cross_entropy(one(b[0][i : i + 1]), b[1][i : i + 1]) for b in data for i in range(len(b[1]))]
        sides.append((one_by_one(one, each), np.array([loss.item() for loss in each])))
    (a, loss_before), (b, loss_after) = sides
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return {
        "scores": cosine * (loss_before - loss_after), "cosine": cosine, "loss_before": loss_before,
        "loss_after": loss_after,
    }  # fmt: skip


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, data: Batches) -> None:
    for x, y, *_ in data:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def row(run: ls.Run, name: str, step: int, **labels: Any) -> float:
    frame = run.frame(PROBE, name)
    frame = frame[frame["step"] == step]
    for label, wanted in labels.items():
        frame = frame[frame[label] == wanted]
    [value] = frame["value"]
    return float(value)


def test_a_watched_run_and_its_replay() -> None:
    torch.manual_seed(0)
    model = ConvNet().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    data: Batches = [(x, y) for x, y in batches_of([9, 9, 5], 1, 4, 4, classes=4)]
    weights, expected = [parameters(model)], {}
    checkpoints = {0: copy.deepcopy(model)}
    with ls.watch(model, optimizer, probes=[ls.ExampleTransitions()], train=data, strict=True) as w:
        for epoch in range(3):
            train(model, optimizer, data)
            w.end_epoch()
            expected[3 * epoch + 3] = by_hand(weights[-1], model, data)
            weights.append(parameters(model))
            checkpoints[3 * epoch + 3] = copy.deepcopy(model)
    again = ls.replay(checkpoints, train=data, probes=[ls.ExampleTransitions()], strict=True, progress=False)
    for run in (w.run, again):
        assert run.array_steps(PROBE) == [3, 6, 9]
        for step, columns in expected.items():
            arrays = run.arrays(PROBE, step)
            for name, column in columns.items():
                np.testing.assert_allclose(arrays[name], column, atol=1e-10, err_msg=f"{name} at {step}")
            assert arrays["example"].tolist() == list(range(23))
    assert [record.notes["since_step"] for record in w.run.records(PROBE)] == [0, 3, 6]
    assert {record.notes["how"] for record in w.run.records(PROBE)} == {"vmap"}

    columns = expected[6]
    drop = columns["loss_before"] - columns["loss_after"]
    assert row(w.run, "examples", 6) == 23
    assert row(w.run, "without_score", 6) == 0
    for name, values in (("cosine", columns["cosine"]), ("loss_drop", drop)):
        assert row(w.run, f"mean_{name}", 6) == pytest.approx(values.mean(), abs=1e-10)
        for quantile in (0.05, 0.25, 0.5, 0.75, 0.95):
            assert row(w.run, name, 6, scope=str(quantile)) == pytest.approx(np.quantile(values, quantile), abs=1e-10)
    top = np.argsort(-columns["scores"])[:3]  # a tenth of 23, rounded up
    assert drop.sum() > 0
    assert row(w.run, "top_share", 6) == pytest.approx(drop[top].sum() / drop.sum(), abs=1e-9)


def test_every_second_epoch_compares_with_two_epochs_before() -> None:
    torch.manual_seed(0)
    model = mlp(6, 5, 3).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    data: Batches = list(batches_of([12], 6))
    start = parameters(model)
    with ls.watch(model, optimizer, probes=[ls.ExampleTransitions(every=2)], train=data, strict=True) as w:
        for _ in range(2):
            train(model, optimizer, data)
            w.end_epoch()
    [record] = w.run.records(PROBE)
    assert (record.step, record.notes["since_step"], record.notes["how"]) == (2, 0, "factored")
    expected = by_hand(start, model, data)
    np.testing.assert_allclose(w.run.arrays(PROBE)["scores"], expected["scores"], atol=1e-10)


def test_ids_belong_to_the_examples_and_what_has_no_score_says_why() -> None:
    torch.manual_seed(0)
    model = mlp(6, 5, 3).double()
    x, y = batches_of([8], 6)[0]
    y[2] = -100
    data = [(x, y, torch.arange(50, 58))]
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for p in moved.parameters():
            p.mul_(1.5)
    run = ls.replay({0: model, 7: moved}, train=data, probes=[ls.ExampleTransitions()], strict=True, progress=False)
    arrays = run.arrays(PROBE)
    assert arrays["example"].tolist() == list(range(50, 58))
    assert np.isnan(arrays["scores"]).tolist() == [False, False, True, False, False, False, False, False]
    assert row(run, "without_score", 7) == 1
    [record] = run.records(PROBE)
    assert record.notes["without_score"] == {"it has no target that counts, or a loss that is not finite": 1}
    known = np.isfinite(arrays["scores"])
    assert row(run, "mean_cosine", 7) == pytest.approx(arrays["cosine"][known].mean(), abs=1e-12)


def test_weights_that_did_not_move_lose_no_loss() -> None:
    model, data = mlp(6, 5, 3), [(torch.randn(6, 6), torch.arange(6) % 3)]
    run = ls.audit(model, base=copy.deepcopy(model), train=data, probes=[ls.ExampleTransitions()], strict=True)
    assert at_scope(run, PROBE, "mean_cosine", "model") == {"model": pytest.approx(1, abs=1e-6)}
    frame = run.frame(PROBE, "top_share")
    assert frame["value"].isna().all()
    assert frame["status"].tolist() == ["the examples together lost no loss"]
    none = [(data[0][0], torch.full((6,), -100))]
    nothing = ls.audit(model, base=copy.deepcopy(model), train=none, probes=[ls.ExampleTransitions()], strict=True)
    for name in ("mean_cosine", "cosine", "mean_loss_drop", "top_share"):
        assert set(nothing.frame(PROBE, name)["status"]) == {"no example has a score"}


def test_chosen_parameters_and_no_arrays() -> None:
    torch.manual_seed(0)
    model, data = mlp(6, 5, 3).double(), batches_of([10], 6)
    names = [name for name, _ in model.named_parameters()]
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for p in moved.parameters():
            p += 0.3 * torch.randn_like(p)
    probe = ls.ExampleTransitions(parameters=names[-1], keep_arrays=False, max_mb=0.001)
    run = ls.replay({0: model, 1: moved}, train=data, probes=[probe], strict=True, progress=False)
    assert run.array_steps(PROBE) == []
    (x, y), rows = data[0], []
    for one in (model, moved):
        each = [F.cross_entropy(one(x[i : i + 1]), y[i : i + 1]) for i in range(10)]
        rows.append(one_by_one(one, each)[:, -3:])
    cosine = (rows[0] * rows[1]).sum(1) / np.linalg.norm(rows[0], axis=1) / np.linalg.norm(rows[1], axis=1)
    assert row(run, "mean_cosine", 1) == pytest.approx(cosine.mean(), abs=1e-12)


def test_a_resumed_run_compares_with_what_was_kept(tmp_path: Path) -> None:
    def run(folder: Path, parts: list[int]) -> ls.Run:
        torch.manual_seed(0)
        model = mlp(6, 5, 3).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        data: Batches = list(batches_of([12], 6))
        for place, epochs in enumerate(parts):
            with ls.watch(model, optimizer, run=folder, probes=[ls.ExampleTransitions()], train=data, strict=True,
                          resume=place > 0) as w:  # fmt: skip
                for _ in range(epochs):
                    train(model, optimizer, data)
                    w.end_epoch()
                w.save_state()
        return ls.open_run(folder)

    whole, parts = run(tmp_path / "whole", [4]), run(tmp_path / "parts", [2, 2])
    for step in (1, 2, 3, 4):
        assert whole.arrays(PROBE, step)["scores"].tolist() == parts.arrays(PROBE, step)["scores"].tolist()


class Failing(TupleTask):
    """Fails the second time, in the middle of things."""

    calls = 0

    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        Failing.calls += 1
        if Failing.calls > 1:
            raise RuntimeError("no more")
        return super().logits(model, batch)


@pytest.mark.parametrize("task", [TupleTask(), Failing()])
def test_both_sets_of_weights_are_back_afterwards_also_after_an_error(task: TupleTask) -> None:
    torch.manual_seed(0)
    model = ConvNet().double().train()
    model.norm.eval()
    previous = {name: p + 0.1 for name, p in parameters(model).items()}
    kept = {name: value.clone() for name, value in previous.items()}
    data = [(x, y) for x, y in batches_of([4, 3], 1, 4, 4, classes=4)]
    before = state(model)
    if isinstance(task, Failing):
        with pytest.raises(RuntimeError, match="no more"):
            transition_since(model, previous, task, data)
    else:
        transition_since(model, previous, task, data)
    assert state(model) == before
    assert all(torch.equal(previous[name], kept[name]) for name in kept)


def test_a_compiled_model_is_seen_through() -> None:
    torch.manual_seed(0)
    model, data = mlp(6, 5, 3).double(), batches_of([7], 6)
    previous = {name: value * 0.5 for name, value in parameters(model).items()}
    compiled: Any = torch.compile(model, backend="aot_eager")
    named = {f"_orig_mod.{name}": value.clone() for name, value in previous.items()}
    found = transition_since(compiled, named, TupleTask(), data)
    np.testing.assert_allclose(found.score.numpy(), by_hand(previous, model, data)["scores"], atol=1e-10)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 0"):
        ls.ExampleTransitions(max_mb=0)
    with pytest.raises(ValueError, match="pass train="):
        ls.watch(mlp(4, 3), probes=[ls.ExampleTransitions()])
    model, data = mlp(4, 3), [(torch.randn(3, 4), torch.arange(3))]
    with pytest.raises(ValueError, match="found in none"):
        ls.audit(model, base=copy.deepcopy(model), train=data, strict=True,
                 probes=[ls.ExampleTransitions(parameters="layers")])  # fmt: skip
