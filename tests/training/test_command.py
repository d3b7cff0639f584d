"""The command as a user meets it: exit status, one readable message, Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import learnscope as ls
from forked import start_program
from learnscope.cli import main
from training.small import command_line

ROOT = Path(__file__).parents[2]


def test_what_cannot_be_done_is_one_line_and_status_2(tmp_path: Path, base: Path, capsys: Any) -> None:
    wrong = [
        ["--config.training.max_step", "3"],
        ["--config.model.model_name_or_path", "no/model", "--config.training.output_dir", str(tmp_path / "a")],
        command_line(base, tmp_path / "b", "--config.peft.type", "prefix"),
        command_line(base, Path("/proc/no"), "--config.training.max_steps", "1"),
    ]
    for line in wrong:
        assert main(["train", *line]) == 2
        said = capsys.readouterr().err
        assert said.startswith("learnscope train: ")
        assert said.count("\n") == 1, said
    assert list(tmp_path.iterdir()) == []


def test_the_command_is_listed(capsys: Any) -> None:
    assert main(["--help"]) == 0
    assert re.search(r"train +train an adapter", capsys.readouterr().out)
    assert main(["trian"]) == 2
    assert "did you mean 'train'" in capsys.readouterr().err


def test_both_ways_to_start_it_are_the_same() -> None:
    texts = []
    for start in (["run.py"], ["-m", "learnscope.cli", "train"]):
        done = subprocess.run([sys.executable, *start, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
        texts.append(done.stdout.replace("python run.py", "learnscope train"))
    assert texts[0] == texts[1]


def test_ctrl_c(base: Path, tmp_path: Path) -> None:
    flags = ("--enable_gradient_tracking", "--tracking_frequency", "2")
    line = command_line(base, tmp_path / "out", *flags, max_steps=100_000, save_steps=3)
    printed, failed = tmp_path / "printed", tmp_path / "failed"
    process = start_program(ROOT / "run.py", *line, folder=ROOT, out=printed, error=failed)
    deadline = time.monotonic() + 120
    while not (printed.exists() and "\nstep      8/" in printed.read_text()):
        assert process.is_alive(), failed.read_text()
        assert time.monotonic() < deadline, printed.read_text()
        time.sleep(0.02)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    process.join(120)
    assert process.exitcode == 130
    out, error = printed.read_text(), failed.read_text()
    assert "broken off after" in out
    assert "--config.training.resume_from_checkpoint latest" in out
    assert "Traceback" not in error
    run = ls.open_run(tmp_path / "out" / "run")
    assert run.manifest["status"] == "interrupted by KeyboardInterrupt"
    assert (tmp_path / "out" / "gradient_flow_final.pt").exists()
