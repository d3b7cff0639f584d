"""What the blocks of the adapter-tracking document take for granted, and what they specify.

Its commands name a model and a data set of a hub, which nothing here reaches: a small local model and a local data set
with the same columns stand in for them. `...` is how long to train.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from forked import run_program
from learnscope.cli import main
from learnscope.trackers import GradientFlowTracker, SpectralTracker
from seeds.room import Names, Room
from training.small import hardly_trained_base

ROOT = Path(__file__).parents[2]
FEWER_STEPS = """
import runpy, sys
from learnscope.training import builtin
builtin.STEPS = 20
runpy.run_path("run.py", run_name="__main__")
"""
ASKED = """#!/bin/sh
printf '%s\\n' "$@" > {folder}/asked
cat {folder}/printed
exit "$(cat {folder}/status)"
"""
"""In place of an interpreter: says what it was asked to run, and repeats what came of it."""
METRICS = (
    "singular_values", "spectral_gap", "condition_number", "effective_rank", "nuclear_norm", "frobenius_norm",
    "top1_sv_ratio", "top5_sv_ratio", "top10_sv_ratio",
)  # fmt: skip


@functools.cache
def stand_ins() -> Path:
    """A folder with a small base model, and countdown problems in the columns of the documented data set."""
    folder = Path(tempfile.mkdtemp(prefix="stand-ins-"))
    hardly_trained_base(folder / "model")
    problems = [{"target": a + b + c, "nums": [a, b, c]} for a in range(1, 6) for b in range(1, 5) for c in range(1, 5)]
    (folder / "countdown.jsonl").write_text("".join(json.dumps(one) + "\n" for one in problems))
    return folder


def arguments(block: str, *, steps: int, output: str) -> list[str]:
    """What follows `python run.py`, with local stand-ins for what lies on a hub, and for `...`."""
    words = shlex.split(block.replace("\\\n", " "))
    assert words[:2] == ["python", "run.py"]
    words = words[2:]
    local = {
        "--config.model.model_name_or_path": str(stand_ins() / "model"),
        "--config.dataset.dataset_name_or_path": str(stand_ins() / "countdown.jsonl"),
    }
    for flag, value in local.items():
        if flag in words:
            words[words.index(flag) + 1] = value
    left_open = words[-1] == "..."
    words = words[:-1] if left_open else words
    for flag, value in local.items():
        words += [flag, value] if flag not in words else []
    if "--config.training.output_dir" not in words:
        words += ["--config.training.output_dir", output]
    return [*words, "--config.training.max_steps", str(steps), "--config.training.per_device_train_batch_size", "1",
            "--config.dataset.holdout_examples", "8", "--config.peft.r", "4"]  # fmt: skip


def ran(block: str, room: Room, *, steps: int) -> Path:
    """The output directory of the command, run in this process."""
    output = room.folder / "output"
    assert main(["train", *arguments(block, steps=steps, output=str(output))]) == 0
    return output


def logged_steps(output: Path) -> tuple[list[int], list[int]]:
    return (
        SpectralTracker.load(output / "spectral_history_final.pt").steps,
        GradientFlowTracker.load(output / "gradient_flow_final.pt").steps,
    )


# ---- commands


def the_first_command(block: str, room: Room) -> None:
    """As a user would run it: `python run.py` of the repository, in another folder."""
    words = arguments(block, steps=100, output="")
    assert words[:3] == ["--enable_tracking", "--tracking_frequency", "100"]
    result = run_program(ROOT / "run.py", *words, folder=room.folder)
    assert result.returncode == 0, result.stderr
    output = room.folder / "output_with_tracking"
    assert logged_steps(output) == ([100], [100])
    assert json.loads((output / "adapter_config.json").read_text())["peft_type"] == "LORA"


def only_spectra(block: str, room: Room) -> None:
    output = ran(block, room, steps=50)
    assert SpectralTracker.load(output / "spectral_history_final.pt").steps == [50]
    assert not (output / "gradient_logs").exists()
    assert not (output / "gradient_flow_final.pt").exists()


def only_gradients(block: str, room: Room) -> None:
    output = ran(block, room, steps=50)
    assert GradientFlowTracker.load(output / "gradient_flow_final.pt").steps == [50]
    assert not (output / "spectral_logs").exists()
    assert not (output / "spectral_history_final.pt").exists()


def dotted_options(block: str, room: Room) -> None:
    assert logged_steps(ran(block, room, steps=100)) == ([100], [100])


def other_attention(block: str, room: Room) -> None:
    output = ran(block, room, steps=2)
    assert "attention: sdpa, since" not in room.printed(), "it was asked for: nothing to fall back from"
    assert (output / "adapter_model.safetensors").stat().st_size > 0
    assert re.search(r"attn_implementation:\s*sdpa", (output / "train_config.yaml").read_text())


def a_program(block: str, room: Room) -> None:
    """A script or module of the repository that ends with 0, its package mapped as in the imports of other blocks."""
    words = shlex.split(block)
    assert words[0] == "python"
    program = ROOT / words[1]
    if words[1] == "-m":
        spec = find_spec(re.sub(r"^perl\.", "learnscope.", words[2]))
        assert spec is not None
        program = Path(str(spec.origin))
    result = run_program(program, folder=room.folder)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.strip()


def a_full_training(block: str, room: Room) -> None:
    """With fewer steps, of the training and of the built-in model's: what it shows, it shows so too.

    The script's interpreter is a stand-in that has the training run in a process that has torch already.
    """
    words = shlex.split(block)
    assert words[0] == "bash"
    for name in ("asked", "printed", "status"):
        os.mkfifo(room.folder / name)
    python, program = room.folder / "python", room.folder / "fewer_steps.py"
    python.write_text(ASKED.format(folder=shlex.quote(str(room.folder))))
    python.chmod(0o755)
    program.write_text(FEWER_STEPS)
    script = subprocess.Popen(
        ["bash", str(ROOT / words[1]), "--config.training.max_steps", "20"], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, cwd=room.folder, env={**os.environ, "PYTHON": str(python)},
    )  # fmt: skip
    asked = (room.folder / "asked").read_text().splitlines()
    assert asked[0] == "run.py"
    ran = run_program(program, *asked[1:], folder=ROOT)
    (room.folder / "printed").write_text(ran.stdout)
    (room.folder / "status").write_text(str(ran.returncode))
    printed, complaints = script.communicate(timeout=60)
    assert script.returncode == 0, printed + complaints + ran.stderr
    assert ran.stderr + complaints == ""
    assert_full_training(printed)


def assert_full_training(printed: str) -> None:
    assert printed.startswith("making the built-in model …\nattention: sdpa, since flash_attention_2 cannot")
    assert printed.endswith("all documented files are there\n")


# ---- files


@functools.cache
def tracked_run() -> Path:
    """The output directory of a short tracked training."""
    output = Path(tempfile.mkdtemp(prefix="tracked-")) / "output_dir"
    block = "python run.py --enable_tracking --tracking_frequency 2 ..."
    assert main(["train", *arguments(block, steps=6, output=str(output))]) == 0
    return output


def the_tree(block: str, _room: Room) -> None:
    """Every file that the document lists is there, in the folder where it stands."""
    folder, found = "", []
    for line in block.splitlines()[1:]:
        name = re.sub(r"^[│├└─\s]+", "", line).split("#")[0].strip()
        inner = line.startswith(("│", " "))
        if name.endswith("/"):
            folder = name
        elif name:
            found.append(f"{folder}{name}" if inner else name)
    assert len(found) == 9
    missing = [name for name in found if not (tracked_run() / name).is_file()]
    assert missing == []
    for name in found:
        if name.endswith(".pt"):
            assert isinstance(torch.load(tracked_run() / name, weights_only=True), dict)
        elif name.endswith(".json"):
            assert json.loads((tracked_run() / name).read_text())["total_steps_logged"] == 3
        else:
            assert (tracked_run() / name).read_bytes().startswith(b"\x89PNG")


def linked(room: Room) -> None:
    (room.folder / "output_dir").symlink_to(tracked_run())
    room.printed()  # what the training said


@contextmanager
def spectra_of_a_run(room: Room) -> Iterator[Names]:
    linked(room)
    names: Names = {}
    yield names
    assert room.printed().strip() == str(names["summary"])
    assert names["summary"]["total_steps_logged"] == 3
    history: dict[str, Any] = names["layer_history"]
    assert history["steps"] == [2, 4, 6]
    for metric in METRICS:
        assert len(history[metric]) == 3, metric
        assert all(value is not None for value in history[metric]), metric
    assert [len(values) for values in history["singular_values"]] == [4, 4, 4]


@contextmanager
def gradients_of_a_run(room: Room) -> Iterator[Names]:
    linked(room)
    names: Names = {}
    yield names
    assert room.printed().strip() == str(names["summary"])
    assert set(names["summary"]["metrics"]) == {"lora_A", "lora_B"}
    assert (room.folder / "gradient_heatmap.png").read_bytes().startswith(b"\x89PNG")


EXECUTED = (spectra_of_a_run, gradients_of_a_run)
COMPARED: dict[str, Callable[[str, Room], None]] = {
    compared.__name__: compared
    for compared in (
        the_first_command,
        only_spectra,
        only_gradients,
        dotted_options,
        other_attention,
        a_program,
        a_full_training,
        the_tree,
    )
}
