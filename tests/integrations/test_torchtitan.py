"""torchtitan's own trainer on a CPU against a loop without it; one entry in its configuration more, or not."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import learnscope as ls

ROOT = Path(__file__).parents[2]


def environments() -> Any:
    """The module of the benchmarks that makes environments, by its file: their folder has modules of the same names as
    folders of tests, which would not be found any more if it were on the path."""
    spec = importlib.util.spec_from_file_location("peer_environments", ROOT / "bench" / "peers" / "environments.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PEERS = environments()
SIDE = Path(__file__).with_name("titan_side.py")
TITAN = PEERS.Peer("", "torchtitan", "0.2.2", "", also=("triton==3.9.0",))
ENTRY = 'custom_config_module = "learnscope.integrations.torchtitan"'
JOB = """
[job]
dump_folder = "{folder}/{name}"
{entry}
[model]
name = "tiny"
flavor = "tiny"
hf_assets_path = "{folder}/tokens"
[optimizer]
lr = 1e-2
[lr_scheduler]
warmup_steps = 0
decay_ratio = 0.0
[training]
dataset = "tiny"
seq_len = 16
local_batch_size = 2
global_batch_size = {batch}
max_norm = 0.2
mixed_precision_param = "float32"
[activation_checkpoint]
mode = "none"
[metrics]
log_freq = 1
enable_tensorboard = true
[debug]
seed = 7
[checkpoint]
enable = true
interval = 2
last_save_model_only = false
[validation]
enable = true
dataset = "tiny_held_out"
seq_len = 16
local_batch_size = 2
freq = 2
steps = 8
"""
OPTIONS = '[learnscope]\noptions = "titan_options.watched"\n'


@pytest.fixture(scope="module")
def python() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "learnscope-peers"
    try:
        return PEERS.environment(TITAN, cache.expanduser().absolute())
    except PEERS.NotInstalled as reason:
        pytest.skip(f"torchtitan could not be installed: {reason}")


def free_port() -> str:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return str(server.getsockname()[1])


def start(python: Path, folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    env |= {"MASTER_PORT": free_port(), **variables}
    command = [str(python), str(SIDE), arguments[0], str(folder), *arguments[1:]]
    return subprocess.Popen(command, env=env, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def side(python: Path, folder: Path, *arguments: str) -> dict[str, Any]:
    process = start(python, folder, arguments[0], str(folder / "result.json"), *arguments[1:])
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def job(folder: Path, name: str, entry: str = "", options: str = "", batch: int = 4) -> str:
    file = folder / f"{name}.toml"
    file.write_text(JOB.format(folder=folder, name=name, entry=entry, batch=batch) + options)
    return str(file)


@pytest.mark.soak
def test_one_entry_gives_the_numbers_of_a_raw_loop_and_changes_no_bit(python: Path, tmp_path: Path) -> None:
    """With accumulation, clipping and evaluation; and stopped after four of six steps and gone on with."""
    raw = side(python, tmp_path, "raw", "6")
    plain = side(python, tmp_path, "train", "--job.config_file", job(tmp_path, "plain"), "--training.steps", "6")
    assert plain["weights"] == raw["weights"]
    file = job(tmp_path, "watched", ENTRY, OPTIONS)
    side(python, tmp_path, "train", "--job.config_file", file, "--training.steps", "4")
    watched = side(python, tmp_path, "train", "--job.config_file", file, "--training.steps", "6")
    assert watched["weights"] == raw["weights"]
    run = ls.open_run(tmp_path / "watched" / "learnscope")
    norms = run.frame("GradientFlow", "norm", "model")
    found = {
        "loss": list(run.frame("Loss", "loss").value),
        "before": list(norms[norms.stage == "before_clip"].value),
        "after": list(norms[norms.stage == "stepped"].value),
        "moved": list(run.frame("ParameterChange", "l2", "model").value),
    }
    for name, values in found.items():
        assert values == pytest.approx(raw[name], rel=1e-5), name
    assert set(run.frame("LearningRate", "learning_rate").value) == {0.01}
    assert [attempt["start_step"] for attempt in run.manifest["attempts"]] == [0, 4]
    assert run.manifest["attempts"][1]["state_restored"] is True
    assert run.status == "finished"


@pytest.mark.soak
def test_the_trainers_own_numbers_and_ours_go_both_ways(python: Path, tmp_path: Path) -> None:
    """The example's job on a small model, with default probes: the holdout is the validation set."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    own = {
        "model.name": "tiny", "model.flavor": "tiny", "model.hf_assets_path": str(tmp_path / "tokens"),
        "training.dataset": "tiny", "validation.dataset": "tiny_held_out", "job.dump_folder": str(tmp_path / "job"),
        "training.mixed_precision_param": "float32", "activation_checkpoint.mode": "none",
    }  # fmt: skip
    options = [part for name, value in own.items() for part in (f"--{name}", value)]
    side(python, tmp_path, "train", "--job.config_file", str(ROOT / "examples" / "torchtitan.toml"), *options)
    run = ls.open_run(tmp_path / "job" / "learnscope")
    logged = run.frame("Loss").set_index(["name", "step"]).value
    norms = run.frame("GradientFlow", "norm", "model")
    own = norms[norms.stage == "before_clip"].set_index("step").value
    assert 10 in own.index
    assert list(own) == pytest.approx(list(logged["grad_norm"][own.index]), rel=1e-5)
    held_out = run.frame("Holdout", "holdout_loss").set_index("step").value
    validated = logged["validation_metrics/loss"]
    assert held_out[1] == pytest.approx(validated[1], rel=1e-5), "eight batches are those that it validates on first"
    assert run.manifest["attempts"][0]["holdout"]["source"] == "validation set"
    board = EventAccumulator(str(next((tmp_path / "job").rglob("events*")).parent)).Reload()
    own = [name for name in board.Tags()["scalars"] if name.startswith("learnscope/")]
    assert "learnscope/gradient_norm" in own
    assert len(own) <= 6


@pytest.mark.soak
def test_a_job_that_breaks_closes_the_run_and_says_so(python: Path, tmp_path: Path) -> None:
    file = job(tmp_path, "broken", ENTRY, OPTIONS.replace("watched", "failing"))
    process = start(python, tmp_path, "train", str(tmp_path / "none.json"), "--job.config_file", file)
    printed, _ = process.communicate(timeout=300)
    assert process.returncode
    assert "ZeroDivisionError: in the middle" in printed
    run = ls.open_run(tmp_path / "broken" / "learnscope")
    assert run.status == "interrupted by ZeroDivisionError: in the middle"
    assert list(run.frame("Loss", "loss").step) == [1, 2]


@pytest.mark.soak
def test_a_model_in_shards_is_refused_by_name(python: Path, tmp_path: Path) -> None:
    file, port = job(tmp_path, "shards", ENTRY, OPTIONS, batch=4), free_port()
    arguments = ["train", str(tmp_path / "none.json"), "--job.config_file", file, "--training.steps", "2"]
    ranks = [
        start(python, tmp_path, *arguments, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_PORT=port)
        for rank in range(2)
    ]
    printed = [process.communicate(timeout=300)[0] for process in ranks]
    assert all(process.returncode for process in ranks)
    assert "shard" in printed[0]
    assert "ls.replay" in printed[0]
