"""Replaying checkpoints and auditing a model, against the live run and against autograd."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

import learnscope as ls

THRESHOLDS = (1e-8, 1e-4)
X = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


def make(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.4), nn.Linear(8, 2))


def bits(model: nn.Module) -> list[list[int]]:
    tensors = [*model.parameters(), *model.buffers()]
    return [t.detach().contiguous().view(-1).view(torch.uint8).tolist() for t in tensors]


def trained(steps: int = 6, every: int = 2) -> tuple[ls.Run, dict[int, dict[str, Tensor]]]:
    """A live run, and the checkpoints that it would have saved."""
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    saved = {0: copy.deepcopy(model.state_dict())}
    with ls.watch(model, optimizer, probes=[ls.ParameterChange(every=every, thresholds=THRESHOLDS)], strict=True) as w:
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            F.cross_entropy(model(X), Y).backward()
            optimizer.step()
            if step % every == 0:
                saved[step] = copy.deepcopy(model.state_dict())
    return w.run, saved


def numbers(run: ls.Run, kinds: tuple[str, ...] = ("model", "layer", "component", "tensor")) -> list[tuple[Any, ...]]:
    frame = run.frame("ParameterChange")
    frame = frame[frame.kind.isin(kinds) & ~frame.name.str.startswith("absorbed")]
    kept = frame[["step", "kind", "scope", "name", "value", "status", "threshold", "dtype"]]
    return [tuple(None if v != v else v for v in row) for row in kept.itertuples(index=False)]


def test_replayed_changes_equal_those_of_the_live_run(tmp_path: Path) -> None:
    live, saved = trained()
    module = make()
    module.load_state_dict(saved[2])
    torch.save({"state_dict": saved[4], "epoch": 1}, tmp_path / "four.pt")
    save_file(saved[6], tmp_path / "six.safetensors")
    mixed = {6: tmp_path / "six.safetensors", 0: saved[0], 4: str(tmp_path / "four.pt"), 2: module}
    probes = [ls.ParameterChange(thresholds=THRESHOLDS)]
    run = ls.replay(mixed, model=make(5), probes=probes, strict=True, progress=False)
    assert numbers(run) == numbers(live)
    assert [record.notes["span"] for record in run.records("ParameterChange")] == [[0, 2], [2, 4], [4, 6]]
    assert {record.source for record in run.records()} == {"replay"}
    assert {record.phase for record in run.records()} == {"checkpoint"}
    assert run.manifest["status"] == "finished"


def test_modules_alone_need_no_architecture_and_are_not_touched() -> None:
    models = [make(seed) for seed in range(3)]
    before = [bits(model) for model in models]
    run = ls.replay(models, probes=[ls.ParameterChange()], strict=True, progress=False)
    assert [bits(model) for model in models] == before
    expected = [
        np.sqrt(sum(float((a.double() - b.double()).square().sum()) for a, b in zip(new, old, strict=True)))
        for new, old in (
            ([*models[1].parameters()], [*models[0].parameters()]),
            ([*models[2].parameters()], [*models[1].parameters()]),
        )
    ]
    assert list(run.frame("ParameterChange", "l2", "model").value) == pytest.approx(expected, rel=1e-6)


def test_replayed_gradients_are_autograds_in_eval_mode_and_say_so() -> None:
    checkpoints = {0: make(0).state_dict(), 5: make(1).state_dict()}
    vessel = make(9).train()
    run = ls.replay(
        checkpoints,
        model=vessel,
        probes=[ls.GradientFlow(per_tensor=True)],
        train=[(X, Y)],
        strict=True,
        progress=False,
    )
    frame = run.frame("GradientFlow", "norm", "tensor")
    assert set(frame.origin) == {"replayed"}
    for step, state in checkpoints.items():
        model = make()
        model.load_state_dict(state)
        F.cross_entropy(model.eval()(X), Y).backward()
        expected = {name: float(p.grad.double().norm()) for name, p in model.named_parameters()}  # type: ignore[union-attr]
        mine = frame[frame.step == step]
        assert dict(zip(mine.scope, mine.value, strict=True)) == pytest.approx(expected, rel=1e-5)
    overall = run.frame("GradientFlow", "norm", "model")
    assert set(overall.origin) == {"replayed"}
    assert set(run.frame("GradientFlow", "gradient_to_weight").origin) == {"replayed"}


class Lazy(Mapping[int, Any]):
    """Loads a checkpoint only when it is asked for one, and counts how many are alive."""

    def __init__(self, steps: int) -> None:
        self.steps, self.loads = steps, 0
        self.alive: list[weakref.ref[Any]] = []
        self.most = 0

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.steps))

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        self.loads += 1
        gc.collect()
        state = {name: value.clone() for name, value in make(step).state_dict().items()}
        self.alive.append(weakref.ref(state["0.weight"]))
        self.most = max(self.most, sum(ref() is not None for ref in self.alive))
        return state


def test_checkpoints_are_loaded_one_at_a_time() -> None:
    lazy = Lazy(6)
    run = ls.replay(lazy, model=make(), probes=[ls.ParameterChange()], strict=True, progress=False)
    assert lazy.loads == 6
    assert lazy.most == 1
    assert len(list(run.records())) == 5


def test_the_models_own_state_dictionary_among_the_checkpoints() -> None:
    """It shares its memory with the model that the others are loaded into."""
    model, other = make(1), make(2)
    expected = ls.replay([other, make(1)], probes=[ls.ParameterChange()], strict=True, progress=False)
    for checkpoints in ([other.state_dict(), model.state_dict()], [other, model]):
        run = ls.replay(checkpoints, model=model, probes=[ls.ParameterChange()], strict=True, progress=False)
        assert numbers(run) == numbers(expected)
        assert run.frame("ParameterChange", "l2", "model").value.iloc[0] > 0


class Breaks(ls.Probe):
    def measure(self, moment: ls.Moment) -> dict[str, float]:
        moment.model.train()
        torch.randn(3)
        if moment.step:
            raise RuntimeError("broken")
        return {"fine": 1.0}


@pytest.mark.parametrize("failure", ["none", "probe", "missing file", "other shape"])
def test_the_callers_model_is_as_it_was(failure: str, tmp_path: Path) -> None:
    model = make(3).train()
    model[1].eval()
    model(X)
    model[0].weight.grad = torch.ones(8, 4)
    before = bits(model)
    modes = [module.training for module in model.modules()]
    second: Any = {
        "missing file": tmp_path / "gone.pt",
        "other shape": {**make(1).state_dict(), "3.bias": torch.zeros(5)},
    }.get(failure, make(1).state_dict())
    checkpoints = [make(0).state_dict(), second]
    probes = [Breaks()] if failure == "probe" else [ls.ParameterChange(), ls.Holdout(), ls.GradientFlow()]

    def look() -> None:
        ls.replay(checkpoints, model=model, probes=probes, holdout=[(X, Y)], strict=True, progress=False)

    random = torch.get_rng_state()
    if failure == "none":
        look()
    else:
        with pytest.raises((RuntimeError, ValueError), match=r"broken|gone\.pt|3\.bias is \(5,\) there and \(2,\)"):
            look()
    assert bits(model) == before
    assert modes == [module.training for module in model.modules()]
    assert torch.equal(model[0].weight.grad, torch.ones(8, 4))
    assert torch.equal(random, torch.get_rng_state())


def test_a_probe_that_fails_is_recorded_and_the_rest_goes_on() -> None:
    with pytest.warns(ls.ProbeWarning, match="broken"):
        run = ls.replay([make(0), make(1), make(2)], probes=[Breaks(), ls.ParameterChange()], progress=False)
    assert [record.error for record in run.records("Breaks")] == [None, "RuntimeError: broken", "RuntimeError: broken"]
    assert len(list(run.records("ParameterChange"))) == 2


def test_probes_at_once_look_at_the_first() -> None:
    class Once(ls.Probe):
        at = "once"

        def measure(self, moment: ls.Moment) -> dict[str, float]:
            return {"first": float(moment.step)}

    run = ls.replay({3: make(0), 9: make(1)}, probes=[Once()], strict=True, progress=False)
    assert [(record.step, record.source) for record in run.records()] == [(3, "replay")]


def test_every_is_ignored_and_the_default_is_what_the_data_allow() -> None:
    run = ls.replay([make(0), make(1)], holdout=[(X, Y)], progress=False)
    fired = {label: [record.step for record in run.records(label)] for label in run.manifest["probes"]}
    assert fired == {"ParameterChange": [1], "GradientFlow": [0, 1], "Holdout": [0, 1]}
    model = make(1).eval()
    logits = model(X).detach()
    loss = run.frame("Holdout", "holdout_loss").value
    assert loss.iloc[1] == pytest.approx(float(F.cross_entropy(logits.double(), Y)), rel=1e-5)
    bare = ls.replay([make(0), make(1)], progress=False)
    assert list(bare.manifest["probes"]) == ["ParameterChange"]


@pytest.mark.parametrize(
    ("checkpoints", "options", "error", "match"),
    [
        ([], {}, ValueError, "no checkpoints to replay"),
        ("a.pt", {}, TypeError, r"several checkpoints.*ls\.audit takes one"),
        (nn.Linear(1, 1), {}, TypeError, "several checkpoints"),
        ({"a": 1}, {}, TypeError, "keyed by their step"),
        ({"a": 1, 2: 3}, {}, TypeError, "keyed by their step"),
        ({-1: make()}, {}, TypeError, "keyed by their step"),
        ((c for c in ()), {}, TypeError, "a list or a dictionary by step, not a generator"),
        ([{"w": torch.zeros(1)}], {}, TypeError, "pass model=, the architecture"),
        (["a.pt"], {}, TypeError, "pass model=, the architecture"),
        ([make()], {"probes": [ls.GradientFlow()]}, ValueError, "needs 'grads', which replay does not have: pass"),
        ([make()], {"probes": [ls.Holdout()]}, ValueError, "Holdout needs 'holdout'.*pass holdout="),
        ([make()], {"probes": [ls.LearningRate()]}, ValueError, r"needs 'optimizer'.*use this probe in ls\.watch"),
        ([make()], {"probes": [ls.Loss()]}, ValueError, r"Loss needs 'logged'.*ls\.watch"),
        ([make()], {"prbes": []}, TypeError, "Did you mean 'probes'"),
    ],
)  # fmt: skip
def test_refusals(checkpoints: Any, options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        ls.replay(checkpoints, progress=False, **options)


def test_a_refused_replay_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        ls.replay([make()], run=tmp_path / "r", probes=[ls.Holdout()], progress=False)
    assert not (tmp_path / "r").exists()


def test_a_replay_that_breaks_off_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no checkpoint file"):
        ls.replay([make(), tmp_path / "gone.pt"], run=tmp_path / "r", probes=[ls.ParameterChange()], progress=False)
    status = ls.open_run(tmp_path / "r").manifest["status"]
    assert status.startswith("interrupted by CheckpointError")


# ---- audit


def test_an_audit_with_data() -> None:
    model = make(1).train()
    before = bits(model)
    run = ls.audit(model, (X, Y), strict=True)
    assert bits(model) == before
    assert model.training
    of_finished = {
        "Performance", "MemoryUse", "InferenceSpeed", "LayerTimes", "BitSensitivity", "BitFrontier",
        "ExportedSpeed", "Attacks", "NoiseRobustness", "InputPerturbation", "PromptPerturbation",
        "BitRobustness",
    }  # fmt: skip
    assert set(run.manifest["probes"]) == {"GradientFlow", "Holdout", *of_finished}
    assert {record.probe for record in run.records() if not record.error} == set(run.manifest["probes"])
    model.eval()
    loss = F.cross_entropy(model(X), Y)
    loss.backward()
    norm = np.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters()))  # type: ignore[union-attr]
    assert list(run.frame("GradientFlow", "norm", "model").value) == pytest.approx([norm], rel=1e-5)
    assert list(run.frame("Holdout", "holdout_loss").value) == pytest.approx([loss.item()], rel=1e-5)
    assert {record.phase for record in run.records()} == {"audit"}


@pytest.mark.parametrize("form", ["module", "dict", "file"])
def test_an_audit_against_a_base(form: str, tmp_path: Path) -> None:
    base, model = make(1), make(2)
    before = bits(model)
    given: Any = {"module": base, "dict": base.state_dict(), "file": tmp_path / "base.pt"}[form]
    torch.save(base.state_dict(), tmp_path / "base.pt")
    run = ls.audit(model, base=given, strict=True)
    assert bits(model) == before
    pairs = list(zip(model.parameters(), base.parameters(), strict=True))
    moved = np.sqrt(sum(float((a.double() - b.double()).square().sum()) for a, b in pairs))
    size = np.sqrt(sum(float(b.double().square().sum()) for _, b in pairs))
    frame = run.frame("ParameterChange", kind="model").set_index("name").value
    assert frame["l2"] == pytest.approx(moved, rel=1e-6)
    assert frame["update_to_weight"] == pytest.approx(moved / size, rel=1e-6)
    assert "GradientFlow" not in run.manifest["probes"]


def test_an_audit_with_nothing_to_look_at_is_refused() -> None:
    with pytest.raises(ValueError, match="there is nothing to examine: pass data, base="):
        ls.audit(make())
    with pytest.raises(ValueError, match="ParameterChange needs 'previous', which audit does not have: pass base="):
        ls.audit(make(), probes=[ls.ParameterChange()])
    with pytest.raises(ValueError, match=r"GradientFlow needs 'grads'.*pass labelled data"):
        ls.audit(make(), [X], probes=[ls.GradientFlow()])
