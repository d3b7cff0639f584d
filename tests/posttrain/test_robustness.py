"""The robustness analyzer: documented keys, plain values."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import nn

from learnscope.posttrain.robustness import RobustnessAnalyzer
from learnscope.posttrain.session import AuditSession
from model.robustness.attacked import language_models, token_batch


@pytest.fixture(scope="module")
def analyzer() -> RobustnessAnalyzer:
    torch.manual_seed(0)
    return RobustnessAnalyzer(AuditSession(language_models()["gpt2"]().float()))


def test_all_of_it_is_plain_and_says_what_it_does_not_know(analyzer: RobustnessAnalyzer) -> None:
    found = analyzer.analyze([token_batch("gpt2")])
    gap = ["robustness_gap", "robustness_gap_low", "robustness_gap_high", "examples"]
    assert list(found) == ["adversarial", "noise", "perturbations", "prompts", "bits", *gap, "flags"]
    text = json.dumps(found)
    assert "NaN" in text
    adversarial = found["adversarial"]
    assert found["robustness_gap"] == adversarial["robustness_gap"]
    assert set(found["flags"].values()) <= {True, False}
    assert [entry["epsilon"] for entry in adversarial["fgsm"]] == [0.25, 0.5, 1.0]
    assert [entry["steps"] for entry in adversarial["pgd"]] == [10, 10, 10, 3]
    assert adversarial["pgd"][2]["loss"] > adversarial["clean"]["loss"]
    random = adversarial["random"][0]
    assert math.isnan(random["zero_gradient_share"])
    assert random["reasons"].pop("zero_gradient_share") == "no gradient is taken"
    assert random["reasons"].keys() == {"accuracy_low", "accuracy_high"}
    assert all("examples are too few" in reason for reason in random["reasons"].values())
    assert adversarial["target"] == "embeddings"
    assert (adversarial["norm"], adversarial["unit"], adversarial["per"]) == ("l2", "token", "token")
    assert [entry["level"] for entry in found["noise"]["weight_noise"]] == [0.01, 0.05, 0.1]
    assert [entry["level"] for entry in found["noise"]["quantisation_noise"]] == [8, 6, 4]
    assert found["perturbations"]["clean"]["loss_mean"] == pytest.approx(adversarial["clean"]["loss"])
    assert {"token_dropout", "token_substitution"} <= found["perturbations"].keys()
    pairs = [(entry["attack_bits"], entry["test_bits"]) for entry in found["bits"]["transfer"]]
    assert pairs == [(a, b) for a in (0, 8, 4) for b in (0, 8, 4)]
    assert {record.probe for record in analyzer.session.run.records()} == {
        "Attacks", "NoiseRobustness", "InputPerturbation", "PromptPerturbation", "BitRobustness",
    }  # fmt: skip


def test_epsilons_of_ones_own_and_of_no_size(analyzer: RobustnessAnalyzer) -> None:
    options: dict[str, Any] = {"unit": "relative", "norm": "linf", "steps": 1, "restarts": 1}
    found = analyzer.test_adversarial_robustness([token_batch("gpt2")], [0.0], **options)
    assert found["pgd"][0]["loss"] == found["fgsm"][0]["loss"] == found["clean"]["loss"]
    assert found["robustness_gap"] == 0
    assert math.isnan(found["flags"]["monotone_in_epsilon"])
    assert found["reasons"]["monotone_in_epsilon"] == "there is one epsilon only"
    assert math.isnan(found["flags"]["monotone_in_steps"])
    with pytest.raises(TypeError, match="Did you mean 'epsilons'"):
        analyzer.test_adversarial_robustness([token_batch("gpt2")], epsilon=[0.1])


def test_continuous_inputs() -> None:
    torch.manual_seed(0)
    analyzer = RobustnessAnalyzer(AuditSession(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))))
    found = analyzer.analyze([(torch.rand(20, 4), torch.arange(20) % 3)], epsilons=[0.1, 0.5], clip=(0.0, 1.0))
    assert found["adversarial"]["target"] == "inputs"
    assert "texts" not in found["adversarial"]
    assert {"input_dropout", "input_noise", "clean"} <= found["perturbations"].keys()
    assert found["adversarial"]["fgsm"][0]["reasons"] == {"epsilon_token": "continuous inputs have no tokens"}
    with pytest.raises(ValueError, match="continuous inputs have no tokens"):
        analyzer.test_adversarial_robustness([(torch.rand(2, 4), torch.tensor([0, 1]))], unit="token")
