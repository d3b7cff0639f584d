"""What a command line must not leave in run.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import learnscope as ls
from learnscope.redaction import HIDDEN, redacted

SECRET = "s3cr3tvalue"
HOLDS_ONE = [
    ["--wandb-api-key", SECRET],
    ["--api_key=" + SECRET],
    ["--trainer.hub.token", SECRET],
    ["--hubToken=" + SECRET],
    ["password=" + SECRET],
    ["-password", SECRET],
    ["--db", f"postgres://user:{SECRET}@host:5432/runs"],
    ["--proxy", f"http://{SECRET}@proxy"],
    ["--data", f"https://host/data?token={SECRET}&split=train"],
    [f"--data=https://host/data?token={SECRET}&split=train"],
    ["--env", json.dumps({"api_key": SECRET, "lr": 1})],
    ["--env", f"{{'MY_SECRET': '{SECRET}'}}"],
    ["AWS_SECRET_ACCESS_KEY=" + SECRET],
    ["--header", f"Authorization: Bearer {SECRET}"],
    ["--header", f"Bearer {SECRET}"],
    ["--api-keys", SECRET, SECRET],
    ["--db", f"postgres://user:p@{SECRET}@host/runs"],
    ["--data", f"https://store/data?split=train&sig={SECRET}"],
    ["--notify", f"https://hooks.slack.com/services/T000/B000/{SECRET}"],
]
KNOWN_TOKENS = [
    "hf_abcdefghijklmnopqrstuv", "sk-proj-abcdefghijklmnop", "ghp_abcdefghijklmnopqrst", "github_pat_11ABCDEFG0abcdef",
    "glpat-abcdefghijklmnop", "xoxb-123456789012-abcdef", "AKIAIOSFODNN7EXAMPLE", "AIzaSyA-abcdefghijklmnopqrstuvwxyz",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc",
]  # fmt: skip
HARMLESS = [
    "train.py", "--lr", "0.001", "--tokenizer", "gpt2", "--max_tokens", "100", "--num_key_value_heads", "8",
    "--token_dropout=0.1", "--key-dim", "64", "--data", "s3://bucket/a=b/c.parquet", "https://host/page?split=train",
    "model.lr=0.1", "--patience", "3", "--path", "/data/x", "--author", "me", "--monkey", "business",
    "--keys", "loss", "--tokens", "1000", "https://host/page?mail=me@host", "https://host/@scope/package",
]  # fmt: skip


@pytest.mark.parametrize("arguments", HOLDS_ONE)
def test_the_value_of_a_secret_option_is_hidden(arguments: list[str]) -> None:
    shown = redacted(["train.py", *arguments, "--lr", "0.1"])
    assert SECRET not in " ".join(shown)
    assert HIDDEN in " ".join(shown)
    assert shown[0] == "train.py"
    assert shown[-2:] == ["--lr", "0.1"]


@pytest.mark.parametrize("token", KNOWN_TOKENS)
def test_a_known_token_is_hidden_wherever_it_stands(token: str) -> None:
    for argument in (token, f"--x={token}", f"a/{token}/b"):
        assert token not in redacted([argument])[0]


def test_nothing_else_is() -> None:
    assert redacted(HARMLESS) == HARMLESS


def test_a_secret_flag_without_a_value_hides_nothing_of_the_next_option() -> None:
    assert redacted(["--use-auth-token", "--lr", "0.1"]) == ["--use-auth-token", "--lr", "0.1"]


def test_a_run_folder_holds_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--hf_token", SECRET, f"--url=https://u:{SECRET}@h", "--lr", "0.1"])
    model = torch.nn.Linear(2, 2)
    with ls.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), run=tmp_path / "run"):
        pass
    written = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert SECRET.encode() not in written
    command = ls.open_run(tmp_path / "run").manifest["environment"]["command"]
    assert command == ["train.py", "--hf_token", HIDDEN, f"--url=https://{HIDDEN}@h", "--lr", "0.1"]


@pytest.mark.parametrize("way", ["watch", "replay", "audit"])
def test_the_command_line_is_left_out_on_request(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--codename", "zebra"])
    for wanted in (True, False):
        folder = tmp_path / f"{wanted}"
        model = torch.nn.Linear(2, 2)
        data = [(torch.ones(4, 2), torch.zeros(4, dtype=torch.long))]
        if way == "watch":
            ls.watch(model, run=folder, probes=[], record_command=wanted).close()
        elif way == "replay":
            ls.replay([model], run=folder, probes=[ls.WeightKurtosis()], record_command=wanted)
        else:
            ls.audit(model, data, run=folder, probes=[ls.Holdout()], record_command=wanted)
        written = "".join(path.read_text() for path in folder.rglob("*.json*"))
        assert ("zebra" in written) is wanted
        run = ls.open_run(folder)
        assert run.manifest["environment"]["command"] == (["train.py", "--codename", "zebra"] if wanted else None)
        assert run.reader.problems == []
        assert run.report(tmp_path / "report").exists()
