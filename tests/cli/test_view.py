"""`learnscope view` as a command: what it prints, what it refuses, and that it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from learnscope.cli import main
from live.test_access import made


def status(address: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_for_other_machines_the_address_has_a_token(tmp_path: Path) -> None:
    made(tmp_path / "a")
    command = [sys.executable, "-m", "learnscope.cli", "view", str(tmp_path), "--host", "0.0.0.0", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        said = server.stdout.readline().split()[2]
        place, _, token = said.partition("/?token=")
        assert len(token) >= 20
        here = f"http://127.0.0.1:{place.rpartition(':')[2]}/"
        assert status(here) == 401
        assert status(f"{here}events") == 401
        assert status(f"{here}?token={token[:-1]}x") == 401
        assert status(here, Authorization=f"Bearer {token}") == 200
        assert status(here, Authorization=f"Bearer {token}", Host="evil.example") == 403
    finally:
        server.send_signal(signal.SIGINT)
        out, _ = server.communicate(timeout=60)
    assert (server.returncode, out) == (0, "learnscope view: ended\n")


def test_a_wrong_folder_is_answered_with_the_runs_that_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path / "first")
    assert main(["view", str(tmp_path / "frist")]) == 2
    assert f"did you mean {tmp_path / 'first'}?" in capsys.readouterr().err


def test_missing_packages_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "learnscope.live.server", raising=False)
    assert main(["view", str(tmp_path)]) == 2
    assert "pip install 'learnscope[dashboard]'" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["-1", "70000", "x"])
def test_a_port_is_a_port(port: str) -> None:
    assert main(["view", "--port", port]) == 2


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert all(word in said for word in ("ssh -L", "--token", "examples:", "nothing is written"))
    assert "--with-parent" not in said
