"""What cannot be done is refused before anything is written, with the reason and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from learnscope.training.errors import TrainError
from learnscope.training.models import load_model
from learnscope.training.settings.config import Config, ModelConfig
from training.small import BOTH, trained


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--config.peft.type", "pissa", "--config.training.beta", "0.1"], r"pissa moves a part .* set beta to 0"),
        (["--config.peft.type", "milora+", "--config.training.beta", "0.1"], r"milora\+ moves a part"),
        (["--config.training.num_generations", "3"], r"a step of 8 .* make that a multiple"),
        (["--config.training.beta", "-1"], r"config.training.beta is -1.0; it must be 0 or more"),
        (["--config.training.temperature", "0"], r"temperature is 0.0; it must be a number above 0"),
        (["--config.training.num_train_epochs", "1"], "max_steps and num_train_epochs are both set"),
        (["--config.peft.type", "ia3", "--config.peft.lora_dropout", "0.1"], "ia3 has no dropout"),
        (["--config.peft.lora_dropout", "1"], "from 0 to below 1"),
        (["--config.peft.type", "loar"], "Did you mean 'lora'"),
        (["--enable_tracking"], r"is 100 and the training has 4 steps.* lower it \(--tracking_frequency 1\)"),
        (["--config.peft.r", "0"], "config.peft.r is 0; it must be 1 or more"),
        (["--config.peft.target_modules", "no_such"], "config.peft .type lora."),
    ],
)
def test_options_that_contradict_each_other(base: Path, tmp_path: Path, flags: list[str], message: str) -> None:
    with pytest.raises(TrainError, match=message):
        trained(base, tmp_path / "out", "--config.training.method", "grpo", *flags)
    assert not (tmp_path / "out").exists()


def test_an_output_folder_that_is_a_file(base: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(TrainError, match="is a file; an output folder is needed"):
        trained(base, tmp_path / "out")


def test_names_that_the_hub_cannot_be_asked_for(base: Path, tmp_path: Path) -> None:
    offline = (
        r"there is no such .*here, and the hub is not asked because HF_HUB_OFFLINE is set: unset it, or name a local"
    )
    with pytest.raises(TrainError, match=r"model 'someone/something'.*" + offline):
        trained(Path("someone/something"), tmp_path / "out")
    with pytest.raises(TrainError, match=r"data set 'Jiayi-Pan/Countdown-Tasks-3to4'.*" + offline):
        trained(base, tmp_path / "out", "--config.dataset.dataset_name_or_path", "Jiayi-Pan/Countdown-Tasks-3to4")
    assert not (tmp_path / "out").exists()


def test_several_processes(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(TrainError, match="trains in one process"):
        trained(base, tmp_path / "out")


def load(config: ModelConfig, folder: Path) -> tuple[str, list[str]]:
    said: list[str] = []
    model, _, _ = load_model(config, folder, said.append, None, resume=False)
    return model.config._attn_implementation, said


def test_attention_falls_back_and_says_so(base: Path, tmp_path: Path) -> None:
    attention, said = load(ModelConfig(model_name_or_path=str(base)), tmp_path)
    assert attention == "sdpa"
    assert said == ["attention: sdpa, since flash_attention_2 cannot be used: it needs a CUDA device"]
    for asked in ("sdpa", "eager"):
        chosen = ModelConfig(model_name_or_path=str(base), attn_implementation=asked)  # type: ignore[arg-type]
        assert load(chosen, tmp_path) == (asked, [])


def test_attention_falls_back_when_loading_says_no(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that seems to have all it takes: transformers itself refuses, here for want of the package."""
    monkeypatch.setattr("learnscope.training.models._why_no_flash", lambda config: None)
    attention, said = load(ModelConfig(model_name_or_path=str(base)), tmp_path)
    assert attention == "sdpa"
    assert len(said) == 1
    assert "flash" in said[0].split("cannot be used: ")[1].lower()


def test_a_folder_that_holds_no_model(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="cannot be loaded"):
        load(ModelConfig(model_name_or_path=str(tmp_path)), tmp_path)
    (tmp_path / "base_model").mkdir()
    with pytest.raises(TrainError, match="is there and was not made here"):
        load(ModelConfig(), tmp_path)


def test_a_model_without_what_the_family_needs(tmp_path: Path, base: Path) -> None:
    """GPT-2's layers are no nn.Linear, which VeRA and MiLoRA need."""
    from learnscope.training.adapters import adapt
    from learnscope.training.settings.config import PeftConfig

    small = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20, n_positions=16))
    with pytest.raises(TrainError, match=r"config.peft \(type milora\): init_milora: .*r=64 is more than"):
        adapt(small, PeftConfig(type="milora", r=64, target_modules=["c_attn"]))


def test_a_saved_adapter_to_go_on_from(base: Path, tmp_path: Path) -> None:
    trained(base, tmp_path / "first", learning_rate=1e-2)
    line = ["--config.peft.adapter_name_or_path", str(tmp_path / "first")]
    outcome, _ = trained(base, tmp_path / "second", *line, *BOTH, learning_rate=1e-9)
    layer = outcome.trainer.model.get_submodule("base_model.model.model.layers.0.mlp.up_proj")
    assert layer.lora_B["default"].weight.abs().max().item() > 1e-3, "not a new adapter, whose B is 0"
    with pytest.raises(TrainError, match=r"config.peft.type is dora, but .* holds use_dora=False"):
        trained(base, tmp_path / "third", *line, "--config.peft.type", "dora")
    with pytest.raises(TrainError, match="pissa cannot continue a saved adapter"):
        trained(base, tmp_path / "third", *line, "--config.peft.type", "pissa")
    with pytest.raises(TrainError, match="since it starts from one"):
        trained(base, tmp_path / "third", *line, "--config.training.beta", "0.1", "--config.training.method", "grpo")


def test_the_defaults_are_complete() -> None:
    from learnscope.training.plan import check, make_plan

    config = Config()
    check(config)
    plan = make_plan(config, builtin=True)
    assert (plan.max_steps, plan.save_steps, plan.learning_rate) == (200, 100, 2e-3)
    config.training.num_train_epochs = 2
    assert make_plan(config, builtin=False).max_steps == -1
