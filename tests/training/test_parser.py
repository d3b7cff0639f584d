"""The command line: documented flags, files, what outweighs what, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from learnscope.trackers.config import TrackerConfig
from learnscope.training.errors import TrainError
from learnscope.training.plan import check
from learnscope.training.settings.help import help_text
from learnscope.training.settings.options import FLAGS, options
from learnscope.training.settings.parser import as_yaml, parse


def tracker(*line: str) -> TrackerConfig:
    return parse(line).tracker


def test_the_documented_quick_start() -> None:
    line = (
        "--enable_tracking --tracking_frequency 100 "
        "--config.model.model_name_or_path deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B "
        "--config.dataset.dataset_name_or_path Jiayi-Pan/Countdown-Tasks-3to4 "
        "--config.peft.type lora --config.training.output_dir output_with_tracking"
    )
    config = parse(line.split())
    assert config.model.model_name_or_path == "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
    assert config.dataset.dataset_name_or_path == "Jiayi-Pan/Countdown-Tasks-3to4"
    assert config.training.output_dir == "output_with_tracking"
    assert config.tracker == TrackerConfig(enable_spectral_tracking=True, enable_gradient_tracking=True)


@pytest.mark.parametrize(
    ("line", "spectral", "gradient"),
    [
        (["--enable_tracking"], True, True),
        (["--enable_spectral_tracking"], True, False),
        (["--enable_gradient_tracking"], False, True),
        ([], False, False),
        (["--enable_tracking", "--config.tracker.enable_gradient_tracking", "false"], True, False),
    ],
)
def test_what_is_tracked(line: list[str], spectral: bool, gradient: bool) -> None:
    got = tracker(*line)
    assert (got.enable_spectral_tracking, got.enable_gradient_tracking) == (spectral, gradient)


def test_every_documented_tracker_option_has_a_dotted_flag() -> None:
    line = (
        "--config.tracker.enable_spectral_tracking true --config.tracker.enable_gradient_tracking true "
        "--config.tracker.spectral_log_frequency 7 --config.tracker.gradient_log_frequency 9 "
        "--config.tracker.track_adapter_only false --config.tracker.compute_full_svd false "
        "--config.tracker.max_layers_to_track 3 --config.tracker.save_with_checkpoints false "
        "--config.tracker.tracking_output_dir there"
    )
    got = tracker(*line.split())
    assert got == TrackerConfig(
        enable_spectral_tracking=True, enable_gradient_tracking=True, spectral_log_frequency=7,
        gradient_log_frequency=9, track_adapter_only=False, compute_full_svd=False, max_layers_to_track=3,
        save_with_checkpoints=False, tracking_output_dir="there",
    )  # fmt: skip


def test_the_frequency_fills_in_what_nobody_has_set(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("tracker:\n  spectral_log_frequency: 7\n")
    line = ["--enable_tracking", "--tracking_frequency", "50"]
    got = tracker(*line, "--config.tracker.gradient_log_frequency", "9")
    assert (got.spectral_log_frequency, got.gradient_log_frequency) == (50, 9)
    got = tracker(*line, "--config", str(file))
    assert (got.spectral_log_frequency, got.gradient_log_frequency) == (7, 50)


def test_the_command_line_outweighs_the_file_wherever_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("peft: {r: 3, type: dora}\ntraining: {learning_rate: 1e-4, report_to: [wandb]}\n")
    for line in (["--config.peft.r", "5", "--config", str(file)], [f"--config={file}", "--config.peft.r=5"]):
        config = parse(line)
        assert (config.peft.r, config.peft.type, config.training.learning_rate) == (5, "dora", 1e-4)
        assert config.training.report_to == ["wandb"]


def test_flags_enable_what_the_file_does_not(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("tracker: {enable_spectral_tracking: false, tracking_output_dir: a}\n")
    got = tracker("--config", str(file), "--enable_tracking", "--tracking_output_dir", "b")
    assert got.enable_spectral_tracking
    assert got.tracking_output_dir == "b"


def test_what_is_printed_can_be_given_back(tmp_path: Path) -> None:
    config = parse(
        ["--config.peft.target_modules", "q_proj,v_proj", "--config.training.resume_from_checkpoint", "true"]
    )
    file = tmp_path / "c.yaml"
    file.write_text(as_yaml(config))
    assert set(yaml.safe_load(as_yaml(config))) == {"model", "peft", "dataset", "training", "tracker"}
    assert parse(["--config", str(file)]) == config


@pytest.mark.parametrize("written", ["q_proj,v_proj", "[q_proj,v_proj]", '["q_proj", "v_proj"]'])
def test_lists_may_have_brackets_or_not(written: str) -> None:
    assert parse([f"--config.peft.target_modules={written}"]).peft.target_modules == ["q_proj", "v_proj"]
    assert parse(["--config.peft.target_modules", written]).peft.target_modules == ["q_proj", "v_proj"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--config.training.max_step 3", "--config.training.max_step. Did you mean --config.training.max_steps?"),
        ("--config.peft.learning_rate 3", "Did you mean --config.training.learning_rate?"),
        ("--output_dir x", "Did you mean --config.training.output_dir?"),
        ("--enable_trackin", "Did you mean --enable_tracking?"),
        ("--config.nothing.like_it 3", "--help` lists all"),
        ("--config.training.qqq 3", "The options of training: method, output_dir"),
        ("--config.training.max_steps many", "--config.training.max_steps wants a whole number, or null, not 'many'"),
        ("--config.training.max_steps 1.5", "wants a whole number"),
        ("--config.tracker.enable_spectral_tracking maybe", "wants true or false, not 'maybe'"),
        ("--config.tracker.enable_spectral_tracking", "needs a value: true or false"),
        ("--config.model.attn_implementation flash", "wants one of flash_attention_2, sdpa, eager, not 'flash'"),
        ("--config.tracker.spectral_log_frequency 0", "spectral_log_frequency=0: a whole number from 1"),
        ("--tracking_frequency 0 --enable_tracking", "a whole number from 1"),
        ("--tracking_frequency often --enable_tracking", "--tracking_frequency wants a whole number, not 'often'"),
        ("--tracking_frequency 5", "without anything to track: add --enable_tracking"),
        ("--config", "needs the name of a YAML file"),
        ("--config /not/there.yaml", "No such file"),
        ("stray", "stray"),
    ],
)  # fmt: skip
def test_what_is_refused(line: str, message: str) -> None:
    with pytest.raises(TrainError) as refused:
        parse(line.split())
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training:\n  max_step: 3\n", "no option training.max_step. Did you mean --config.training.max_steps?"),
        ("trainig:\n  max_steps: 3\n", "no section 'trainig' (did you mean 'training'?)"),
        ("learning_rate: 3\n", "the option is training.learning_rate"),
        ("training: 3\n", "below 'training' there must be options"),
        ("- 1\n", "holds no options"),
        ("", "holds no options"),
        ("training: {max_steps: many}\n", "--config.training.max_steps wants a whole number, or null, not 'many'"),
        ("training: {\n", "is no YAML"),
    ],
)
def test_what_is_refused_in_a_file(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(TrainError) as refused:
        parse(["--config", str(file)])
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_help_has_every_option_with_its_default() -> None:
    text = help_text("learnscope train")
    assert text.index("examples:") < text.index("--config.model.")
    for flag in FLAGS:
        assert f"  --{flag.name}" in text
    for option in options().values():
        assert option.doc, f"{option.key} has no docstring"
        described = text.split(f"\n  {option.flag} ", 1)[1].split("\n  --")[0]
        assert "Default:" in described, option.key
    assert "--config.peft.lora_dropout X\n        Dropout on what goes into the adapter. Default: 0.0." in text


def test_help_and_refusals_do_without_torch() -> None:
    program = (
        "import sys; from learnscope.cli import main\n"
        "assert main(['train', '--help']) == 0\n"
        "assert main(['train', '--print_config', '--enable_tracking']) == 0\n"
        "assert main(['train', '--config.peft.rr', '3']) == 2\n"
        "print([name for name in ('torch', 'transformers', 'trl') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("[]")
    assert done.stderr == "learnscope train: there is no option --config.peft.rr. Did you mean --config.peft.r?\n"


def test_the_example_is_a_configuration() -> None:
    file = Path(__file__).parents[2] / "examples" / "train_adapter.yaml"
    config = parse(["--config", str(file)])
    check(config)
    assert config.peft.type == "dora"
    assert config.tracker.enabled
