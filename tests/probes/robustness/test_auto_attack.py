"""AutoAttack on a small network for digits, against the package itself; and gradients that are masked."""

from __future__ import annotations

import importlib.util
import math
import sys
from copy import deepcopy
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import learnscope as ls
from learnscope.findings import find
from learnscope.model.robustness.auto_attack import MISSING
from learnscope.posttrain import ModelAnalyzer, PosttrainError
from learnscope.report.page.audit import audit_body

installed = importlib.util.find_spec("pyautoattack") is not None
needs_package = pytest.mark.skipif(not installed, reason=MISSING)
EPSILON, QUERIES = 0.1, 60
GRADIENT = ("apgd-ce", "apgd-t", "fab-t")


class Rounded(nn.Module):
    """The same network behind pixels that are rounded: it has no gradient, and is no more robust for that."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.inner(torch.round(x * 64) / 64)
        return answer


@pytest.fixture(scope="module")
def digits() -> tuple[nn.Module, Tensor, Tensor]:
    found = load_digits()
    x, y = torch.tensor(found.images / 16.0, dtype=torch.float32)[:, None], torch.tensor(found.target)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
        )
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(60):
            rows = torch.randint(1400, (128,))
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model.eval(), x[1500:1516], y[1500:1516]


def accuracies(run: ls.Run, epsilon: float) -> dict[str, float]:
    frame = run.frame("AutoAttack", name="accuracy")
    at = frame[frame["epsilon"] == epsilon]
    return dict(zip(at["scope"], at["value"], strict=True))


def flags(run: ls.Run) -> dict[str, float]:
    frame = run.frame("AutoAttack", kind="model").set_index("name")["value"]
    names = ("square_no_better", "unbounded_breaks", "more_steps_no_weaker")
    return {name: float(frame[name]) for name in names}


def by_the_package(model: nn.Module, x: Tensor, y: Tensor, epsilon: float, norm: str) -> dict[str, float]:
    """Each attack by itself, as the package makes it."""
    from pyautoattack import AutoAttack

    model = deepcopy(model)  # the package leaves gradients on it
    attack = AutoAttack(model, norm=norm, eps=epsilon, seed=0)
    attack.square.n_queries = QUERIES
    made = attack.run_standard_evaluation_individual(x, y, batch_size=64)
    with torch.no_grad():
        right = {name: model(changed).argmax(1) == y for name, (changed, _) in made.items()}
        for name, (changed, _) in made.items():
            moved = (changed - x).flatten(1)
            size = moved.abs().amax(1) if norm == "Linf" else moved.norm(dim=1)
            assert float(size.max()) <= epsilon * (1 + 1e-4), name
        right["clean"] = model(x).argmax(1) == y
    right["autoattack"] = torch.stack([*right.values()]).all(0)
    return {name: float(each.double().mean()) for name, each in right.items()}


@needs_package
@pytest.mark.parametrize(("norm", "theirs", "epsilon"), [("linf", "Linf", EPSILON), ("l2", "L2", 0.5)])
def test_the_accuracies_are_those_of_the_package(
    digits: tuple[nn.Module, Tensor, Tensor], norm: Any, theirs: str, epsilon: float
) -> None:
    model, x, y = digits
    trace, state = sys.gettrace(), torch.get_rng_state()
    probe = ls.AutoAttack(norm=norm, epsilons=[epsilon], queries=QUERIES, examples=16)
    run = ls.audit(model, [(x[:8], y[:8]), (x[8:], y[8:])], probes=[probe])
    assert sys.gettrace() is trace
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    expected = by_the_package(model, x, y, epsilon, theirs)
    found = accuracies(run, epsilon)
    assert {name: found[name] for name in (*GRADIENT, "square", "autoattack")} == {
        name: expected[name] for name in (*GRADIENT, "square", "autoattack")
    }
    assert accuracies(run, 0.0)["clean"] == expected["clean"]
    assert 0 < found["autoattack"] < expected["clean"], "the attack does something, and not everything"
    assert found["autoattack"] == min(found.values())
    assert flags(run) == {"square_no_better": 1, "unbounded_breaks": 1, "more_steps_no_weaker": 1}


@needs_package
def test_inputs_of_another_range_are_the_same_attack(digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    """Images from −1 to 1: twice the ε."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            answer: Tensor = self.inner((x + 1) / 2)
            return answer

    model, x, y = digits
    options: dict[str, Any] = {"queries": QUERIES, "examples": 16, "steps": 5}
    plain = ls.audit(model, [(x, y)], probes=[ls.AutoAttack(epsilons=[0.1], **options)])
    other = ls.audit(Shifted(), [(2 * x - 1, y)], probes=[ls.AutoAttack(epsilons=[0.2], clip=(-1, 1), **options)])
    first, second = accuracies(plain, 0.1), accuracies(other, 0.2)
    assert {name: second[name] for name in GRADIENT} == {name: first[name] for name in GRADIENT}
    refused = ls.audit(Shifted(), [(2 * x - 1, y)], probes=[ls.AutoAttack(epsilons=[0.2], **options)])
    why = refused.frame("AutoAttack", name="accuracy")["status"].iloc[0]
    assert "inputs go from -1 to 1" in why
    assert "clip=(lowest, highest)" in why


@needs_package
def test_masked_gradients_are_flagged_found_and_on_the_page(digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = digits
    options: dict[str, Any] = {"queries": 400, "examples": 16, "epsilons": [EPSILON]}
    run = ls.audit(Rounded(model), [(x, y)], probes=[ls.AutoAttack(**options)])
    found = accuracies(run, EPSILON)
    assert min(found[name] for name in GRADIENT) > found["square"], "rounding hides the gradient, not the way"
    assert flags(run)["square_no_better"] == 0
    assert flags(run)["unbounded_breaks"] == 0
    kinds = {finding.kind: finding for finding in find(run.reader)}
    masked = kinds["audit_masked_gradients"]
    assert masked.severity == "warning"
    assert "Square, which needs no gradient, breaks more images" in masked.detail
    assert "leaves some right" in masked.detail
    assert any("zero gradient" in text for text in next(iter(run.records("AutoAttack"))).notes["said"])
    panel = audit_body(run.reader)["robustness"]["autoattack"]
    assert [flag["value"] for flag in panel["flags"]][:2] == [0.0, 0.0]
    assert {row["name"] for row in panel["rows"]} == {"pgd", *GRADIENT, "square", "autoattack"}


@needs_package
def test_few_classes_go_without_the_attack_that_needs_four(digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    _, x, _ = digits
    y = (x.mean((1, 2, 3)) > x.mean()).long()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    run = ls.audit(model, [(x, y)], probes=[ls.AutoAttack(epsilons=[0.1], queries=QUERIES, examples=16)])
    [record] = run.records("AutoAttack")
    assert record.notes["left_out"] == {"apgd-t": "targeted APGD needs 4 classes, and there are 2"}
    assert "apgd-t" not in accuracies(run, 0.1)
    assert not math.isnan(accuracies(run, 0.1)["autoattack"])


def test_what_it_is_not_for_has_no_numbers_and_the_reason(
    digits: tuple[nn.Module, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, y = digits
    if installed:
        flat = ls.audit(nn.Linear(64, 10), [(x.flatten(1), y)], probes=[ls.AutoAttack(queries=5)])
        said = flat.frame("AutoAttack")
        assert said["value"].isna().all()
        assert said["status"].iloc[0] == (
            "AutoAttack is for images of shape [channels, height, width], and these are inputs of shape [64]"
        )
    monkeypatch.setattr("learnscope.model.robustness.auto_attack.find_spec", lambda _: None)
    analyzer = ModelAnalyzer(model, progress=False)
    for call in (
        lambda: analyzer.robustness_analyzer.test_autoattack([(x, y)]),
        lambda: analyzer.analyze_robustness([(x, y)], autoattack=True),
    ):
        with pytest.raises(PosttrainError, match=r"pip install 'learnscope\[autoattack\]'"):
            call()
    with pytest.raises(ValueError, match="absolute"):
        ls.AutoAttack(unit="relative")
