"""Every family trains under real trainers, is tracked, and is saved so that PEFT loads it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

import learnscope as ls
from learnscope.trackers import GradientFlowTracker, SpectralTracker
from learnscope.training.adalora import fit_schedule, orthogonality
from learnscope.training.adapters import adapter_config
from learnscope.training.command import Outcome
from learnscope.training.errors import TrainError
from learnscope.training.families import FAMILIES, SPLIT_AT_START, family_of
from learnscope.training.settings.config import PeftConfig
from training.small import BOTH, trained

ADDED = {"lora_A", "lora_B"}
PARTS = {
    "dora": {*ADDED, "magnitude"}, "adalora": {*ADDED, "lora_E"}, "vera": {"lambda_b", "lambda_d"}, "ia3": {"ia3_l"},
    "layernorm": {"weight"},
}  # fmt: skip


ALWAYS = ("lora", "adalora", "ia3")
"""One for each way of being built: low-rank, with ranks that change, without matrices."""
EVERY_FAMILY = [family if family in ALWAYS else pytest.param(family, marks=pytest.mark.soak) for family in FAMILIES]


@pytest.fixture(scope="module", params=EVERY_FAMILY)
def finished(request: Any, base: Path, tmp_path_factory: Any) -> tuple[str, Path, Outcome]:
    folder = tmp_path_factory.mktemp("family") / "out"
    outcome, _ = trained(base, folder, *BOTH, "--config.peft.type", request.param, learning_rate=1e-2)
    return request.param, folder, outcome


def logits(model: Any) -> Tensor:
    ids = torch.arange(5, 45).reshape(2, 20)
    model.eval()
    with torch.no_grad():
        found: Tensor = model(input_ids=ids).logits
    return found


def test_it_trains_and_is_tracked(finished: tuple[str, Path, Outcome]) -> None:
    family, folder, outcome = finished
    losses = [entry["loss"] for entry in outcome.trainer.state.log_history if "loss" in entry]
    assert len(losses) == 4
    assert all(torch.isfinite(torch.tensor(losses)))
    run = ls.open_run(folder / "run")
    assert run.manifest["status"] == "finished"
    assert run.last_step == 4
    assert [record.error for record in run.records() if record.error] == []
    assert run.frame("Loss", "loss").value.tolist() == pytest.approx(losses)
    spectra = run.frame("AdapterSpectrum", kind="module")
    assert set(spectra.family) == {family}
    assert sorted(set(spectra.step)) == [2, 4]
    tracker = GradientFlowTracker.load(folder / "gradient_flow_final.pt")
    assert tracker.steps == [2, 4]
    assert set(tracker.components()) == PARTS.get(family, ADDED)


def test_what_is_saved_gives_the_trained_model(finished: tuple[str, Path, Outcome], base: Path) -> None:
    family, folder, outcome = finished
    plain = AutoModelForCausalLM.from_pretrained(base, attn_implementation="sdpa")
    before = logits(plain)
    again = peft.PeftModel.from_pretrained(plain, folder)
    after, expected = logits(again), logits(outcome.trainer.model)
    torch.testing.assert_close(after, expected, atol=2e-4, rtol=1e-4)
    assert (expected - before).abs().max() > 5e-3, f"{family} has changed the model by more than rounding"


def test_what_trains_is_the_adapter_alone(finished: tuple[str, Path, Outcome]) -> None:
    family, _, outcome = finished
    moved = {name for name, p in outcome.trainer.model.named_parameters() if p.requires_grad}
    marks = {"vera": "vera_lambda", "ia3": "ia3_l", "layernorm": "ln_tuning_layers"}
    assert moved
    assert all(marks.get(family, "lora_") in name for name in moved)
    if family == "lora-fa":
        assert all("lora_B" in name for name in moved)


def test_spectra_are_of_what_training_has_added(finished: tuple[str, Path, Outcome], base: Path) -> None:
    """ΔW by PEFT's own formula, less what PiSSA and MiLoRA took from the base weight when they began."""
    family, folder, outcome = finished
    tracker = SpectralTracker.load(folder / "spectral_history_final.pt")
    if family in ("ia3", "layernorm"):
        history = tracker.get_layer_history(tracker.modules["default"][0])
        assert history["nuclear_norm"] == [None, None]
        return
    original = load_file(base / "model.safetensors")
    for scope in ("model.layers.0.self_attn.q_proj", "model.layers.3.mlp.down_proj"):
        layer = outcome.trainer.model.get_submodule(f"base_model.model.{scope}")
        base_moved = layer.get_base_layer().weight.detach().double() - original[f"{scope}.weight"].double()
        added = layer.get_delta_weight("default").detach().double() + base_moved
        values = torch.linalg.svdvals(added)
        history = tracker.get_layer_history(scope)
        assert history["frobenius_norm"][-1] == pytest.approx(float(added.norm()), rel=1e-4)
        assert history["nuclear_norm"][-1] == pytest.approx(float(values.sum()), rel=1e-3)
        assert bool(base_moved.any()) == (family in SPLIT_AT_START)


def test_two_rates(finished: tuple[str, Path, Outcome]) -> None:
    family, folder, outcome = finished
    names = {id(p): name for name, p in outcome.trainer.model.named_parameters()}
    rates = {
        names[id(p)].split(".")[-3]: group["initial_lr"]
        for group in outcome.trainer.optimizer.param_groups
        for p in group["params"]
    }
    expected = {"lora_A": 1e-2, "lora_B": 16e-2} if family in ("lora+", "milora+") else dict.fromkeys(rates, 1e-2)
    assert rates == pytest.approx(expected)
    recorded = ls.open_run(folder / "run").frame("LearningRate", "learning_rate")
    first = recorded[recorded.step == 1].value
    assert all(any(value == pytest.approx(rate) for value in first) for rate in expected.values())


def test_spellings() -> None:
    written = ["LoRA", "rsLoRA", "LoRA+", "loraplus", "lora_plus", "LoRA-FA", "lora_fa", "DoRA", "AdaLoRA", "PiSSA",
               "MiLoRA", "MiLoRA+", "milora_plus", "VeRA", "IA3", "(IA)³", "LayerNorm Tuning", "ln_tuning"]  # fmt: skip
    expected = ["lora", "rslora", "lora+", "lora+", "lora+", "lora-fa", "lora-fa", "dora", "adalora", "pissa", "milora",
                "milora+", "milora+", "vera", "ia3", "ia3", "layernorm", "layernorm"]  # fmt: skip
    assert [family_of(name) for name in written] == expected
    with pytest.raises(TrainError, match="Did you mean 'adalora'"):
        family_of("ada_lor")
    with pytest.raises(TrainError, match=r"There are: lora, rslora"):
        family_of("prefix")


def test_adalora_reaches_its_budget(base: Path, tmp_path: Path) -> None:
    """8 matrices of rank 6 at first; after the last step as many ranks as 8 of rank 3, in the model and in its file."""
    line = ["--config.peft.type", "adalora", "--config.peft.init_r", "6", "--config.peft.target_r", "3",
            "--config.peft.tfinal", "0", "--config.peft.target_modules", "q_proj,v_proj"]  # fmt: skip
    outcome, _ = trained(base, tmp_path / "a", *line, *BOTH, max_steps=12, learning_rate=1e-2)
    config = outcome.trainer.model.peft_config["default"]
    kept = [sum(ranks) for ranks in config.rank_pattern.values()]
    assert sum(kept) == 8 * 3
    masked = [int((p == 0).sum()) for name, p in outcome.trainer.model.named_parameters() if "lora_E" in name]
    assert sum(masked) == 8 * 6 - 8 * 3
    run = ls.open_run(tmp_path / "a" / "run")
    allocated = run.frame("AdapterSpectrum", "allocated_rank").groupby("step").value.sum()
    assert allocated[12] == 24
    assert allocated[4] > allocated[8] > allocated[12]
    # measured after the ranks of the step were taken away, not before
    assert run.frame("AdapterSpectrum", "numerical_rank").groupby("step").value.sum()[12] <= 24
    state = peft.utils.load_peft_weights(str(tmp_path / "a"))
    assert sum(len(value) for name, value in state.items() if "lora_E" in name) == 24


@pytest.mark.parametrize(
    ("steps", "expected"), [(200, (20, 50, 4)), (12, (1, 3, 1)), (3, (0, 1, 1)), (100_000, (10_000, 25_000, 2000))]
)
def test_adalora_s_schedule_fits_the_steps(steps: int, expected: tuple[int, int, int]) -> None:
    made = adapter_config(None, PeftConfig(type="adalora", r=8))
    assert (made.init_r, made.target_r) == (12, 8)
    fit_schedule(made, PeftConfig(type="adalora"), steps)
    assert (made.tinit, made.tfinal, made.deltaT) == expected
    assert made.total_step == steps
    fit_schedule(made, PeftConfig(tinit=0, tfinal=0, deltaT=3), steps)
    assert (made.tinit, made.tfinal, made.deltaT) == (0, 0, 3)


def test_adalora_s_penalty_is_peft_s(base: Path) -> None:
    """PEFT adds it to a loss that the model computes: the difference that its weight makes is the penalty."""
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_pretrained(base)
    config = peft.AdaLoraConfig(target_modules=["q_proj", "up_proj"], total_step=9, task_type="CAUSAL_LM")
    model: Any = peft.get_peft_model(plain, config)
    ids = torch.arange(5, 25).reshape(1, 20)
    model.eval()
    losses = []
    for weight in (0.0, 0.5):
        model.peft_config["default"].orth_reg_weight = weight
        losses.append(model(input_ids=ids, labels=ids).loss.double())
    assert orthogonality(model).item() == pytest.approx(float((losses[1] - losses[0]) / 0.5), rel=1e-4)


@pytest.mark.parametrize("method", ["sft", "grpo"])
def test_the_penalty_counts_once_a_step(base: Path, tmp_path: Path, method: str) -> None:
    """A penalty far above the loss: with two forwards a step the gradient is that of one forward, not twice that."""
    line = ["--config.peft.type", "adalora", "--config.peft.orth_reg_weight", "1000"]
    norms = []
    for forwards in (1, 2):
        options = {"method": method, "num_generations": 4, "max_completion_length": 4, "max_grad_norm": 1e9}
        options |= {"gradient_accumulation_steps": forwards, "per_device_train_batch_size": 8 // forwards}
        outcome, _ = trained(base, tmp_path / str(forwards), *line, max_steps=3, save_steps=0, **options)
        norms.append(outcome.trainer.state.log_history[0]["grad_norm"])
    assert norms[0] > 10
    assert norms[1] == pytest.approx(norms[0], rel=0.01)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--config.peft.tinit", "3", "--config.peft.tfinal", "2"], "none is left to reduce them in"),
        (["--config.training.max_steps", "2"], "of 2 steps the first 0"),
        (["--config.peft.init_r", "4", "--config.peft.target_r", "4"], "init_r=4 must be more than target_r=4"),
    ],
)
def test_schedules_of_adalora_that_cannot_be(base: Path, tmp_path: Path, flags: list[str], message: str) -> None:
    with pytest.raises(TrainError, match=message):
        trained(base, tmp_path / "a", "--config.peft.type", "adalora", *flags)
