"""What the live session does: who fires when, what is refused, what a failure costs."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import learnscope as ls
from learnscope.core.probe import At


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, after: Any = None) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        x = torch.randn(16, 4, generator=generator)
        loss = F.cross_entropy(model(x), (x[:, 0] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if after is not None:
            after(loss)


class Fails(ls.Probe):
    at: At = "after_step"

    def measure(self, moment: ls.Moment) -> dict[str, float]:
        if moment.step >= 2:
            raise RuntimeError(f"broken at {moment.step}")
        return {"fine": 1.0}


def test_a_failing_probe_costs_one_warning_and_error_records() -> None:
    model, optimizer = small()
    with (
        pytest.warns(ls.ProbeWarning) as caught,
        ls.watch(model, optimizer, probes=[Fails(), ls.LearningRate(every=1)]) as w,
    ):
        train(model, optimizer, 5)
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "broken at 2" in text
    assert "Traceback" in text
    errors = [record for record in w.run.records("Fails") if record.error]
    assert [record.step for record in errors] == [2, 3, 4, 5]
    assert errors[0].error == "RuntimeError: broken at 2"
    assert [record.step for record in w.run.records("LearningRate")] == [1, 2, 3, 4, 5], "others go on"


def test_strict_raises() -> None:
    model, optimizer = small()
    with pytest.raises(RuntimeError, match="broken at 2"), ls.watch(model, optimizer, probes=[Fails()], strict=True):
        train(model, optimizer, 5)


def test_a_probe_of_five_lines_and_a_function() -> None:
    class Largest(ls.Probe):
        every = 2

        def measure(self, moment: ls.Moment) -> dict[str, Any]:
            return {"largest": max(p.abs().max() for p in moment.model.parameters())}

    @ls.probe(every=3, at="before_step", needs={"grads"})
    def first_gradient(moment: ls.Moment) -> dict[str, Any]:
        return {"size": next(iter(moment.grads.values())).abs().sum()}

    model, optimizer = small()
    with ls.watch(model, optimizer, probes=[Largest(), first_gradient], strict=True) as w:
        train(model, optimizer, 6)
    frame = w.run.frame()
    assert list(frame[frame.probe == "Largest"].step) == [2, 4, 6]
    assert list(frame[frame.probe == "first_gradient"].step) == [3, 6]
    assert w.run.manifest["probes"]["Largest"]["every"] == 2
    last = frame[frame.probe == "Largest"].value.iloc[-1]
    assert last == pytest.approx(max(p.abs().max().item() for p in model.parameters()))


@pytest.mark.parametrize(
    ("probe", "options", "words"),
    [
        (lambda: ls.Holdout(), {}, ["Holdout", "'holdout'", "holdout="]),
        (lambda: ls.GradientFlow(at="after_step"), {}, ["GradientFlow", "before_step"]),
        (lambda: ls.GradientFlow, {}, ["GradientFlow()", "parentheses"]),
    ],
)
def test_needs_that_cannot_be_met_are_refused_on_opening(probe: Any, options: Any, words: list[str]) -> None:
    model, optimizer = small()
    with pytest.raises((ValueError, TypeError)) as error:
        ls.watch(model, optimizer, probes=[probe()], **options)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_an_unknown_need_is_named() -> None:
    class Odd(ls.Probe):
        needs = frozenset({"gradients"})

        def measure(self, moment: ls.Moment) -> None:
            return None

    model, optimizer = small()
    with pytest.raises(ValueError, match="Odd needs 'gradients', which is not a need"):
        ls.watch(model, optimizer, probes=[Odd()])


def test_learning_rate_needs_an_optimizer() -> None:
    with pytest.raises(ValueError, match=r"LearningRate needs 'optimizer'.*ls\.watch\(model, optimizer\)"):
        ls.watch(small()[0], probes=[ls.LearningRate(every=1)])


def test_unknown_options_are_refused_with_the_right_one() -> None:
    model, optimizer = small()
    with pytest.raises(TypeError, match=r"no option 'bugdet'\. Did you mean 'budget'"):
        ls.watch(model, optimizer, bugdet=0.1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"GradientFlow has no option 'evry'\. Did you mean 'every'"):
        ls.GradientFlow(evry=3)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="every is a whole number from 1"):
        ls.GradientFlow(every=0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        ls.watch(model, optimizer, budget=5.0)


def test_lbfgs_is_refused_with_what_to_do() -> None:
    model, _ = small()
    with pytest.raises(ValueError, match=r"LBFGS.*w\.step\(\)"):
        ls.watch(model, torch.optim.LBFGS(model.parameters()))


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="has no parameters"):
        ls.watch(nn.ReLU())
    with pytest.raises(TypeError, match=r"not a torch\.nn\.Module"):
        ls.watch(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a list, not a torch\.nn\.Module; join several: torch\.nn\.ModuleDict"):
        ls.watch([nn.Linear(1, 1)])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not initialised yet: run one batch"):
        ls.watch(nn.LazyLinear(3))


def test_an_optimizer_that_steps_inside_backward_is_refused() -> None:
    model, _ = small()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(p: torch.Tensor) -> None:
        optimizers[p].step()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    with pytest.raises(ValueError, match=r"steps inside backward.*w\.step\(\)"):
        ls.watch(model, list(optimizers.values()))


def test_something_else_in_place_of_the_optimizer_is_refused() -> None:
    model, _ = small()
    with pytest.raises(TypeError, match="float is not a torch optimizer"):
        ls.watch(model, 0.1)  # type: ignore[arg-type]


def test_refusals_leave_no_hook_and_no_folder_behind(tmp_path: Path) -> None:
    model, optimizer = small()
    with pytest.raises(ValueError):
        ls.watch(model, optimizer, run=tmp_path / "run", probes=[ls.Holdout()])
    assert not (tmp_path / "run").exists()
    assert not optimizer._optimizer_step_pre_hooks
    assert not any(p._backward_hooks for p in model.parameters())


def test_closing_takes_every_hook_away(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.utils import clip_grad

    from learnscope.session.steps import clipping
    from learnscope.session.telling.listeners import Listeners

    # models and optimizers of other tests may be there still, with sessions that nobody closed
    monkeypatch.setattr(clipping, "_originals", {})
    monkeypatch.setattr(clipping, "listeners", Listeners(clipping._replace, clipping._restore))
    original = clip_grad._clip_grads_with_norm_
    model, optimizer = small()
    w = ls.watch(model, optimizer, probes=[ls.GradientFlow(every=1)])
    assert clip_grad._clip_grads_with_norm_ is not original
    train(model, optimizer, 2)
    w.close()
    w.close()
    assert clip_grad._clip_grads_with_norm_ is original
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not any(p._backward_hooks or p._post_accumulate_grad_hooks for p in model.parameters())


def test_a_probe_that_was_never_due_or_never_fed_says_so() -> None:
    model, optimizer = small()
    with pytest.warns(ls.ProbeWarning) as caught:
        with ls.watch(model, optimizer, probes=[ls.ParameterChange(every=100), ls.Loss(), ls.BatchStats(every=1)]):
            train(model, optimizer, 5)
    text = "\n".join(str(warning.message) for warning in caught)
    assert "ParameterChange(every=100) was never due in 5 steps" in text
    assert "Loss has recorded nothing: call w.log(loss=loss)" in text
    assert "BatchStats has recorded nothing: call w.batch(batch)" in text


def test_what_is_logged_is_recorded_also_without_a_loss_probe() -> None:
    model, optimizer = small()
    with ls.watch(model, optimizer, probes=[]) as w:
        train(model, optimizer, 3, lambda loss: w.log(loss=loss, temperature=0.5))
    frame = w.run.frame("Loss")
    assert list(frame[frame.name == "temperature"].value) == [0.5] * 3


@pytest.mark.parametrize("place", ["before backward", "before step", "after step"])
def test_a_logged_value_belongs_to_its_step_wherever_the_loop_logs(place: str) -> None:
    model, optimizer = small()
    losses: list[float] = []
    with ls.watch(model, optimizer, probes=[ls.Loss()]) as w:
        for _ in range(5):
            loss = F.cross_entropy(model(torch.randn(8, 4)), torch.zeros(8, dtype=torch.int64))
            losses.append(loss.item())
            if place == "before backward":
                w.log(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            if place == "before step":
                w.log(loss=loss)
            optimizer.step()
            if place == "after step":
                w.log(loss=loss)
    frame = w.run.frame("Loss")
    assert list(frame.step) == [1, 2, 3, 4, 5]
    assert list(frame.value) == losses


def test_losses_of_micro_batches_are_averaged() -> None:
    model, optimizer = small()
    logged: list[list[float]] = []
    with ls.watch(model, optimizer, probes=[ls.Loss()]) as w:
        for _ in range(4):
            optimizer.zero_grad()
            logged.append([])
            for _ in range(3):
                loss = F.cross_entropy(model(torch.randn(8, 4)), torch.zeros(8, dtype=torch.int64))
                loss.backward()
                w.log(loss=loss)
                logged[-1].append(loss.item())
            optimizer.step()
    frame = w.run.frame("Loss")
    means = frame[frame.name == "loss"]
    assert list(means.step) == [1, 2, 3, 4]
    reference = torch.tensor(logged, dtype=torch.float64)
    assert list(means.value) == pytest.approx(reference.mean(1).tolist(), rel=1e-12)
    assert list(frame[frame.name == "loss_std"].value) == pytest.approx(reference.std(1).tolist(), rel=1e-12)


def test_a_logged_tensor_is_kept_as_it_was() -> None:
    model, optimizer = small()
    running = torch.zeros(())
    with ls.watch(model, optimizer, probes=[ls.Loss()]) as w:

        def log(_loss: Any) -> None:
            running.add_(1.0)
            w.log(total=running)

        train(model, optimizer, 3, log)
    assert list(w.run.frame("Loss").value) == [1.0, 2.0, 3.0]


def test_several_optimizers_make_one_step() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.AdamW(model[1].parameters(), lr=0.01)
    before: list[torch.Tensor] = []

    class Change(ls.Probe):
        def measure(self, moment: ls.Moment) -> dict[str, Any]:
            now = [p.detach().clone() for p in moment.model.parameters()]
            moved = [bool((a != b).any()) for a, b in zip(now, before, strict=True)]
            return {"moved": sum(moved)}

    with ls.watch(model, [first, second], probes=[Change(), ls.LearningRate(every=1)], strict=True) as w:
        for _ in range(3):
            before[:] = [p.detach().clone() for p in model.parameters()]
            model(torch.randn(8, 4)).square().mean().backward()
            first.step()
            second.step()
            model.zero_grad()
    assert w.steps == 3
    frame = w.run.frame()
    assert list(frame[frame.name == "moved"].value) == [4, 4, 4], "after_step comes when the last has stepped"
    assert list(frame[frame.name == "learning_rate"].value) == [0.1, 0.01] * 3


def test_a_clock_decides_what_a_step_is() -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    critic = torch.optim.SGD(model[0].parameters(), lr=0.1)
    generator = torch.optim.SGD(model[1].parameters(), lr=0.1)

    def play(steps: int) -> None:
        for _ in range(steps):
            for _ in range(3):
                model[0](torch.randn(4, 2)).sum().backward()
                critic.step()
            model[1](torch.randn(4, 2)).sum().backward()
            generator.step()

    with ls.watch(model, [critic, generator], clock=generator, probes=[ls.LearningRate(every=1)]) as w:
        play(4)
    assert w.steps == 4
    with pytest.warns(ls.ProbeWarning, match="do not step in turn.*clock="):
        with ls.watch(model, [critic, generator], probes=[ls.LearningRate(every=1)]):
            play(4)


def test_a_closure_runs_before_gradients_are_read() -> None:
    """As Lightning does it: forward, backward and clipping inside optimizer.step(closure)."""
    model, optimizer = small()
    x = torch.randn(16, 4)
    norms: list[float] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean() * 100
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        return loss

    with ls.watch(model, optimizer, probes=[ls.GradientFlow(every=1)], strict=True) as w:
        for _ in range(3):
            returned = optimizer.step(closure)  # type: ignore[arg-type]
            assert returned is not None
    frame = w.run.frame("GradientFlow", "norm", "model")
    assert list(frame[frame.stage == "before_clip"].value) == pytest.approx(norms, rel=1e-6)
    assert list(frame[frame.stage == "stepped"].value) == pytest.approx([0.5] * 3, rel=1e-5)


def test_steps_without_a_torch_optimizer() -> None:
    model, _ = small()
    with ls.watch(model, probes=[ls.GradientFlow(every=1), ls.ParameterChange(every=2)], strict=True) as w:
        for _ in range(4):
            model.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad  # type: ignore[operator]
            w.step()
    assert [record.step for record in w.run.records("GradientFlow")] == [1, 2, 3, 4]
    assert [record.notes["span"] for record in w.run.records("ParameterChange")] == [[0, 2], [2, 4]]
    assert not [record.error for record in w.run.records() if record.error]


def test_the_same_probe_twice_keeps_two_names() -> None:
    model, optimizer = small()
    with ls.watch(model, optimizer, probes=[ls.ParameterChange(every=1), ls.ParameterChange(every=2)]) as w:
        train(model, optimizer, 4)
    spans = {label: [r.notes["span"] for r in w.run.records(label)] for label in w.run.manifest["probes"]}
    assert spans["ParameterChange"] == [[0, 1], [1, 2], [2, 3], [3, 4]]
    assert spans["ParameterChange_2"] == [[0, 2], [2, 4]]


def test_a_failing_sink_costs_one_warning() -> None:
    class Broken:
        def write(self, record: ls.Record) -> None:
            raise OSError("no network")

        def close(self) -> None:
            pass

    model, optimizer = small()
    with pytest.warns(ls.ProbeWarning, match="Broken failed") as caught:
        with ls.watch(model, optimizer, probes=[ls.LearningRate(every=1)], sinks=[Broken()]) as w:
            train(model, optimizer, 4)
    assert len(caught) == 1
    assert len(list(w.run.records())) == 4


def test_a_probe_that_writes_weights_in_place_is_named() -> None:
    class Writes(ls.Probe):
        def measure(self, moment: ls.Moment) -> dict[str, float]:
            next(iter(moment.model.parameters())).add_(0.0)
            return {}

    model, optimizer = small()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with ls.watch(model, optimizer, probes=[Writes()]):
            train(model, optimizer, 1)
    assert "changed in place" in str(caught[0].message)
    assert "weight 0.weight" in str(caught[0].message)


def test_epoch_probes_fire_at_the_end_of_epochs() -> None:
    model, optimizer = small()
    data = [(torch.randn(8, 4), torch.zeros(8, dtype=torch.int64))]
    with ls.watch(model, optimizer, probes=[ls.Holdout(at="epoch", every=2)], holdout=data, strict=True) as w:
        for _ in range(4):
            train(model, optimizer, 3)
            w.end_epoch()
    records = list(w.run.records("Holdout"))
    assert [(record.epoch, record.step) for record in records] == [(1, 6), (3, 12)]


def test_a_step_that_a_fused_optimizer_skips_is_not_counted() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    with ls.watch(model, optimizer, probes=[ls.GradientFlow(every=1)], strict=True) as w:
        for step in range(4):
            x = torch.full((4, 4), float("inf") if step == 1 else 1.0)
            optimizer.zero_grad()
            scaler.scale(model(x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert w.steps == 3
    assert w.run.manifest["attempts"][-1]["skipped_steps"] == 1
    norms = list(w.run.frame("GradientFlow", "norm", "model").value)
    # d(sum)/dW is 4 in each of 8 entries, d/db is 4 in each of 2: the loss scale (4, then 2) is divided out
    assert norms == pytest.approx([(8 * 16 + 2 * 16) ** 0.5] * 3, rel=1e-6)


def test_numbers_left_on_a_device_are_read_later_and_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an accelerator would do: records wait, in order, and are complete when they come."""
    from learnscope.session import engine

    monkeypatch.setattr(engine, "waits_for_device", lambda measured: True)
    model, optimizer = small()
    probes = [ls.GradientFlow(every=1), ls.LearningRate(every=4)]
    with ls.watch(model, optimizer, probes=probes, strict=True) as w:
        train(model, optimizer, 3)
        assert list(w._engine.backend.records([])) == []
        train(model, optimizer, 1)
    records = list(w.run.records())
    assert [(record.probe, record.step) for record in records] == [
        ("GradientFlow", 1), ("GradientFlow", 2), ("GradientFlow", 3), ("GradientFlow", 4), ("LearningRate", 4),
    ]  # fmt: skip
    assert not [row for record in records for row in record.rows() if row.name == "first_nonfinite"]


def test_an_interrupted_loop_raises_its_own_error_and_says_nothing_about_schedules() -> None:
    model, optimizer = small()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        w = ls.watch(model, optimizer, probes=[ls.ParameterChange(every=100)])
        with pytest.raises(ZeroDivisionError), w:
            train(model, optimizer, 3)
            _ = 1 / 0
    assert w.run.manifest["status"] == "interrupted by ZeroDivisionError: division by zero"


@pytest.mark.parametrize("steps", [1, 7, 99])
def test_the_defaults_give_the_change_of_a_short_run_and_no_warning(steps: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain, optimizer = small()
    model = copy.deepcopy(plain)
    train(plain, optimizer, steps)
    watched = torch.optim.SGD(model.parameters(), lr=0.1)
    before = {name: p.detach().clone().double() for name, p in model.named_parameters()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ls.watch(model, watched, run=tmp_path / "r", strict=True) as w:
            train(model, watched, steps, lambda loss: w.log(loss=loss))
    assert all(map(torch.equal, model.parameters(), plain.parameters())), "watching changes nothing"
    run = ls.open_run(tmp_path / "r")
    records = list(run.records("ParameterChange"))
    assert [record.step for record in records] == [step for step in (1, *range(10, 100, 10)) if step < steps] + [steps]
    assert [record.notes["span"][0] for record in records] == [0, *(record.step for record in records[:-1])]
    # changes add up to no less than the whole way
    moved = sum(float((p.detach().double() - before[name]).square().sum()) for name, p in model.named_parameters())
    assert run.frame("ParameterChange", "l2", "model").value.sum() >= moved**0.5 * (1 - 1e-5)


def test_the_defaults_measure_no_more_than_their_schedule_in_a_long_run(tmp_path: Path) -> None:
    """Nor in the second half of one that was resumed; one that was cut short says nothing."""
    model, optimizer = small()
    with ls.watch(model, optimizer, run=tmp_path / "r", strict=True) as w:
        train(model, optimizer, 101, lambda loss: w.log(loss=loss))
        w.save_state()
    with ls.watch(model, optimizer, run=tmp_path / "r", strict=True, resume=True) as w:
        train(model, optimizer, 5, lambda loss: w.log(loss=loss))
    steps = [record.step for record in ls.open_run(tmp_path / "r").records("ParameterChange")]
    assert steps == [1, *range(10, 101, 10)]
    with pytest.raises(KeyError), ls.watch(model, optimizer, run=tmp_path / "cut", strict=True) as w:
        train(model, optimizer, 5, lambda loss: w.log(loss=loss))
        raise KeyError
    assert [record.step for record in ls.open_run(tmp_path / "cut").records("ParameterChange")] == [1]


def test_holdout_data_is_measured_by_default(tmp_path: Path) -> None:
    """Often at first, within a share of the time, and at the end; the numbers are those of the model as it was."""
    model, optimizer = small()
    x, y = torch.randn(40, 4), torch.randint(2, (40,))
    with ls.watch(model, optimizer, run=tmp_path / "r", holdout=[(x, y)], strict=True) as w:
        train(model, optimizer, 33, lambda loss: w.log(loss=loss))
    frame = ls.open_run(tmp_path / "r").frame("Holdout", "holdout_loss")
    assert frame.step.tolist() == [1, 10, 20, 30, 33]
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(model.double()(x.double()), y).item()
    assert frame.value.iloc[-1] == pytest.approx(expected, rel=1e-5)


def test_a_holdout_that_takes_long_is_measured_by_default_within_a_share_of_the_time() -> None:
    from learnscope.session.budget import Budget

    clock = [0.0]
    budget = Budget(None, clock=lambda: clock[0])
    fired = []
    for step in range(1, 1001):
        clock[0] += 0.1
        if step % 10 == 0 and budget.grants("Holdout", 0.1):
            fired.append(step)
            budget.charge("Holdout", 3.0)
            clock[0] += 3.0
    assert fired[0] == 10, "the first is always granted: nothing is known of its cost"
    assert 3.0 * len(fired) <= 0.1 * clock[0] + 3.0
    assert len(fired) >= 3
