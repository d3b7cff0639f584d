"""The checks that are run by hand: of every family, and of the setup."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from learnscope.trackers import check, setup_check
from learnscope.trackers.check import FAMILIES, TinyModel

SCRIPT = Path(__file__).parents[2] / "scripts" / "validate_tracking_setup.py"


def test_every_family_is_ok(capsys: pytest.CaptureFixture[str]) -> None:
    state = torch.get_rng_state()
    assert check.main([]) == 0
    printed = capsys.readouterr().out
    for family in FAMILIES:
        (line,) = [line for line in printed.splitlines() if line.startswith(f"│ {family} ")]
        assert "ok" in line
    assert "failed" not in printed
    assert torch.equal(torch.get_rng_state(), state)


def test_a_wrong_spectrum_is_found(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    right = TinyModel.updates
    wrong = {"rslora": 1.001, "pissa": 1.0}
    monkeypatch.setattr(TinyModel, "updates", lambda one: {k: wrong[one.family] * v for k, v in right(one).items()})
    assert check.main(["rslora", "pissa"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1:4:2] for line in lines if line.startswith(("│ rslora", "│ pissa"))] == [
        ["rslora", "failed"], ["pissa", "ok"],
    ]  # fmt: skip


def test_a_wrong_gradient_and_a_wrong_family_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    right = TinyModel.gradient_norms
    with monkeypatch.context() as patched:
        patched.setattr(
            TinyModel, "gradient_norms", lambda one: {key: 1.0001 * norm for key, norm in right(one).items()}
        )
        found = check.check_family("lora", tmp_path)
        assert not found.ok
        assert "the gradient of lora_" in found.message
    monkeypatch.setattr(check, "TinyModel", lambda family: TinyModel("dora" if family == "lora" else family))
    made = check.check_family("lora", tmp_path / "b")
    assert made.ok  # what it is called comes from the model
    assert "12 gradient norms" in made.message  # A, B and the magnitude of four modules


def test_an_unknown_family_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        check.main(["lorra"])
    assert stopped.value.code == 2
    assert "Did you mean 'lora'?" in capsys.readouterr().err


def test_the_script_validates_this_setup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--output_dir", str(tmp_path / "new")])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    printed = capsys.readouterr().out
    assert ended.value.code == 0, printed
    for name in (*setup_check.PACKAGES, "device", "output directory", "tracked training"):
        (line,) = [line for line in printed.splitlines() if line.startswith(f"│ {name} ")]
        assert " ok " in line
    assert torch.__version__ in printed
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_the_script_has_help_and_does_not_wait_for_torch() -> None:
    program = (
        f"import runpy, sys; sys.argv = ['script', '--help']\n"
        f"try:\n    runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
        "finally:\n    print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--output_dir" in done.stdout
    assert done.stdout.splitlines()[-1] == "False"


def test_what_is_missing_is_named_with_its_cure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(setup_check, "PACKAGES", ("torch", "no-such-package"))
    assert setup_check.main(["--output_dir", str(tmp_path / "file" / "out")]) == 1
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "no-such-package failed not installed → pip install 'learnscope[hf]'" in printed
    assert "output directory failed" in printed
    assert "--output_dir DIR" in printed
    assert "tracked training failed not tried" in printed


def test_a_package_that_is_too_old_or_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert setup_check.check_package("peft").ok
    with monkeypatch.context() as patched:
        patched.setattr(setup_check, "version", lambda name: "0.1")
        old = setup_check.check_package("peft")
    assert not old.ok
    assert ">=" in old.message
    assert "--upgrade" in old.cure

    def broken(name: str) -> None:
        raise OSError("libcuda.so: cannot open\nmore")

    monkeypatch.setattr(setup_check, "import_module", broken)
    found = setup_check.check_package("peft")
    assert not found.ok
    assert found.message.endswith("cannot be imported: OSError: libcuda.so: cannot open")
