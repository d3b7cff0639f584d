"""`learnscope patch`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from learnscope.cli import main
from learnscope.progress import progress_bar


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    old = {f"layer.{number}": torch.arange(2000.0) for number in range(12)} | {"[red]x": torch.ones(4)}
    new = {name: tensor.clone() for name, tensor in old.items()}
    for number in range(11):
        new[f"layer.{number}"][: 10 * (number + 1)] += 1
    new["[red]x"] += 1
    save_file(old, tmp_path / "old.safetensors")
    torch.save(new, tmp_path / "new.pt")
    return tmp_path


def test_there_and_back(checkpoints: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["patch", "old.safetensors", "new.pt", "-o", "p.safetensors"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["tensor", "how", "entries", "changed", "bytes"]
    assert [line.split()[0] for line in out[1:4]] == ["[red]x", "layer.10", "layer.9"], "by the share that changed"
    assert out[2].split()[1:5] == ["sparse", "2,000", "5.5", "%"]
    assert "and 4 more" in out
    assert out[-1].startswith("p.safetensors: ")
    assert out[-1].endswith("in 12 of 13 tensors changed")
    assert main(["patch", "--apply", "p.safetensors", "old.safetensors", "-o", "made.safetensors"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("written: made.safetensors\n", "")
    made, new = load_file("made.safetensors"), torch.load("new.pt")
    assert all(torch.equal(made[name], new[name]) for name in new)


def test_the_default_name_and_nothing_to_say(checkpoints: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["patch", "old.safetensors", "old.safetensors", "--no-verify"]) == 0
    assert Path("old-old.safetensors").exists()
    assert "0 % of 24.0 k entries in 0 of 13 tensors changed" in capsys.readouterr().out
    assert main(["patch", "--apply", "old-old.safetensors", "old.safetensors", "-o", "m.safetensors"]) == 2
    assert "made with verify=False" in capsys.readouterr().err
    assert (
        main(["patch", "--apply", "old-old.safetensors", "old.safetensors", "-o", "m.safetensors", "--no-verify"]) == 0
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["old.safetensors"], "to make a patch: learnscope patch OLD NEW"),
        (["nowhere.pt", "new.pt"], "there is no checkpoint file nowhere.pt"),
        (["old.safetensors", "new.pt", "-o", "old.safetensors"], "would overwrite the checkpoint"),
        (["--apply", "p.safetensors", "old.safetensors"], "--apply PATCH BASE -o OUT"),
        (["--apply", "p.safetensors", "old.safetensors", "new.pt", "-o", "x.safetensors"], "--apply PATCH BASE -o OUT"),
        (["--apply", "p.safetensors", "new.pt", "-o", "x.safetensors"], "there is no patch file p.safetensors"),
        (["--apply", "old.safetensors", "new.pt", "-o", "x.safetensors"], "but no patch"),
        (["old.safetensors", "new.pt", "-o", "new.pt/p.safetensors"], "new.pt"),
    ],
)
def test_errors_are_one_line(
    words: list[str], said: str, checkpoints: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in checkpoints.iterdir()}
    assert main(["patch", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("learnscope patch: ")
    assert said in captured.err
    assert {path: path.read_bytes() for path in checkpoints.iterdir()} == before


def test_help_teaches_and_imports_no_torch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["patch", "--help"]) == 0
    said = capsys.readouterr().out
    assert "learnscope patch --apply update.safetensors step100.safetensors -o step110.safetensors" in said
    assert "--no-verify" in said
    code = "import sys; from learnscope.cli import main; main(['patch', '--help']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)


def test_the_bar_comes_late_and_goes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the stream for a terminal
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("comparing", after=60) as show:
        show(1, 2)
    assert capsys.readouterr().err == ""
    with progress_bar("comparing", after=0) as show:
        show(1, 2)
    assert "comparing" in capsys.readouterr().err
    monkeypatch.delenv("FORCE_COLOR")
    with progress_bar("comparing", after=0) as show:
        show(1, 2)
    assert capsys.readouterr().err == ""
