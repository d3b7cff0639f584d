"""What was checked, and findings that a project accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from findings.made_run import MadeRun
from learnscope.cli import main
from learnscope.findings import analyses
from learnscope.findings.acknowledged import acknowledge, read_acknowledged
from learnscope.findings.checks import checks_of, not_checked
from learnscope.run import Run
from learnscope.store.backend import FolderBackend
from learnscope.store.errors import RunError


def healthy(folder: Path | None = None) -> MadeRun:
    run = MadeRun(FolderBackend(folder) if folder else None, layers=["a", "b", "c"])
    for step in range(1, 9):
        run.loss(step, 1.0 / step)
        run.gradients(step, {"a": 0.1, "b": 0.2, "c": 0.3})
    return run


def broken(folder: Path | None = None) -> MadeRun:
    run = healthy(folder)
    for step in (9, 10):
        run.loss(step, float("nan"))
    return run


def test_every_analysis_has_a_state() -> None:
    checks = {check.name: check for check in checks_of(healthy().reader)}
    assert len(checks) == len(analyses())  # names are distinct
    assert checks["NaN and infinity"].state == "passed"
    assert "Loss.loss at 8 steps" in checks["NaN and infinity"].reason
    assert checks["vanishing gradients"].state == "passed"
    overfitting = checks["overfitting"]
    assert (overfitting.state, overfitting.how_to_enable) == (
        "not measured",
        "ls.watch(..., holdout=data) (where there are targets)",
    )
    assert "Holdout.holdout_loss was not recorded" in overfitting.reason
    assert checks["robustness (audit)"].state == "not applicable"
    assert checks["adapters"].state == "not applicable"


def test_failed_and_too_few_measurements() -> None:
    run = broken()
    run.holdout(1, [1.0, 2.0])
    checks = {check.name: check for check in checks_of(run.reader)}
    assert checks["NaN and infinity"].state == "failed"
    assert checks["NaN and infinity"].findings[0].kind == "nonfinite"
    assert checks["overfitting"].state == "not measured"
    assert "measured at 1 step, and 4 are needed" in checks["overfitting"].reason
    assert "overfitting" in not_checked(list(checks.values()))


def test_what_a_probe_looked_for_and_did_not_meet_does_not_apply() -> None:
    run = healthy()
    name = "running statistics of batch norms"
    [before] = [check for check in checks_of(run.reader) if check.name == name]
    run.model("Inputs", 8, input_std=1.0)
    [after] = [check for check in checks_of(run.reader) if check.name == name]
    assert (before.state, after.state) == ("not measured", "not applicable")
    assert "where the model has batch norms" in after.reason


def test_an_audit_is_checked_for_what_an_audit_has() -> None:
    run = MadeRun()
    run.manifest["source"] = "audit"
    states = {check.name: check.state for check in checks_of(run.reader)}
    assert states["overfitting"] == "not applicable"
    assert states["robustness (audit)"] != "not applicable"


def test_acknowledging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    broken(tmp_path / "r")
    [found] = [f for f in Run(FolderBackend.existing(tmp_path / "r")).findings() if f.kind == "nonfinite"]
    assert main(["report", "r", "--fail-on", "critical"]) == 1
    assert found.fingerprint in capsys.readouterr().out
    assert main(["acknowledge", "r", found.fingerprint, "--why", 'known: "quoted" \\ und\x1b so']) == 0
    assert main(["report", "r", "--format", "markdown", "--fail-on", "critical"]) == 0
    assert "ACKNOWLEDGED" in capsys.readouterr().out
    assert main(["checks", "r", "--fail-on", "warning"]) == 0
    assert "not measured" in capsys.readouterr().out
    [known] = read_acknowledged().items()
    assert known == (found.fingerprint, 'known: "quoted" \\ und\\u001b so')
    [after] = [f for f in Run(FolderBackend.existing(tmp_path / "r")).findings() if f.kind == "nonfinite"]
    assert after.acknowledged is not None
    text = (tmp_path / "r" / "report" / "report.md").read_text()
    assert "1 acknowledged finding. No problems found; not checked: " in text
    monkeypatch.chdir(tmp_path / "r")  # the file of the folder above
    assert read_acknowledged() == dict([known])
    assert main(["acknowledge", str(tmp_path / "r"), "0" * 12, "--why", "x"]) == 2
    assert found.fingerprint in capsys.readouterr().err


def test_the_file_of_acknowledged_findings(tmp_path: Path) -> None:
    first, second = [*Run(broken().backend).findings(), *Run(_frozen().backend).findings()][:2]
    file = tmp_path / "deep" / "a.toml"
    acknowledge(first, "one", file)
    acknowledge(second, "two", file)
    acknowledge(first, "three", file)
    assert read_acknowledged(file) == {first.fingerprint: "three", second.fingerprint: "two"}
    with pytest.raises(RunError, match="say why"):
        acknowledge(first, " ", file)
    file.write_text('["abc"]\nkind = "k"\n')
    with pytest.raises(RunError, match="has no reason"):
        read_acknowledged(file)
    file.write_text("[abc")
    with pytest.raises(RunError, match="not TOML"):
        read_acknowledged(file)
    with pytest.raises(OSError, match="missing"):
        read_acknowledged(tmp_path / "missing.toml")


def _frozen() -> MadeRun:
    run = MadeRun(frozen=["a.weight"])
    run.loss(1, 1.0)
    return run


def test_silence_says_what_was_not_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    healthy(tmp_path / "r")
    broken(tmp_path / "worse")
    assert main(["report", str(tmp_path / "r"), "--format", "markdown", "--fail-on", "warning"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "No problems found; not checked: " in out
    assert "more. `learnscope checks` lists them." in out
    assert main(["report", str(tmp_path / "r"), "--full"]) == 0
    assert "overfitting" in capsys.readouterr().out
    text = (tmp_path / "r" / "report" / "report.md").read_text()
    assert "No problems found; not checked: " in text
    assert "| overfitting | not measured | Holdout.holdout_loss was not recorded |" in text
    assert main(["report", str(tmp_path / "worse"), "--baseline", str(tmp_path / "r")]) == 0
    assert "CRITICAL NEW  " in capsys.readouterr().out
    assert main(["report", str(tmp_path / "worse"), "--baseline", str(tmp_path / "r"), "--full"]) == 0
    assert "The baseline run does not have it" in capsys.readouterr().out
